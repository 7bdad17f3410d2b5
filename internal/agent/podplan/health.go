package podplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Verdict is the result of a probe after its thresholds, or of a hook.
type Verdict string

// The verdicts. Unknown means healthy for a container without the probe, and not yet healthy for a
// container with it.
const (
	Unknown Verdict = ""
	Healthy Verdict = "healthy"
	Failing Verdict = "failing"
)

// Health holds the verdicts on a run of a container.
type Health struct {
	Startup, Liveness, Readiness, PostStart Verdict
	// Message is that of the probe or hook that failed last.
	Message string
}

// MustStop reports whether the run has to be stopped.
func (h Health) MustStop() bool {
	return h.Startup == Failing || h.Liveness == Failing || h.PostStart == Failing
}

// ProbeProgress is the progress of one probe of a run: its verdict and the streak of equal results.
type ProbeProgress struct {
	Verdict Verdict
	streak  int32
	last    bool
}

// Add returns the progress after another result.
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

// NextProbe returns the next time of a probe that was due at due: one period later or, if the probe
// took longer, the next multiple of the period after now.
func NextProbe(spec *corev1.Probe, due, now time.Time) time.Time {
	period := time.Duration(spec.PeriodSeconds) * time.Second
	if late := now.Sub(due); late > 0 {
		due = due.Add(late - late%period)
	}
	return due.Add(period)
}

// hasStarted reports whether a container has started up: the containers after it may start, and its
// other probes may run. One whose postStart hook failed never has.
func (v *view) hasStarted(c podContainer, run Container) bool {
	return run.State == ContainerRunning && !v.o.Starting[c.name] && run.Health.PostStart != Failing && (c.StartupProbe == nil || run.Health.Startup == Healthy)
}

// ready reports whether a run can serve requests.
func (v *view) ready(c podContainer, run Container) bool {
	return v.hasStarted(c, run) && (c.ReadinessProbe == nil || run.Health.Readiness == Healthy)
}

// stopUnhealthy stops containers that failed a probe or hook, and containers with an outdated
// image. They restart like after any other exit. Outdated containers that wouldn't restart keep
// running.
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
