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

// Detachment are what is left of an attachment whose traffic has ended: its link,
// and the addresses that nobody can have as long as that is there.
type Detachment struct {
	record *record
	others []string // sandboxes of which something was left long ago
}

// resumeAfter is after how long nobody is at work on a removal any more.
const resumeAfter = time.Minute

// Detach removes a sandbox's interface. What isn't attached is no error: it may
// be unknown, detached before, or of before a boot; the namespace may be gone.
func (n *Network) Detach(ctx context.Context, sandbox string) error {
	r, err := n.BeginDetach(ctx, sandbox)
	if err != nil || r == nil {
		return err
	}
	return n.FinishDetach(ctx, r)
}

// Sever is the first part of Detach: it ends the traffic at once. It returns
// nil if there is nothing to bury.
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

// Bury is the other part of Detach, for any number at once: it deletes the links,
// which takes the same 20 ms or more for all of them, and ends the leases. Until
// then a call about the same sandbox, and Collect, do it themselves.
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

// resumeDetach cuts off what another call has left of a sandbox, unless one is at
// work on it now. The sandbox stays locked.
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
	l.n.cfg.Log.Info("network: going on with a removal that was left", "pod", r.Attachment.Pod, "addresses", r.Addresses)
	return r
}

// remove does both for records under a lock.
func (l *locked) remove(dp *datapath.Datapath, records ...*record) error {
	for _, r := range records {
		if err := dp.Cut(r.plan()); err != nil {
			return fmt.Errorf("detach %v: %w", r.Attachment.Pod, err)
		}
	}
	return l.finishDetach(dp, records)
}

// bury deletes the links of records that were cut off, and forgets those
// records: if one isn't the same any more, another call has been faster.
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

// forget has the kernel forget connections. Without, some old ones hang: no call
// fails for that.
func (n *Network) forgetFlows(dp *datapath.Datapath, f conntrack.Flows) {
	if err := dp.Forget(f); err != nil {
		n.cfg.Log.Warn("network: conntrack may send packets of old connections astray", "error", err)
	}
}

// Collect detaches every sandbox that live doesn't have, and removes what is
// the network's in the kernel and belongs to nobody, unless that can't be told
// because a lease is unreadable. If nothing is attached then, the node's own
// part goes too.
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
	unsure := false // what in the kernel is nobody's
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
