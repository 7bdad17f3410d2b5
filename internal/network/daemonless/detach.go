package daemonless

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/network/conntrack"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/plan"
)

// Detachment is an attachment whose traffic has ended. Its link still exists, and so its addresses
// are still leased.
type Detachment struct {
	record *record
	others []string // sandboxes whose detachment was abandoned
}

// resumeAfter is the age at which an unfinished detachment counts as abandoned.
const resumeAfter = time.Minute

// Detach removes a sandbox's interface. It is not an error if nothing is attached: the sandbox may
// be unknown, detached already, or from before a reboot, and its namespace may be gone.
func (n *Network) Detach(ctx context.Context, sandbox string) error {
	r, err := n.BeginDetach(ctx, sandbox)
	if err != nil || r == nil {
		return err
	}
	return n.FinishDetach(ctx, r)
}

// BeginDetach is the first part of Detach: it ends the traffic at once. It returns nil if there is
// nothing to finish.
func (n *Network) BeginDetach(ctx context.Context, sandbox string) (*Detachment, error) {
	made, err := n.exists()
	if err != nil || !made {
		return nil, err
	}
	l, err := n.lock(ctx, scope(sandbox))
	if err != nil {
		return nil, err
	}
	defer l.release()
	var r *record
	var others []string
	err = l.update(func(t *tx) error {
		if r = t.find(sandbox); r == nil {
			return nil
		}
		others = t.unfinished(bootTime().Add(-resumeAfter), 16)
		return t.release(r)
	})
	if err != nil || r == nil {
		return nil, err
	}
	crashpoint.Hit("daemonless.releasing")
	err = n.withDatapath(func(dp *datapath.Datapath) error { return dp.Cut(r.plan()) })
	if err != nil {
		return nil, fmt.Errorf("detach %v: %w", r.Attachment.Pod, err)
	}
	crashpoint.Hit("daemonless.cut")
	if len(r.Attachment.Ports) > 0 {
		if err := l.update(func(t *tx) error { return t.freePorts(r) }); err != nil {
			return nil, err
		}
	}
	return &Detachment{r, others}, nil
}

// FinishDetach is the second part of Detach, for any number of sandboxes: it deletes the links,
// which takes the same 20 ms or more for all of them, and ends the leases. Until it has run,
// Collect or another call for the same sandbox does this work.
func (n *Network) FinishDetach(ctx context.Context, detachments ...*Detachment) error {
	l, err := n.lock(ctx, networkShared)
	if err != nil {
		return err
	}
	defer l.release()
	return n.withDatapath(func(dp *datapath.Datapath) error {
		var records []*record
		for _, r := range detachments {
			records = append(records, r.record)
			for _, sandbox := range r.others {
				if left := l.resumeDetach(dp, sandbox); left != nil {
					records = append(records, left)
				}
			}
		}
		return l.finishDetach(dp, records)
	})
}

// resumeDetach cuts off an abandoned sandbox and leaves it locked. It returns nil if another call
// is working on it.
func (l *locked) resumeDetach(dp *datapath.Datapath, sandbox string) *record {
	if !l.tryLock(sandbox) {
		return nil
	}
	var r *record
	err := l.view(func(t *tx) error {
		r = t.find(sandbox)
		return nil
	})
	if err != nil || r == nil || r.Releasing == 0 || dp.Cut(r.plan()) != nil {
		return nil
	}
	l.n.cfg.Log.Info("network: resuming an unfinished detachment", "pod", r.Attachment.Pod, "addresses", r.Addresses)
	return r
}

// remove detaches records under one lock.
func (l *locked) remove(dp *datapath.Datapath, records ...*record) error {
	for _, r := range records {
		if err := dp.Cut(r.plan()); err != nil {
			return fmt.Errorf("detach %v: %w", r.Attachment.Pod, err)
		}
	}
	return l.finishDetach(dp, records)
}

// finishDetach deletes the links of records that were cut off, and ends their leases. If a record
// has changed, another call was faster.
func (l *locked) finishDetach(dp *datapath.Datapath, records []*record) error {
	if err := dp.Reap(); err != nil {
		return err
	}
	crashpoint.Hit("daemonless.reaped")
	var addrs []netip.Addr
	err := l.update(func(t *tx) error {
		for _, r := range records {
			found := t.find(r.Attachment.Sandbox)
			if found == nil || found.Releasing != r.Releasing {
				continue
			}
			addrs = append(addrs, r.addrs()...)
			if err := t.end(r, bootTime().Add(l.n.cfg.Quarantine)); err != nil {
				return err
			}
		}
		return nil
	})
	crashpoint.Hit("daemonless.gone")
	if err != nil {
		return err
	}
	l.n.forgetFlows(dp, conntrack.Flows{Pods: addrs})
	return nil
}

// forgetFlows makes the kernel forget connections. It only logs an error: all that happens without
// it is that some old connections hang.
func (n *Network) forgetFlows(dp *datapath.Datapath, f conntrack.Flows) {
	if err := dp.Forget(f); err != nil {
		n.cfg.Log.Warn("network: conntrack may misdirect packets of old connections", "error", err)
	}
}

// Collect detaches every sandbox that isn't in live, and removes objects in the kernel that belong
// to the network but to no attachment. It leaves those if a lease is unreadable, as they might be
// that pod's. If nothing is attached afterwards, it removes the base too.
func (n *Network) Collect(ctx context.Context, live map[string]bool) error {
	made, err := n.exists()
	if err != nil || !made {
		return err
	}
	l, err := n.lock(ctx, networkExclusive)
	if err != nil {
		return err
	}
	defer l.release()
	var dead []*record
	var plans []plan.Plan
	unsure := false // a lease is unreadable, so strays can't be told from its objects
	err = l.view(func(t *tx) error {
		return t.each(func(r *record) error {
			if live[r.Attachment.Sandbox] && r.Releasing == 0 {
				plans = append(plans, r.plan())
				unsure = unsure || r.reconstructed
				return nil
			}
			dead = append(dead, r)
			return nil
		})
	})
	if err != nil {
		return err
	}
	return n.withDatapath(func(dp *datapath.Datapath) error {
		if err := dp.CheckOwner(n.owner()); err != nil {
			return err
		}
		if len(dead) > 0 {
			if err := l.remove(dp, dead...); err != nil {
				return err
			}
		}
		if unsure {
			return nil
		}
		return l.update(func(t *tx) error {
			if len(plans) == 0 {
				_, err := dp.Sweep(plan.Base{}, nil)
				return errors.Join(err, t.teardown(dp))
			}
			_, err := dp.Sweep(t.base(n), plans)
			return err
		})
	})
}
