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

// The shortest and the longest pause between retries of a debt.
const (
	firstPause = time.Second
	lastPause  = 5 * time.Minute
)

// parallelRetries is how many debts are retried concurrently.
const parallelRetries = 8

// pause returns how long to wait after the given number of tries.
func pause(tries int) time.Duration {
	return min(firstPause<<min(tries-1, 16), lastPause)
}

// Reconcile adopts the recorded attachments of live sandboxes and makes all others debts.
// It kills plugins that an earlier huskd left running. Call it at start, before Attach.
// It starts background work that lasts until Close: retrying debts, running GC, and
// checking the adopted attachments once.
func (h *Host) Reconcile(ctx context.Context, live []pod.Attachment) error {
	alive := map[string]bool{}
	for _, a := range live {
		alive[a.Sandbox] = true
	}
	interrupted := []string{h.plugins.gcMark()}
	var known []string // sandboxes with CNI attachments
	var adopted []*record
	h.mu.Lock()
	for k, r := range h.attachments {
		known = append(known, r.Attachment.Sandbox)
		interrupted = append(interrupted, h.plugins.markOf(r)) // CHECK may run for one that is attached
		if r.State == attached && alive[r.Attachment.Sandbox] {
			adopted = append(adopted, r)
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
	if h.watch != nil || len(known) > 0 {
		bounded, cancel := context.WithTimeout(ctx, queryTimeout)
		errs = append(errs, process.Kill(bounded, markVar, func(value string) bool {
			query := strings.HasPrefix(value, h.plugins.queryMarks()) && value != h.plugins.queryMark()
			return query || slices.Contains(interrupted, value)
		}))
		cancel()
	}
	var builtin []pod.Attachment
	for _, a := range live {
		if !slices.Contains(known, a.Sandbox) {
			builtin = append(builtin, a)
		}
	}
	errs = append(errs, h.retained.sweep(func(sandbox string) bool { return len(h.of(sandbox)) > 0 }), h.cfg.Builtin.Reconcile(ctx, builtin))
	h.background.Go(h.retryDebts)
	h.background.Go(func() { h.checkAdopted(adopted) })
	h.background.Go(h.runGC)
	return joinLine(errs)
}

// retryDebts retries debts, each with growing pauses.
func (h *Host) retryDebts() {
	for h.closing.Err() == nil {
		now := time.Now()
		due := slices.DeleteFunc(h.debts(), func(r *record) bool { return r.retryAt.After(now) })
		_ = h.retryAll(h.closing, due)
		next := time.Now().Add(lastPause)
		for _, r := range h.debts() {
			next = earlier(next, r.retryAt)
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

// Retry retries all debts now and returns the errors.
func (h *Host) Retry(ctx context.Context) error { return h.retryAll(ctx, h.debts()) }

func (h *Host) retryAll(ctx context.Context, debts []*record) error {
	var retries errgroup.Group
	retries.SetLimit(parallelRetries)
	errs := make([]error, len(debts))
	for i, r := range debts {
		retries.Go(func() error {
			if errs[i] = h.retry(ctx, r.key()); errs[i] != nil && ctx.Err() == nil {
				h.cfg.Log.Warn("cni: DEL failed again and is still owed", "pod", r.Attachment.Pod, "sandbox", pod.Short(r.Attachment.Sandbox), "interface", r.Attachment.IfName, "tries", r.Tries+1, "error", errs[i])
			}
			return nil
		})
	}
	_ = retries.Wait()
	return joinLine(errs)
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

// retry retries a debt, if it still is one.
func (h *Host) retry(ctx context.Context, k string) error {
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
	if err := h.del(ctx, r, h.cfg.Timeout); err != nil {
		return err
	}
	h.cfg.Log.Info("cni: the owed DEL succeeded", "pod", r.Attachment.Pod, "sandbox", pod.Short(r.Attachment.Sandbox), "interface", r.Attachment.IfName, "since", r.Since)
	return nil
}

// Check runs CHECK for the attachments of a sandbox.
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
	return joinLine(errs)
}

// checkAdopted runs CHECK for the attachments that Reconcile has adopted.
func (h *Host) checkAdopted(adopted []*record) {
	seen := map[string]bool{}
	for _, r := range adopted {
		sandbox := r.Attachment.Sandbox
		if seen[sandbox] || h.closing.Err() != nil {
			continue
		}
		seen[sandbox] = true
		if err := h.Check(h.closing, sandbox); err != nil && h.closing.Err() == nil {
			h.cfg.Log.Info("cni: CHECK of an attachment failed", "pod", r.Attachment.Pod, "sandbox", pod.Short(sandbox), "error", err)
		}
	}
}
