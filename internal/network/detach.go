package network

import (
	"context"
	"fmt"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/pod"
)

// Detach ends the traffic of a sandbox's interface at once and leaves the rest to the reaper. It is
// not an error if nothing is attached: the sandbox may be unknown, detached already, or from before
// a reboot, and its namespace may be gone. A failure in the kernel becomes a debt, see Usage, and
// is retried.
func (n *Network) Detach(ctx context.Context, a pod.Attachment) error {
	unlock, err := n.sandboxes.Lock(ctx, a.Sandbox)
	if err != nil {
		return fmt.Errorf("detach %v: %w", a.Pod, err)
	}
	defer unlock()
	r := n.ledger.find(ownerOf(a))
	if r == nil || n.reaper.has(r) {
		return nil
	}
	if err := n.detach(r); err != nil {
		return fmt.Errorf("detach %v: %w", r.Attachment.Pod, err)
	}
	return nil
}

// detach cuts off a record's traffic and hands the record to the reaper.
func (n *Network) detach(r *record) error {
	if err := n.ledger.release(r); err != nil {
		return err
	}
	n.kernelMu.RLock()
	err := n.dp.Cut(n.plan(r))
	n.kernelMu.RUnlock()
	n.cfg.Policy.Forget(r.Attachment)
	if err != nil {
		n.log.Warn("network: cutting off a pod failed and will be retried", "pod", r.Attachment.Pod, "sandbox", pod.Short(r.Attachment.Sandbox), "error", err)
	}
	crashpoint.Hit("network.cut")
	n.reaper.add(r, err)
	return nil
}
