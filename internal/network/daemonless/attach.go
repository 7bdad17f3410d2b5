package daemonless

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/preflight"
	"github.com/huskd/husk/internal/pod"
)

// Attach gives a sandbox its interface and addresses, and returns what was created. For an attached
// sandbox it returns the same again, and repairs what is missing. If it fails, nothing of the
// attachment is left.
//
// Of the error's kinds, invalid argument means that the request can never succeed, resource
// exhausted that no address is left, and unavailable or already exists that a port, an address or a
// link is taken.
func (n *Network) Attach(ctx context.Context, a pod.Attachment) (plan.Plan, error) {
	if err := plan.Check(a); err != nil {
		return plan.Plan{}, err
	}
	if len(n.cfg.Ranges) == 0 {
		return plan.Plan{}, errdefs.ErrInvalidArgument.WithMessage("no subnet to allocate from")
	}
	l, err := n.lock(ctx, scope(a.Sandbox))
	if err != nil {
		return plan.Plan{}, err
	}
	defer l.release()
	var p plan.Plan
	err = n.withDatapath(func(dp *datapath.Datapath) error {
		r, fresh, err := l.reserve(dp, a)
		if err != nil {
			return err
		}
		p = r.plan()
		crashpoint.Hit("daemonless.reserved")
		if err := l.ensure(dp, p, fresh); err != nil {
			if fresh {
				return errors.Join(err, l.rollBack(dp, r))
			}
			return err
		}
		crashpoint.Hit("daemonless.applied")
		n.forgetFlows(dp, conntrack.Flows{Ports: plan.UDPPorts(a)})
		return nil
	})
	if err != nil {
		return plan.Plan{}, fmt.Errorf("attach %v: %w", a.Pod, err)
	}
	return p, nil
}

// reserve returns the sandbox's record. If there was none, it is a fresh one.
func (l *locked) reserve(dp *datapath.Datapath, a pod.Attachment) (r *record, fresh bool, err error) {
	n := l.n
	uplink, err := dp.Uplink()
	if err != nil {
		return nil, false, err
	}
	var former *record // an unfinished detachment
	try := func(t *tx) error {
		found := t.find(a.Sandbox)
		if found != nil && found.Releasing > 0 {
			former = found
			return nil
		}
		if err := t.ensure(n, dp); err != nil {
			return err
		}
		if found != nil {
			r = found
			return r.checkSame(a)
		}
		if ports := plan.Mappings(a); len(ports) > 0 {
			if err := dp.InNode(func() error { return preflight.PortsFree(ports) }); err != nil {
				return err
			}
		}
		fresh = true
		r = &record{Attachment: a, Node: plan.Node{
			Instance: n.instance, Mode: n.cfg.Mode, Bridge: n.cfg.Bridge, Routes: n.cfg.Routes, NoHairpin: n.cfg.NoHairpin,
			MTU: cmp.Or(n.cfg.MTU, uplink.MTU), Source: uplink.Source,
		}}
		return t.reserve(r, n.cfg.Ranges, bootTime())
	}
	err = l.prepare(dp, try)
	if err == nil && former != nil {
		if err = l.remove(dp, former); err == nil {
			err = l.prepare(dp, try)
		}
	}
	return r, fresh, err
}

// checkSame returns an error if the sandbox is already attached with other settings than asked for.
func (r *record) checkSame(asks pod.Attachment) error {
	has := r.Attachment
	if r.reconstructed {
		return errUnreadable
	}
	if has.Netns != asks.Netns || has.MAC != asks.MAC || has.Bandwidth != asks.Bandwidth ||
		!slices.Equal(plan.Mappings(has), plan.Mappings(asks)) || !slices.Equal(has.IPs, asks.IPs) {
		return errdefs.ErrFailedPrecondition.WithMessage("it is attached with a different namespace, address, bandwidth or ports: detach it first")
	}
	return nil
}

// errUnreadable means that a lease was reconstructed, so not everything of it is known.
var errUnreadable = errdefs.ErrFailedPrecondition.WithMessage("its lease was unreadable: detach it, and attach it again")

// ensure makes the kernel agree with a plan.
func (l *locked) ensure(dp *datapath.Datapath, p plan.Plan, fresh bool) error {
	if err := l.ctx.Err(); err != nil {
		return err
	}
	if !fresh {
		diffs, err := dp.Verify(p)
		if err != nil || len(diffs) == 0 {
			return err
		}
	}
	err := dp.Apply(p)
	if !datapath.BaseMissing(err) {
		return err
	}
	if repairErr := l.update(func(t *tx) error { return t.repairBase(l.n, dp) }); repairErr != nil {
		return errors.Join(err, repairErr)
	}
	return dp.Apply(p)
}

// rollBack removes a record whose addresses were never used, and what was made of it.
func (l *locked) rollBack(dp *datapath.Datapath, r *record) error {
	if err := dp.RollBack(r.plan()); err != nil {
		return fmt.Errorf("roll back: %w: detach it", err)
	}
	uncancelled := &locked{n: l.n, ctx: context.WithoutCancel(l.ctx), file: l.file}
	return uncancelled.update(func(t *tx) error { return t.end(r, time.Time{}) })
}

// Verify returns an error of kind not found if the sandbox isn't attached, and of kind failed
// precondition if the kernel differs from the plan, naming each difference.
func (n *Network) Verify(ctx context.Context, sandbox string) (plan.Plan, error) {
	unknown := errdefs.ErrNotFound.WithMessage("it isn't attached to this network")
	made, err := n.exists()
	if err != nil || !made {
		return plan.Plan{}, cmp.Or(err, error(unknown))
	}
	l, err := n.lock(ctx, scope(sandbox))
	if err != nil {
		return plan.Plan{}, err
	}
	defer l.release()
	var r *record
	var base plan.Base
	err = l.view(func(t *tx) error {
		base, _ = t.recordedBase()
		r = t.find(sandbox)
		return nil
	})
	switch {
	case err != nil:
		return plan.Plan{}, err
	case r == nil || r.Releasing > 0:
		return plan.Plan{}, unknown
	case r.reconstructed:
		return plan.Plan{}, errUnreadable
	}
	p := r.plan()
	return p, n.withDatapath(func(dp *datapath.Datapath) error {
		if err := verifyBase(dp, base); err != nil {
			return err
		}
		diffs, err := dp.Verify(p)
		if err == nil && len(diffs[sandbox]) > 0 {
			err = errdefs.ErrFailedPrecondition.WithMessage(describe(diffs[sandbox]))
		}
		return err
	})
}
