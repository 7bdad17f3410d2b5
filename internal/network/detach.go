package network

import (
	"context"
	"fmt"

	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/pod"
)

// Detach ends the traffic of a sandbox's interface at once and lets the reaper
// do the rest. What isn't attached is no error: it may be unknown, detached
// before, or of before a boot; the namespace may be gone. What fails in the
// kernel is owed and tried again: see Usage.
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

// detach cuts a record off and hands it to the reaper.
func (n *Network) detach(r *record) error {
	if err := n.ledger.release(r); err != nil {
		return err
	}
	n.kernelMu.RLock()
	err := n.dp.Cut(n.plan(r))
	n.kernelMu.RUnlock()
	if err != nil {
		n.log.Warn("network: detach is owed", "pod", r.Attachment.Pod, "sandbox", pod.Short(r.Attachment.Sandbox), "error", err)
	}
	crashpoint.Hit("network.cut")
	n.reaper.add(r, err)
	return nil
}
