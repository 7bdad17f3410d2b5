package agent

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/remedy"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// record is what the journal keeps of a pod. It outlives a reboot.
type record struct {
	// Pod is what runs.
	Pod *corev1.Pod `json:"pod"`
	// Desired is the pod as it is declared, if Pod lacks resources that don't fit on the node.
	Desired *corev1.Pod      `json:"desired,omitempty"`
	Objects manifest.Objects `json:"objects,omitempty"` // that the pod references
	Source  string           `json:"source"`
	Want    podplan.Want     `json:"want"`
	// Started is when the pod was last told to run, Since when its stop or removal was asked for.
	Started time.Time      `json:"started"`
	Since   time.Time      `json:"since,omitzero"`
	Grace   *time.Duration `json:"grace,omitempty"`
	// First is the first sandbox attempt since the pod was last told to run.
	First uint32 `json:"first,omitempty"`
	// FirstRuns is the first attempt of each container since a rule has last restarted all.
	FirstRuns map[string]uint32 `json:"firstRuns,omitempty"`
	// Resize says that running containers may not have the limits of the last resize yet.
	Resize bool `json:"resize,omitempty"`
	// Evicted is set from an eviction until the pod is told to run again.
	Evicted *podplan.Eviction `json:"evicted,omitempty"`
	// Refused holds the ephemeral containers whose program can't be started.
	Refused map[string]podplan.Failure `json:"refused,omitempty"`
}

// anchor gives the times of a record that was read now a reading of the monotonic clock, so that
// setting the clock later doesn't change how long ago they were. A time in the future becomes now:
// the clock was set back.
func (rec *record) anchor(now time.Time) {
	past := func(t time.Time) time.Time {
		if t.IsZero() {
			return t
		}
		return now.Add(min(t.Sub(now), 0))
	}
	rec.Started, rec.Since = past(rec.Started), past(rec.Since)
	if rec.Evicted != nil {
		e := *rec.Evicted
		e.At = past(e.At)
		rec.Evicted = &e
	}
}

// declared returns the pod as it is declared, whether its resources fit or not.
func (rec record) declared() *corev1.Pod {
	if rec.Desired != nil {
		return rec.Desired
	}
	return rec.Pod
}

// from says for whom messages about the pod are.
func (rec record) from() remedy.Source {
	if strings.HasPrefix(rec.Source, string(source.API)) {
		return remedy.Cluster
	}
	return remedy.Manifest
}

// podState is what a worker and its parts share: the pod's record, the lock that guards it, and
// ways to report what happens to the pod.
type podState struct {
	a *Agent
	// manifest is the pod as it was first applied. Only what can't change is read from it.
	manifest *corev1.Pod
	wake     chan struct{} // of capacity 1: nudges add up to one

	// Invariant: mu guards the fields below, and those of the worker and its parts.
	mu  sync.Mutex
	rec record
	// drained replaces a record that wants the pod to run, while huskd shuts down.
	drained *record
	// startCtx is canceled when the pod should no longer be brought up. That aborts image pulls and
	// postStart hooks.
	startCtx     context.Context
	cancelStarts context.CancelFunc
}

func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

func (s *podState) name() string { return nameOf(s.manifest) }
func (s *podState) uid() string  { return string(s.manifest.UID) }

// nudge makes the worker decide again.
func (s *podState) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *podState) record() record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rec
}

// save replaces the record, first in the journal. put is the journal's Put or PutUsingReserve. The
// caller holds s.mu.
func (s *podState) save(put func(string, record) error, rec record) error {
	if err := put(s.uid(), rec); err != nil {
		return fmt.Errorf("pod %s: %w", s.name(), err)
	}
	s.rec = rec
	return nil
}

// spec returns what podplan should aim for. The caller holds s.mu.
func (s *podState) spec() podplan.Spec {
	rec := s.rec
	if s.drained != nil && rec.Want == podplan.Run {
		rec = *s.drained
	}
	return podplan.Spec{Pod: rec.Pod, Want: rec.Want, Started: rec.Started, Since: rec.Since, Grace: rec.Grace, FirstAttempt: rec.First, FirstRuns: rec.FirstRuns, Source: rec.from(), Evicted: rec.Evicted}
}

// normalEvent adds an event about a container, or about the pod if container is empty.
func (s *podState) normalEvent(container, reason, message string) {
	s.a.Events.Add(event.Event{Pod: s.name(), UID: s.uid(), Container: container, Reason: reason, Message: message})
}

// warningEvent adds a warning about a container, or about the pod if container is empty.
func (s *podState) warningEvent(container, reason, message string) {
	s.a.Events.Add(event.Event{Pod: s.name(), UID: s.uid(), Container: container, Warning: true, Reason: reason, Message: message})
}

// warn logs an error with the pod and, if the error knows them, the sandbox and the stage.
func (s *podState) warn(text string, err error, more ...any) {
	line := append([]any{"pod", s.name()}, pod.LogAttrs(err)...)
	s.a.cfg.Log.Warn(text, append(append(line, more...), "error", err)...)
}

// span starts a trace span of the pod. The attributes are names and values in turn.
func (s *podState) span(ctx context.Context, name string, attributes ...string) (context.Context, func(error)) {
	if s.a.cfg.Begin == nil {
		return ctx, func(error) {}
	}
	return s.a.cfg.Begin(ctx, name, append(attributes,
		trace.PodNamespace, s.manifest.Namespace, trace.PodName, s.manifest.Name, trace.PodUID, s.uid())...)
}
