package podplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Verdict is what a probe, or a hook, has found of a container.
type Verdict string

// The verdicts. One that is not known counts for a container without that
// probe, and against one that has it.
const (
	Unknown Verdict = ""
	Healthy Verdict = "healthy"
	Failing Verdict = "failing"
)

// Health is what the probes of a container's run have found, and how its
// postStart hook ended.
type Health struct {
	Startup, Liveness, Readiness, PostStart Verdict
	// Message is what the last probe that failed, or the hook, said.
	Message string
}

// MustStop says that the run is to be stopped.
func (h Health) MustStop() bool {
	return h.Startup == Failing || h.Liveness == Failing || h.PostStart == Failing
}

// ProbeProgress is the course of one probe of a run: its verdict and the results in
// a row that speak against it.
type ProbeProgress struct {
	Verdict Verdict
	streak  int32
	last    bool
}

// Add returns the course after another result.
func (p ProbeProgress) Add(spec *corev1.Probe, success bool) ProbeProgress {
	if success != p.last {
		p.streak = 0
	}
	p.last, p.streak = success, p.streak+1
	switch {
	case success && p.streak >= spec.SuccessThreshold:
		p.Verdict = Healthy
	case !success && p.streak >= spec.FailureThreshold:
		p.Verdict = Failing
	}
	return p
}

// NextProbe is when a probe that was due at that moment is due again: a period
// later or, if it took longer than that, at the next multiple.
func NextProbe(spec *corev1.Probe, due, now time.Time) time.Time {
	period := time.Duration(spec.PeriodSeconds) * time.Second
	if late := now.Sub(due); late > 0 {
		due = due.Add(late - late%period)
	}
	return due.Add(period)
}

// hasStarted says whether what comes after a container may start, and its other
// probes begin.
func (v *view) hasStarted(c podContainer, run Container) bool {
	return run.State == ContainerRunning && !v.o.Starting[c.name] && (c.StartupProbe == nil || run.Health.Startup == Healthy)
}

// ready says whether a run can serve.
func (v *view) ready(c podContainer, run Container) bool {
	return v.hasStarted(c, run) && (c.ReadinessProbe == nil || run.Health.Readiness == Healthy)
}

// stopUnhealthy stops the containers that are not healthy, and those that run an
// image that the pod no longer has; what becomes of them then is as after any
// other end. One that is never started again is left to run as it is.
func (p *planner) stopUnhealthy() {
	for _, c := range p.allContainers() {
		run, ok := p.inCurrentSandbox(c.name)
		if !ok || run.State != ContainerRunning || !run.Health.MustStop() && !(run.Outdated && p.shouldRestart(run)) {
			continue
		}
		grace := p.grace()
		for _, probe := range []struct {
			*corev1.Probe
			failing bool
		}{{c.StartupProbe, run.Health.Startup == Failing}, {c.LivenessProbe, run.Health.Liveness == Failing}} {
			if probe.failing && probe.Probe != nil && probe.TerminationGracePeriodSeconds != nil {
				grace = time.Duration(*probe.TerminationGracePeriodSeconds) * time.Second
			}
		}
		p.stopWithin(run, p.now, grace)
	}
}
