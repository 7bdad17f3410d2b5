package eviction

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// transition is how long a condition stays after its last threshold was crossed, so that it
// doesn't flap. It is the kubelet's default.
const transition = 5 * time.Minute

// Observation is how much there is of a signal's resource, in bytes or other units.
type Observation struct{ Available, Capacity int64 }

// Observations are those of one moment. Signals that couldn't be read are missing.
type Observations map[Signal]Observation

// crossed reports whether a threshold is crossed. If it is to be resolved, what it wants to reclaim
// must be available too.
func (o Observations) crossed(t Threshold, resolving bool) bool {
	seen, ok := o[t.Signal]
	limit := t.Limit.of(seen.Capacity)
	if resolving {
		limit += t.Reclaim.of(seen.Capacity)
	}
	return ok && seen.Available < limit
}

// Resolved reports whether no threshold is crossed and each has what it wants to reclaim.
func Resolved(thresholds []Threshold, o Observations) bool {
	return !slices.ContainsFunc(thresholds, func(t Threshold) bool { return o.crossed(t, true) })
}

// State is what the next decision needs of the former ones. The zero value is the start.
type State struct {
	// since has the crossed thresholds, and when each was first seen crossed.
	since map[Threshold]time.Time
	// acting has the thresholds whose grace period has passed.
	acting map[Threshold]bool
	// seen is when a condition was last seen.
	seen map[corev1.NodeConditionType]time.Time
}

// Verdict is what the observations of a moment mean.
type Verdict struct {
	// Conditions are the pressures that the node is under, sorted.
	Conditions []corev1.NodeConditionType
	// Reclaim are the thresholds for which something must be reclaimed now, the most urgent one
	// first. It is empty if nothing has to be.
	Reclaim []Threshold
}

// Observe returns the state and the verdict that follow from observations. A soft threshold demands
// to reclaim something once it has been crossed for its grace period.
func (s State) Observe(thresholds []Threshold, o Observations, now time.Time) (State, Verdict) {
	next := State{since: map[Threshold]time.Time{}, acting: map[Threshold]bool{}, seen: maps.Clone(s.seen)}
	if next.seen == nil {
		next.seen = map[corev1.NodeConditionType]time.Time{}
	}
	var v Verdict
	for _, t := range thresholds {
		if !o.crossed(t, s.acting[t]) {
			continue
		}
		next.since[t] = now
		if first, ok := s.since[t]; ok {
			next.since[t] = first
		}
		next.seen[signals[t.Signal].condition] = now
		if now.Sub(next.since[t]) >= t.Grace {
			next.acting[t] = true
			v.Reclaim = append(v.Reclaim, t)
		}
	}
	for condition, at := range next.seen {
		if now.Sub(at) < transition {
			v.Conditions = append(v.Conditions, condition)
		}
	}
	slices.Sort(v.Conditions)
	// Memory comes first, since its lack does the most harm.
	slices.SortStableFunc(v.Reclaim, func(a, b Threshold) int { return cmp.Compare(urgency(a), urgency(b)) })
	return next, v
}

func urgency(t Threshold) int {
	if t.OnDisk() || t.Signal == PIDAvailable {
		return 1
	}
	return 0
}

// OnDisk reports whether unused images can be removed to resolve the threshold.
func (t Threshold) OnDisk() bool { return signals[t.Signal].condition == corev1.NodeDiskPressure }
