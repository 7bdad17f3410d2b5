package cni

import (
	"context"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/cni/process"
	"github.com/huskd/husk/internal/pod"
)

// The pauses between tries to pay a debt.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// sideBySide is how many debts are paid at once.
const sideBySide = 8

// pause is how long to wait after so many tries.
func pause(tries int) time.Duration {
	return min(firstPause<<min(tries-1, 16), lastPause)
}

// Reconcile takes up, at start and before anything is attached, what is
// recorded: plugins that a former huskd had running are ended, and what isn't
// of a live attachment is owed. Debts are paid, GC is run and live attachments
// are checked from then on in the background, until Close.
func (h *Host) Reconcile(ctx context.Context, live []pod.Attachment) error {
	alive := map[string]bool{}
	for _, a := range live {
		alive[a.Sandbox] = true
	}
	interrupted := []string{h.plugins.gcMark()}
	var foreign []string // sandboxes
	var kept []*record
	h.mu.Lock()
	for k, r := range h.attachments {
		foreign = append(foreign, r.Attachment.Sandbox)
		interrupted = append(interrupted, h.plugins.markOf(r)) // of one that is attached, a CHECK
		if r.State == attached && alive[r.Attachment.Sandbox] {
			kept = append(kept, r)
			continue
		}
		debt := *r
		debt.State = deleting
		if debt.Since.IsZero() {
			debt.Since = time.Now()
		}
		h.attachments[k] = &debt
	}
	h.mu.Unlock()
	errs := []error{}
	if h.watch != nil || len(foreign) > 0 {
		bounded, cancel := context.WithTimeout(ctx, askTime)
		errs = append(errs, process.End(bounded, mark, func(value string) bool {
			asked := strings.HasPrefix(value, h.plugins.askMarks()) && value != h.plugins.askMark()
			return asked || slices.Contains(interrupted, value)
		}))
		cancel()
	}
	var builtin []pod.Attachment
	for _, a := range live {
		if !slices.Contains(foreign, a.Sandbox) {
			builtin = append(builtin, a)
		}
	}
	errs = append(errs, h.retained.sweep(func(sandbox string) bool { return len(h.of(sandbox)) > 0 }), h.cfg.Builtin.Reconcile(ctx, builtin))
	h.background.Go(h.payDebts)
	h.background.Go(func() { h.examine(kept) })
	h.background.Go(h.collect)
	return lines(errs)
}

// payDebts pays what is owed, each debt after a pause that grows.
func (h *Host) payDebts() {
	for h.closing.Err() == nil {
		now := time.Now()
		due := slices.DeleteFunc(h.debts(), func(r *record) bool { return r.next.After(now) })
		_ = h.settleAll(h.closing, due) // or the next time
		next := time.Now().Add(lastPause)
		for _, r := range h.debts() {
			next = earlier(next, r.next)
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-h.closing.Done():
		case <-h.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// Retry tries to pay all debts now, and returns what is in the way.
func (h *Host) Retry(ctx context.Context) error { return h.settleAll(ctx, h.debts()) }

func (h *Host) settleAll(ctx context.Context, debts []*record) error {
	var paying errgroup.Group
	paying.SetLimit(sideBySide)
	errs := make([]error, len(debts))
	for i, r := range debts {
		paying.Go(func() error {
			if errs[i] = h.settle(ctx, r.key()); errs[i] != nil && ctx.Err() == nil {
				h.cfg.Log.Warn("cni: a detach is still owed", "pod", r.Attachment.Pod, "sandbox", pod.Short(r.Attachment.Sandbox), "interface", r.Attachment.IfName, "tries", r.Tries+1, "error", errs[i])
			}
			return nil
		})
	}
	_ = paying.Wait()
	return lines(errs)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func (h *Host) debts() []*record {
	h.mu.Lock()
	defer h.mu.Unlock()
	var list []*record
	for _, r := range h.attachments {
		if r.State == deleting {
			list = append(list, r)
		}
	}
	slices.SortFunc(list, func(a, b *record) int { return a.Since.Compare(b.Since) })
	return list
}

// settle pays one debt, if it is one still.
func (h *Host) settle(ctx context.Context, k string) error {
	r := h.find(k)
	if r == nil {
		return nil
	}
	leave, err := h.enter(ctx, r.Attachment.Sandbox)
	if err != nil {
		return err
	}
	defer leave()
	if r = h.find(k); r == nil || r.State != deleting {
		return nil
	}
	if err := h.pay(ctx, r, h.cfg.Timeout); err != nil {
		return err
	}
	h.cfg.Log.Info("cni: what was owed is detached", "pod", r.Attachment.Pod, "sandbox", pod.Short(r.Attachment.Sandbox), "interface", r.Attachment.IfName, "since", r.Since)
	return nil
}

// Check asks the plugins of a sandbox's networks whether its attachments are
// as they were made.
func (h *Host) Check(ctx context.Context, sandbox string) error {
	leave, err := h.enter(ctx, sandbox)
	if err != nil {
		return err
	}
	defer leave()
	var errs []error
	for _, r := range slices.Backward(h.of(sandbox)) {
		if r.State != attached {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, h.cfg.Timeout)
		errs = append(errs, h.plugins.check(bounded, r))
		cancel()
	}
	return lines(errs)
}

// examine checks the attachments that were found at start.
func (h *Host) examine(kept []*record) {
	seen := map[string]bool{}
	for _, r := range kept {
		sandbox := r.Attachment.Sandbox
		if seen[sandbox] || h.closing.Err() != nil {
			continue
		}
		seen[sandbox] = true
		if err := h.Check(h.closing, sandbox); err != nil && h.closing.Err() == nil {
			h.cfg.Log.Info("cni: CHECK says that an attachment isn't as it was made", "pod", r.Attachment.Pod, "sandbox", pod.Short(sandbox), "error", err)
		}
	}
}
