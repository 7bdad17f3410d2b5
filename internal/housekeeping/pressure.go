package housekeeping

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/eviction"
)

// The times of Pressure are the kubelet's.
const (
	observeInterval = 10 * time.Second
	endTime         = 30 * time.Second // how long an evicted pod may take to end
	endInterval     = 500 * time.Millisecond
)

// Pressure evicts pods when the node runs short of memory, disk space or process IDs. Where unused
// images take the disk space, it removes these first. There are no dead containers to remove, as
// the kubelet does: a writable layer ends with its container.
type Pressure struct {
	Thresholds []eviction.Threshold
	// Observe reads how much of everything is available.
	Observe func() eviction.Observations
	// Candidates returns the running pods that may be evicted. It measures their disk usage only if
	// that matters.
	Candidates func(disk bool) []eviction.Candidate
	// Evict evicts a pod, and Ended reports whether it has ended since.
	Evict func(uid, message string) error
	Ended func(uid string) bool
	// RemoveImages removes all unused images.
	RemoveImages func(context.Context)
	Log          *slog.Logger

	state      eviction.State // only Run uses it
	conditions atomic.Pointer[[]corev1.NodeConditionType]
}

// Conditions returns the pressures that the node is under, sorted.
func (p *Pressure) Conditions() []corev1.NodeConditionType {
	if c := p.conditions.Load(); c != nil {
		return *c
	}
	return nil
}

// Run observes the node until ctx ends.
func (p *Pressure) Run(ctx context.Context) error {
	if len(p.Thresholds) == 0 {
		return nil
	}
	for {
		wait := time.Duration(observeInterval)
		if uid := p.relieve(ctx, time.Now()); uid != "" {
			p.awaitEnd(ctx, uid)
			wait = 0 // one pod may not be enough
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// relieve observes the node and reclaims what it lacks: it evicts at most one pod, whose UID it
// returns.
func (p *Pressure) relieve(ctx context.Context, now time.Time) (evicted string) {
	seen := p.Observe()
	next, verdict := p.state.Observe(p.Thresholds, seen, now)
	p.state = next
	p.conditions.Store(&verdict.Conditions)
	if len(verdict.Reclaim) == 0 {
		return ""
	}
	t := verdict.Reclaim[0]
	p.Log.Warn("housekeeping: the node runs short", "signal", t.Signal, "available", seen[t.Signal].Available, "of", seen[t.Signal].Capacity)
	if t.OnDisk() {
		p.RemoveImages(ctx)
		if seen = p.Observe(); eviction.Resolved(p.Thresholds, seen) {
			return ""
		}
	}
	candidates := p.Candidates(t.OnDisk())
	eviction.Rank(t, candidates)
	for _, c := range candidates {
		uid := string(c.Pod.UID)
		err := p.Evict(uid, eviction.Message(t, seen, c))
		if err == nil {
			return uid
		}
		p.Log.Error("housekeeping: pod not evicted", "pod", c.Pod.Namespace+"/"+c.Pod.Name, "error", err)
	}
	p.Log.Warn("housekeeping: no pod is left that may be evicted", "signal", t.Signal)
	return ""
}

// awaitEnd waits until an evicted pod has ended, as its resources are in use until then.
func (p *Pressure) awaitEnd(ctx context.Context, uid string) {
	deadline := time.After(endTime)
	for !p.Ended(uid) {
		select {
		case <-ctx.Done():
			return
		case <-deadline:
			return
		case <-time.After(endInterval):
		}
	}
}
