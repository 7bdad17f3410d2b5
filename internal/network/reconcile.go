package network

import (
	"context"
	"errors"
	"fmt"

	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Reconcile makes the network agree with the live attachments. It is called at the start, before
// anything is attached, and returns when it is done. Those of other runtimes are live as long as
// their network namespaces exist, see External. It completes and repairs live attachments,
// releases all other leases, and removes the instance's objects in the kernel that belong to no
// attachment. An error of one attachment doesn't stop the others.
func (n *Network) Reconcile(ctx context.Context, live []pod.Attachment) error {
	alive := map[ipam.Owner]pod.Attachment{}
	for _, a := range live {
		alive[ownerOf(a)] = a
	}
	var keep, release []*record
	for _, r := range n.ledger.all() {
		if n.External().lives(r) {
			alive[r.owner()] = r.Attachment
		}
		if _, ok := alive[r.owner()]; ok {
			keep = append(keep, r)
		} else {
			release = append(release, r)
		}
	}

	var errs []error
	var gone []ipam.Owner
	for _, r := range release {
		if n.reaper.has(r) {
			continue
		}
		n.log.Info("network: releasing the lease of a pod that is gone", "pod", r.Attachment.Pod, "addresses", r.Addresses)
		if err := n.detach(r); err != nil {
			errs = append(errs, fmt.Errorf("release lease of %v: %w", r.owner(), err))
			continue
		}
		gone = append(gone, r.owner())
	}
	errs = append(errs, n.reaper.wait(ctx, gone...))
	errs = append(errs, n.sweep())
	errs = append(errs, n.repairAll(ctx, keep, alive)...)
	for owner, a := range alive {
		if n.ledger.find(owner) == nil {
			errs = append(errs, fmt.Errorf("pod %v (sandbox %s) has lost its lease and has no network: stop it", a.Pod, pod.Short(a.Sandbox)))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("reconcile network: %w", err)
	}
	return nil
}

// sweep removes strays, and what only a former configuration needed.
func (n *Network) sweep() error {
	n.kernelMu.Lock()
	defer n.kernelMu.Unlock()
	var plans []plan.Plan
	for _, r := range n.ledger.all() {
		if !n.reaper.has(r) {
			plans = append(plans, n.plan(r))
		}
	}
	swept, err := n.dp.Sweep(n.basePlan(), plans)
	for _, d := range swept {
		n.log.Info("network: removed a stray", "object", d.Object)
	}
	return err
}

// repairAll completes and repairs the attachments of the records in keep, and binds them.
func (n *Network) repairAll(ctx context.Context, keep []*record, live map[ipam.Owner]pod.Attachment) (errs []error) {
	var plans []plan.Plan
	for _, r := range keep {
		r.RuntimeManaged = r.RuntimeManaged || live[r.owner()].RuntimeManaged
		plans = append(plans, n.livePlan(r))
		n.cfg.Policy.Adopt(live[r.owner()], r.Addresses)
	}
	diffs, err := n.dp.Verify(plans...)
	if err != nil {
		return []error{err}
	}
	for i, r := range keep {
		if err := ctx.Err(); err != nil {
			return append(errs, err)
		}
		found := diffs[r.Attachment.Sandbox]
		for _, d := range found {
			n.log.Warn("network: repairing an attachment", "pod", r.Attachment.Pod, "difference", d.String())
		}
		var err error
		if len(found) > 0 {
			err = n.apply(plans[i])
		}
		if err == nil {
			err = n.ledger.bind(r)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("repair attachment of %v: %w", r.Attachment.Pod, err))
		}
	}
	return errs
}

// livePlan returns the plan of a record as far as it can be compared with the kernel.
func (n *Network) livePlan(r *record) plan.Plan {
	p := n.plan(r)
	if r.RuntimeManaged {
		p.Pod = plan.Side{}
	}
	return p
}

// Damage is an attachment that somebody has changed in the kernel.
type Damage struct {
	Pod pod.Ref
	// Differences are what is not as it should be, such as "link veth1: missing".
	Differences []string
}

// Damages compares the live attachments with the kernel. Reconcile repairs what it finds.
func (n *Network) Damages(live []pod.Attachment) (out []Damage, err error) {
	n.kernelMu.RLock()
	defer n.kernelMu.RUnlock()
	var records []*record
	var plans []plan.Plan
	for _, a := range live {
		if r := n.ledger.find(ownerOf(a)); r != nil && !n.reaper.has(r) {
			records, plans = append(records, r), append(plans, n.livePlan(r))
		}
	}
	diffs, err := n.dp.Verify(plans...)
	for _, r := range records {
		found := diffs[r.Attachment.Sandbox]
		if len(found) == 0 || n.ledger.find(r.owner()) != r || n.reaper.has(r) { // the pod has ended meanwhile
			continue
		}
		damage := Damage{Pod: r.Attachment.Pod}
		for _, d := range found {
			damage.Differences = append(damage.Differences, d.String())
		}
		out = append(out, damage)
	}
	return out, err
}
