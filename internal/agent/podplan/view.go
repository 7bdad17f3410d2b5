package podplan

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/podspec"
)

// view indexes the spec and the observed state, and derives facts from them. It decides nothing.
type view struct {
	Spec
	o   Observed
	now time.Time
	// runs has the runs of each container by name, the newest first. Containers that never started
	// are in neverRan instead. They don't count as runs and are removed.
	runs     map[string][]Container
	neverRan map[string][]Container
	// formerSandboxes has the IDs of the sandboxes from before the pod was last told to run.
	formerSandboxes map[string]bool
	// current is the newest sandbox, or nil.
	current *Sandbox
}

func newView(s Spec, o Observed, now time.Time) *view {
	v := &view{Spec: s, o: o, now: now, runs: map[string][]Container{}, neverRan: map[string][]Container{}, formerSandboxes: map[string]bool{}}
	for _, c := range o.Containers {
		by := v.runs
		if c.State == ContainerCreated {
			by = v.neverRan
		}
		by[c.Name] = append(by[c.Name], c)
	}
	for _, runs := range v.runs {
		slices.SortFunc(runs, func(a, b Container) int { return int(b.Attempt) - int(a.Attempt) })
	}
	for i := range o.Sandboxes {
		v.formerSandboxes[o.Sandboxes[i].ID] = o.Sandboxes[i].Attempt < s.FirstAttempt
		if v.current == nil || o.Sandboxes[i].Attempt > v.current.Attempt {
			v.current = &o.Sandboxes[i]
		}
	}
	return v
}

// podContainer is a container in the pod's spec.
type podContainer struct {
	*corev1.Container
	name string
	// init tells that it is in spec.initContainers. If runsToCompletion is false it is a sidecar.
	init, runsToCompletion bool
	// ephemeral tells that it is an ephemeral container. It runs at most once and doesn't affect
	// the pod's outcome.
	ephemeral bool
}

// allContainers returns the containers in their start order, without ephemeral ones.
func (v *view) allContainers() []podContainer {
	var out []podContainer
	for i := range v.Pod.Spec.InitContainers {
		c := &v.Pod.Spec.InitContainers[i]
		out = append(out, podContainer{Container: c, name: c.Name, init: true, runsToCompletion: !podspec.IsSidecar(c)})
	}
	for i := range v.Pod.Spec.Containers {
		c := &v.Pod.Spec.Containers[i]
		out = append(out, podContainer{Container: c, name: c.Name})
	}
	return out
}

// ephemerals returns the ephemeral containers.
func (v *view) ephemerals() []podContainer {
	var out []podContainer
	for i := range v.Pod.Spec.EphemeralContainers {
		c := (*corev1.Container)(&v.Pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		out = append(out, podContainer{Container: c, name: c.Name, ephemeral: true})
	}
	return out
}

// newest returns the newest run of a container that counts, in any sandbox: since the pod was last
// told to run, and since a rule has last restarted all containers.
func (v *view) newest(name string) (Container, bool) {
	if runs := v.runs[name]; len(runs) > 0 && !v.formerSandboxes[runs[0].Sandbox] && runs[0].Attempt >= v.FirstRuns[name] {
		return runs[0], true
	}
	return Container{}, false
}

// inCurrentSandbox returns the newest run of a container if it is in the current sandbox.
func (v *view) inCurrentSandbox(name string) (Container, bool) {
	c, ok := v.newest(name)
	if !ok || v.current == nil || c.Sandbox != v.current.ID {
		return Container{}, false
	}
	return c, true
}

// live reports whether processes of the container may exist.
func live(c Container) bool { return c.State == ContainerRunning || c.State == ContainerUnknown }

// succeeded reports whether a container has exited with code 0.
func succeeded(c Container) bool { return c.State == ContainerExited && c.ExitCode == 0 }

// initialized reports whether initialization has completed in the current sandbox. It has if a
// regular container has run there, even if the records of the init containers are gone.
func (v *view) initialized() bool {
	done := true
	for _, c := range v.allContainers() {
		run, ok := v.inCurrentSandbox(c.name)
		switch {
		case !c.init && ok:
			return true
		case c.runsToCompletion:
			done = done && ok && succeeded(run)
		case c.init:
			done = done && ok && v.hasStarted(c, run)
		}
	}
	return done
}

// finalStartFailure returns the failure to execute a container's program. ok tells that the failure
// is final, like a failed run that doesn't restart, and for ephemeral containers.
func (v *view) finalStartFailure(name string) (f Failure, ok bool) {
	_, ran := v.newest(name)
	f = v.o.StartFailures[name]
	final := !v.shouldRestart(Container{Name: name, State: ContainerExited, ExitCode: f.ExitCode}) ||
		slices.ContainsFunc(v.Pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name })
	return f, !ran && f.ExitCode != 0 && final
}

// shouldStart reports whether a regular container should start. In a replaced sandbox, containers
// that have completed don't run again. here tells that run is in the current sandbox.
func (v *view) shouldStart(c podContainer, run Container, here bool) bool {
	if !here {
		before, ok := v.newest(c.name)
		_, refused := v.finalStartFailure(c.name)
		return !refused && (!ok || v.shouldRestart(before))
	}
	switch run.State {
	case ContainerRunning:
		return false
	case ContainerExited:
		return v.shouldRestart(run)
	}
	return true // its state is unknown: it is stopped first
}

// outcome is how a pod has ended. Some of its containers may still have to be stopped.
type outcome struct {
	phase           Phase
	reason, message string
	at              time.Time
}

// containersOutcome returns the outcome that follows from the containers' exits, or nil.
func (v *view) containersOutcome() *outcome {
	if !v.initialized() {
		for _, c := range v.allContainers() {
			if run, ok := v.newest(c.name); c.runsToCompletion && ok && run.State == ContainerExited && run.ExitCode != 0 && !v.shouldRestart(run) {
				return &outcome{PhaseFailed, "", "init container " + c.name + " failed", run.Finished}
			}
			if f, refused := v.finalStartFailure(c.name); c.init && refused {
				return &outcome{PhaseFailed, "", "init container " + c.name + " failed", f.At}
			}
		}
	}
	out := &outcome{phase: PhaseSucceeded}
	for i := range v.Pod.Spec.Containers {
		name := v.Pod.Spec.Containers[i].Name
		run, ok := v.newest(name)
		if f, refused := v.finalStartFailure(name); refused && !v.o.Starting[name] {
			run, ok = Container{State: ContainerExited, ExitCode: f.ExitCode, Finished: f.At}, true
		}
		if !ok && v.sandboxForbidden() && v.policyOf(&v.Pod.Spec.Containers[i]) == corev1.RestartPolicyNever {
			out.phase, out.message = PhaseFailed, "its sandbox was lost before all containers had started"
			continue
		}
		if !ok || run.State != ContainerExited || v.shouldRestart(run) || v.o.Starting[name] {
			return nil
		}
		if run.ExitCode != 0 {
			out.phase = PhaseFailed
		}
		if run.Finished.After(out.at) {
			out.at = run.Finished
		}
	}
	return out
}

// sandboxForbidden reports whether the pod can't get another sandbox: with restartPolicy Never,
// containers that have run don't run again in a new one.
func (v *view) sandboxForbidden() bool {
	ran := func(c corev1.Container) bool { _, ok := v.newest(c.Name); return ok }
	return v.Pod.Spec.RestartPolicy == corev1.RestartPolicyNever &&
		(slices.ContainsFunc(v.Pod.Spec.InitContainers, ran) || slices.ContainsFunc(v.Pod.Spec.Containers, ran)) &&
		v.Want == Run && !v.o.Creating && !v.sandboxUsable() && len(v.o.Sandboxes) > 0
}

// sandboxUsable reports whether containers can start in the current sandbox. A sandbox without an
// address never gets one.
func (v *view) sandboxUsable() bool {
	return v.current != nil && v.current.State == SandboxReady && !v.formerSandboxes[v.current.ID] && (v.Pod.Spec.HostNetwork || len(v.current.IPs) > 0)
}
