package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/pod"
)

// Attach gives a sandbox its interface and addresses. For an attached sandbox and interface it
// returns the same again, and repairs what is missing. If it fails, nothing of the attachment is
// left. The error doesn't name the pod.
//
// Of the error's kinds, invalid argument means that the request can never succeed, resource
// exhausted that no address is left, unavailable that a port is taken or that this node may give no
// address now, and already exists that a link is taken.
func (n *Network) Attach(ctx context.Context, a pod.Attachment) (*pod.Attached, error) {
	p, err := n.attach(ctx, a, false)
	if err != nil {
		return nil, err
	}
	return p.Attached(Name), nil
}

func (n *Network) attach(ctx context.Context, a pod.Attachment, external bool) (plan.Plan, error) {
	if err := plan.Check(a); err != nil {
		return plan.Plan{}, err
	}
	unlock, err := n.sandboxes.Lock(ctx, a.Sandbox)
	if err != nil {
		return plan.Plan{}, err
	}
	defer unlock()
	if err := n.reaper.wait(ctx, ownerOf(a)); err != nil {
		return plan.Plan{}, fmt.Errorf("wait for its former link to be deleted: %w", err)
	}
	r, err := n.reserve(a, external)
	if err != nil {
		return plan.Plan{}, err
	}
	p := n.plan(r)
	if err := n.ensure(ctx, r, p); err != nil {
		return plan.Plan{}, err
	}
	n.reaper.forgetUDP(plan.UDPPorts(a))
	return p, nil
}

// reserve returns the attachment's record. If there was none, it makes and journals one.
func (n *Network) reserve(a pod.Attachment, external bool) (*record, error) {
	ports := plan.Mappings(a)
	if r := n.ledger.find(ownerOf(a)); r != nil {
		if r.Attachment.Netns != a.Netns || !slices.Equal(plan.Mappings(r.Attachment), ports) {
			return nil, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%v is attached with a different namespace or ports: detach it first", ownerOf(a)))
		}
		return r, nil
	}
	if len(ports) > 0 {
		if err := n.basePlan().Table.HostPorts(ports); err != nil {
			return nil, err
		}
		if err := n.dp.InNode(func() error { return preflight.PortsFree(ports) }); err != nil {
			return nil, err
		}
	}
	uplink, err := n.dp.Uplink()
	if err != nil {
		return nil, err
	}
	r := &record{Attachment: a, External: external, RuntimeManaged: a.RuntimeManaged, Mode: n.cfg.Mode, MTU: n.mtu(uplink), Source: uplink.Source}
	return r, n.ledger.reserve(r)
}

// ensure makes the kernel agree with a reserved or bound record, and binds it. On failure a
// reserved record is rolled back; a bound one stays, as its pod is running.
func (n *Network) ensure(ctx context.Context, r *record, p plan.Plan) error {
	if n.ledger.state(r) == ipam.Bound {
		return n.repair(p)
	}
	err := n.cfg.Policy.Admit(ctx, r.Attachment, r.Addresses)
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		err = n.apply(p)
	}
	if err == nil {
		crashpoint.Hit("network.applied")
		err = n.ledger.bind(r)
	}
	if err != nil {
		return errors.Join(err, n.rollBack(r, p))
	}
	return nil
}

// repair applies a plan if the kernel differs from it.
func (n *Network) repair(p plan.Plan) error {
	diffs, err := n.dp.Verify(p)
	if err != nil || len(diffs) == 0 {
		return err
	}
	return n.apply(p)
}

func (n *Network) apply(p plan.Plan) error {
	once := func() error {
		n.kernelMu.RLock()
		defer n.kernelMu.RUnlock()
		return n.dp.Apply(p)
	}
	err := once()
	if !datapath.BaseMissing(err) {
		return err
	}
	if repaired, repairErr := n.repairBase(); !repaired || repairErr != nil {
		return errors.Join(err, repairErr)
	}
	return once()
}

// repairBase makes the nftables table again if another program removed it, as nftables.service does
// with all tables when it restarts.
func (n *Network) repairBase() (repaired bool, err error) {
	n.kernelMu.Lock()
	defer n.kernelMu.Unlock()
	if n.tornDown || n.dp.TableExists() {
		return false, nil
	}
	n.log.Warn("network: the nftables table was removed; recreating it", "table", n.cfg.Instance.Table())
	return true, n.remakeTable()
}

// remakeTable makes the base again, with the elements of all pods. The caller holds kernelMu.
func (n *Network) remakeTable() error {
	var elements []plan.Element
	for _, r := range n.ledger.all() {
		if n.ledger.state(r) != ipam.Releasing {
			elements = append(elements, n.plan(r).Elements...)
		}
	}
	return n.dp.RepairBase(n.basePlan(), elements)
}

// rollBack removes a record whose addresses were never used, and what was made of it. If that
// fails, the reaper retries.
func (n *Network) rollBack(r *record, p plan.Plan) error {
	err := n.ledger.release(r)
	if err == nil {
		n.kernelMu.RLock()
		err = n.dp.RollBack(p)
		n.kernelMu.RUnlock()
		n.cfg.Policy.Forget(r.Attachment)
	}
	if err != nil {
		n.reaper.add(r, err)
		return fmt.Errorf("roll back: %w", err)
	}
	return n.ledger.forget(r)
}
