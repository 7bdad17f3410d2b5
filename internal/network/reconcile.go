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
// anything is attached, and returns when it is done. It completes and repairs live attachments,
// releases all other leases, and removes the instance's objects in the kernel that belong to no
// attachment. An error of one attachment doesn't stop the others.
func (n *Network) Reconcile(ctx context.Context, live []pod.Attachment) error {
	alive := map[ipam.Owner]pod.Attachment{}
	for _, a := range live {
		alive[ownerOf(a)] = a
	}
	var keep, release []*record
	for _, r := range n.ledger.all() {
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
		p := n.plan(r)
		if live[r.owner()].RuntimeManaged {
			p.Pod = plan.Side{}
		}
		plans = append(plans, p)
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
