package podplan

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// probed adds all three probes to the containers that can have them, and sets the health of runs by
// their ID.
func probed(health map[string]Health) func(*Spec, *Observed) {
	return func(s *Spec, o *Observed) {
		give := func(c *corev1.Container) {
			c.StartupProbe, c.LivenessProbe, c.ReadinessProbe = &corev1.Probe{}, &corev1.Probe{}, &corev1.Probe{}
			c.LivenessProbe.TerminationGracePeriodSeconds = new(int64(7))
		}
		for i := range s.Pod.Spec.InitContainers {
			if c := &s.Pod.Spec.InitContainers[i]; c.RestartPolicy != nil {
				give(c)
			}
		}
		for i := range s.Pod.Spec.Containers {
			give(&s.Pod.Spec.Containers[i])
		}
		for i := range o.Containers {
			o.Containers[i].Health = health[o.Containers[i].ID]
		}
	}
}

// hookFailed has the postStart hooks of runs failed, by their ID.
func hookFailed(ids ...string) func(*Spec, *Observed) {
	return func(_ *Spec, o *Observed) {
		for i := range o.Containers {
			if slices.Contains(ids, o.Containers[i].ID) {
				o.Containers[i].Health = Health{PostStart: Failing, Message: "postStart hook failed: why"}
			}
		}
	}
}

func TestHealth(t *testing.T) {
	t.Parallel()
	up := Health{Startup: Healthy, Readiness: Healthy}
	for _, c := range []planCase{
		{name: "no verdicts", containers: "a", observed: "sb0 a.0:run", change: probed(nil), status: "Running a=Running"},
		{name: "started, not ready", containers: "a", observed: "sb0 a.0:run", change: probed(map[string]Health{"a.0": {Startup: Healthy}}), status: "Running a=Running"},
		{name: "ready before it has started", containers: "a", observed: "sb0 a.0:run", change: probed(map[string]Health{"a.0": {Readiness: Healthy}}), status: "Running a=Running"},
		{name: "ready", containers: "a", observed: "sb0 a.0:run", change: probed(map[string]Health{"a.0": up}), status: "Running ready a=Running"},
		{name: "one of two is ready", containers: "a b", observed: "sb0 a.0:run b.0:run", change: probed(map[string]Health{"a.0": up}), status: "Running a=Running b=Running"},
		{name: "no longer ready", containers: "a", observed: "sb0 a.0:run", change: probed(map[string]Health{"a.0": {Startup: Healthy, Readiness: Failing}}), status: "Running a=Running"},

		{name: "startup failed", containers: "a", observed: "sb0 a.0:run", change: probed(map[string]Health{"a.0": {Startup: Failing}}), actions: "stop:a.0/30s", status: "Running a=Running"},
		{name: "liveness failed, with the probe's grace period", containers: "a b", observed: "sb0 a.0:run b.0:run", change: probed(map[string]Health{"a.0": {Startup: Healthy, Readiness: Healthy, Liveness: Failing}, "b.0": up}), actions: "stop:a.0/7s"},
		{name: "hook failed", containers: "a", observed: "sb0 a.0:run", change: hookFailed("a.0"), actions: "stop:a.0/30s", status: "Running(PostStartHookError) a=Waiting/PostStartHookError"},
		{name: "hook failed beside others", containers: "a b", observed: "sb0 a.0:run b.0:run", change: hookFailed("b.0"), actions: "stop:b.0/30s", status: "Running(PostStartHookError) a=Running b=Waiting/PostStartHookError"},
		{name: "hook failed, exited", containers: "a", observed: "sb0 a.0:exit=0@5", now: 5, change: hookFailed("a.0"), actions: "start:a.1@sb0", status: "Running(Completed) a=Terminated/Completed"},
		{name: "hook failed twice", containers: "a", observed: "sb0 a.0:exit=0@1 a.1:exit=0@5", now: 5, next: 15, change: hookFailed("a.0", "a.1"), status: "Running(CrashLoopBackOff) a=Waiting/CrashLoopBackOff"},
		{name: "containers don't start after a sidecar whose hook failed", containers: "s:p a", observed: "sb0 p.0:run", change: hookFailed("p.0"), actions: "stop:p.0/30s",
			status: "Pending(Init:PostStartHookError) p=Waiting/PostStartHookError a=Waiting/PodInitializing"},
		{name: "liveness failed, exited", containers: "a", observed: "sb0 a.0:exit=0@5", now: 5, change: probed(map[string]Health{"a.0": {Liveness: Failing}}), actions: "start:a.1@sb0"},
		{name: "liveness failed, exited, OnFailure", policy: "OnFailure", containers: "a", observed: "sb0 a.0:exit=0@5", now: 5, change: probed(map[string]Health{"a.0": {Liveness: Failing}}), actions: "start:a.1@sb0"},
		{name: "liveness failed, exited, Never", policy: "Never", containers: "a", observed: "sb0 a.0:exit=143@5", now: 5, change: probed(map[string]Health{"a.0": {Liveness: Failing}}), actions: "stop:sb0"},
		{name: "a container in an unknown state is stopped once", containers: "a", observed: "sb0 a.0:unknown", change: probed(map[string]Health{"a.0": {Liveness: Failing}}), actions: "stop:a.0/30s"},

		{name: "containers wait for a sidecar before them", containers: "s:p i:x a", observed: "sb0 p.0:run", change: probed(nil),
			status: "Pending(Init:0/2) p=Running x=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "and start after it has started up", containers: "s:p i:x a", observed: "sb0 p.0:run", change: probed(map[string]Health{"p.0": {Startup: Healthy}}), actions: "start:x.0@sb0",
			status: "Pending(Init:1/2) p=Running x=Waiting/PodInitializing a=Waiting/PodInitializing"},
		{name: "a sidecar that doesn't start up is stopped", containers: "s:p a", observed: "sb0 p.0:run", change: probed(map[string]Health{"p.0": {Startup: Failing}}), actions: "stop:p.0/30s"},
		{name: "a sidecar with a running hook", containers: "s:p a", observed: "sb0 p.0:run starting:p"},
		{name: "a sidecar that isn't ready", containers: "s:p a", observed: "sb0 p.0:run a.0:run", change: probed(map[string]Health{"p.0": {Startup: Healthy}, "a.0": up}), status: "Running p=Running a=Running"},
		{name: "a restarted sidecar doesn't affect running containers", containers: "s:p a", observed: "sb0 p.1:run a.0:run", change: probed(map[string]Health{"a.0": up}), status: "Running p=Running a=Running"},
	} {
		c.check(t)
	}
}

func TestStopOfTheDoomedIsNotRepeated(t *testing.T) {
	t.Parallel()
	planCase{name: "under way", containers: "a", observed: "sb0 a.0:run", now: 3, next: 9, change: func(s *Spec, o *Observed) {
		probed(map[string]Health{"a.0": {Startup: Healthy, Liveness: Failing}})(s, o)
		o.Containers[0].Deadline = at(9)
	}}.check(t)
	planCase{name: "cut short by a stop", containers: "a", observed: "sb0 a.0:run", now: 3, actions: "stop:a.0/2s", change: func(s *Spec, o *Observed) {
		probed(map[string]Health{"a.0": {Liveness: Failing}})(s, o)
		o.Containers[0].Deadline = at(9)
		grace := time.Second
		s.Want, s.Since, s.Grace = Stop, at(3), &grace
	}}.check(t)
}

func TestProbing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		success, failure int32
		results, want    string // a letter each: + and -, then verdicts
	}{
		{1, 3, "+", "h"},
		{1, 3, "--+--", "..hhh"},
		{1, 3, "---", "..f"},
		{1, 3, "+--+---+", "hhhhhhfh"},
		{2, 1, "+-++-+", ".ffhff"},
		{3, 2, "++-+++--", ".....hhf"},
		{1, 1, "-+-", "fhf"},
	} {
		spec := &corev1.Probe{SuccessThreshold: c.success, FailureThreshold: c.failure}
		var p ProbeProgress
		got := ""
		for _, r := range c.results {
			p = p.Add(spec, r == '+')
			got += map[Verdict]string{Unknown: ".", Healthy: "h", Failing: "f"}[p.Verdict]
		}
		if got != c.want {
			t.Errorf("%d/%d %s: %s, want %s", c.success, c.failure, c.results, got, c.want)
		}
	}
}

func TestNextProbe(t *testing.T) {
	t.Parallel()
	spec := &corev1.Probe{PeriodSeconds: 10}
	for _, c := range []struct{ due, now, want int }{{0, 0, 10}, {0, 9, 10}, {0, 10, 20}, {0, 35, 40}, {5, 4, 15}} {
		if got := NextProbe(spec, at(c.due), at(c.now)); got != at(c.want) {
			t.Errorf("due %d, now %d: %v", c.due, c.now, got.Sub(start))
		}
	}
}
