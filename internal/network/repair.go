package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/kernelwatch"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

const (
	// repairDelay is how long changes are collected after the first.
	repairDelay = 20 * time.Millisecond
	// After repairBurst repairs at once there is one each repairPace, so that programs that remove
	// again and again what Husk puts back don't keep the node busy.
	repairBurst = 10
	repairPace  = 2 * time.Second
)

// Watch puts back what others remove of the network's links, addresses, routes, neighbours and
// nftables elements on the node, sets the MTU of running pods when it changes, and limits the
// connections of pods, until ctx ends.
// Others' objects, and what is inside of pods, stay as they are. It is called after Reconcile.
func (n *Network) Watch(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return n.limit.Run(ctx) })
	running.Go(func() error {
		return (&repairer{n: n, limit: rate.NewLimiter(rate.Every(repairPace), repairBurst)}).watch(ctx)
	})
	return running.Wait()
}

// changes collects what others may have changed, for the repairer.
type changes struct {
	wake chan struct{} // has an item when something is pending

	mu      sync.Mutex // Invariant: guards the field below.
	pending kernelwatch.Changes
}

func (c *changes) add(more kernelwatch.Changes) {
	c.mu.Lock()
	c.pending.Add(more)
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

func (c *changes) take() kernelwatch.Changes {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.pending
	c.pending = kernelwatch.Changes{}
	return out
}

// repairer compares what others may have changed with the plans, and puts it back.
type repairer struct {
	n      *Network
	limit  *rate.Limiter
	slowed bool   // has been logged since the limit was last full
	failed string // the last error, which has been logged
}

func (r *repairer) watch(ctx context.Context) error {
	running, ctx := errgroup.WithContext(ctx)
	running.Go(func() error { return r.n.dp.Watch(ctx, r.n.changes.add) })
	running.Go(func() error {
		r.run(ctx)
		return nil
	})
	running.Go(func() error {
		r.n.drops.report(ctx, r.n.dp.Dropped, r.n.log)
		return nil
	})
	return running.Wait()
}

func (r *repairer) run(ctx context.Context) {
	var again <-chan time.Time
	var left kernelwatch.Changes // whose repair has failed
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.n.changes.wake:
		case <-again:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairDelay):
		}
		c := r.n.changes.take()
		c.Add(left)
		left, again = kernelwatch.Changes{}, nil
		err := r.repair(ctx, c)
		if err == nil {
			r.failed = ""
			continue
		}
		if text := err.Error(); ctx.Err() == nil && text != r.failed {
			r.n.log.Error("network: what others have changed can't be put back yet; trying again", "error", err)
			r.failed = text
		}
		left, again = c, time.After(repairPace)
	}
}

// repair compares what may have changed, and makes it as planned.
func (r *repairer) repair(ctx context.Context, c kernelwatch.Changes) error {
	var errs []error
	if c.All || c.Base || c.Table {
		errs = append(errs, r.repairBase(ctx))
	}
	if records := r.touched(c); len(records) > 0 {
		errs = append(errs, r.repairPods(ctx, records))
	}
	if c.All || c.Uplink {
		errs = append(errs, r.followMTU(ctx))
	}
	return errors.Join(errs...)
}

// pace logs a repair, and waits if there were many.
func (r *repairer) pace(ctx context.Context, found []string) error {
	if r.limit.Tokens() >= float64(r.limit.Burst()-1) {
		r.slowed = false
	}
	if !r.slowed {
		r.n.log.Warn("network: others have changed objects of the pod network; putting them back", "objects", len(found), "first", found[0])
	}
	if r.limit.Allow() {
		return nil
	}
	if !r.slowed {
		r.slowed = true
		r.n.log.Warn(fmt.Sprintf("network: others change objects of the pod network again and again; from now on they are put back every %v: find the program that does it", repairPace))
	}
	return r.limit.Wait(ctx)
}

// repairBase repairs what belongs to no single pod, and all elements of the table.
func (r *repairer) repairBase(ctx context.Context) error {
	n := r.n
	compare := func() (found []string, err error) {
		n.kernelMu.RLock()
		defer n.kernelMu.RUnlock()
		if n.tornDown {
			return nil, nil
		}
		b := n.basePlan()
		b.Sysctls = nil // the administrator's, see Status
		diffs, err := n.dp.VerifyBase(b)
		for _, d := range diffs {
			found = append(found, d.String())
		}
		return found, err
	}
	found, err := compare()
	if err != nil || len(found) == 0 {
		return err
	}
	if err := r.pace(ctx, found); err != nil {
		return err
	}
	n.kernelMu.Lock()
	defer n.kernelMu.Unlock()
	return n.remakeTable()
}

// touched returns the attached pods to which changes may belong.
func (r *repairer) touched(c kernelwatch.Changes) []*record {
	return slices.DeleteFunc(r.n.ledger.all(), func(rec *record) bool {
		return r.n.ledger.state(rec) != ipam.Bound || !c.All && !c.Table && !r.touches(c, rec)
	})
}

func (r *repairer) touches(c kernelwatch.Changes, rec *record) bool {
	host := r.n.cfg.Instance.HostLink(rec.Attachment.Sandbox)
	if c.Links[host] || c.Addresses[rec.Source] || slices.ContainsFunc(rec.addrs(), func(a netip.Addr) bool { return c.Addresses[a] }) {
		return true
	}
	if len(c.Neighbours) == 0 && (len(c.Links) == 0 || rec.Attachment.Bandwidth == (pod.Bandwidth{})) {
		return false // without making the plan
	}
	p := r.n.plan(rec)
	return c.Links[p.Bandwidth.IFB] || slices.ContainsFunc(p.Host.Neighbours, func(e plan.Neighbour) bool {
		return c.Neighbours[plan.Neighbour{Link: e.Link, Addr: e.Addr}]
	})
}

// repairPods repairs the node's side of attachments, and the pods' side of those whose link has
// been changed.
func (r *repairer) repairPods(ctx context.Context, records []*record) error {
	found, diffs, err := r.comparePods(records)
	if err != nil || len(found) == 0 {
		return err
	}
	if err := r.pace(ctx, found); err != nil {
		return err
	}
	var errs []error
	for _, rec := range records {
		damage := diffs[rec.Attachment.Sandbox]
		if len(damage) == 0 {
			continue
		}
		p := r.n.livePlan(rec)
		if !slices.ContainsFunc(damage, func(d datapath.Difference) bool { return d.Object == "link "+p.Veth.Host }) {
			p.Pod = plan.Side{}
		}
		errs = append(errs, r.change(ctx, rec, func() error { return r.n.apply(p) }))
	}
	return errors.Join(errs...)
}

// comparePods compares the node's side of attachments with the kernel.
func (r *repairer) comparePods(records []*record) (found []string, diffs map[string][]datapath.Difference, err error) {
	r.n.kernelMu.RLock()
	defer r.n.kernelMu.RUnlock()
	var plans []plan.Plan
	for _, rec := range records {
		plans = append(plans, r.n.plan(rec))
	}
	diffs, err = r.n.dp.VerifyNode(plans...)
	for _, rec := range records {
		if r.n.ledger.state(rec) != ipam.Bound { // it has ended meanwhile
			delete(diffs, rec.Attachment.Sandbox)
		}
		for _, d := range diffs[rec.Attachment.Sandbox] {
			found = append(found, d.String())
		}
	}
	return found, diffs, err
}

// change changes an attached pod's kernel objects, unless the pod has ended.
func (r *repairer) change(ctx context.Context, rec *record, change func() error) error {
	unlock, err := r.n.sandboxes.Lock(ctx, rec.Attachment.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if r.n.ledger.find(rec.owner()) != rec || r.n.ledger.state(rec) != ipam.Bound || gone(rec.Attachment.Netns) {
		return nil
	}
	if err := change(); err != nil {
		return fmt.Errorf("pod %v: %w", rec.Attachment.Pod, err)
	}
	return nil
}

// followMTU sets the MTU of running pods to that of new ones. Pods whose runtime has a network
// stack of its own keep theirs: it can't be changed there, and packets that are too long for the
// link would be lost without a word. This way the node tells them what the path lets pass.
func (r *repairer) followMTU(ctx context.Context) error {
	n := r.n
	uplink, err := n.dp.Uplink()
	if err != nil {
		return err
	}
	mtu := n.mtu(uplink)
	if uplink.Link == "" && mtu == uplink.MTU {
		return nil // it may be back in a moment
	}
	var errs []error
	changed := 0
	for _, rec := range n.ledger.all() {
		if n.ledger.state(rec) != ipam.Bound || n.ledger.mtu(rec) == mtu || rec.RuntimeManaged {
			continue
		}
		errs = append(errs, r.change(ctx, rec, func() error {
			p := n.plan(rec)
			if rec.External && datapath.Intercepted(p) {
				return nil
			}
			if err := n.ledger.setMTU(rec, mtu); err != nil {
				return err
			}
			changed++
			p.Veth.MTU, p.Pod = mtu, plan.Side{}
			return n.apply(p)
		}))
	}
	if changed > 0 {
		n.log.Info("network: the MTU of running pods has changed", "mtu", mtu, "pods", changed)
	}
	return errors.Join(errs...)
}
