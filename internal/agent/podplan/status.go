package podplan

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Phase is the phase of a pod.
type Phase string

// The phases are those of Kubernetes, and Stopped for a pod that was told to stop.
const (
	PhasePending   Phase = "Pending"
	PhaseRunning   Phase = "Running"
	PhaseSucceeded Phase = "Succeeded"
	PhaseFailed    Phase = "Failed"
	PhaseStopped   Phase = "Stopped"
)

// Status is the status of a pod as it is shown to users.
type Status struct {
	Phase Phase
	// Reason is why the pod isn't running, as kubectl shows it (ImagePullBackOff, Init:0/2). It is
	// empty if there is no problem. Message explains it.
	Reason, Message string
	IPs             []string
	// SandboxReady tells that containers can be started in the pod's sandbox.
	SandboxReady bool
	// Initialized tells that the init containers have completed, Serving that all containers are
	// ready, and Ready that they are and the pod isn't being stopped.
	Initialized, Serving, Ready bool
	// Stuck tells that the pod won't start by waiting: Reason and Message say what to change.
	Stuck bool
	// Containers in their start order.
	Containers []ContainerStatus
	// Ephemeral are the ephemeral containers.
	Ephemeral []ContainerStatus
}

// Display is the state of a container as Kubernetes shows it.
type Display string

// The displayed states of a container.
const (
	Waiting    Display = "Waiting"
	Running    Display = "Running"
	Terminated Display = "Terminated"
)

// ContainerStatus is the status of a container of the pod.
type ContainerStatus struct {
	Name, Image string
	// ID of its newest run; empty before there is one.
	ID    string
	Init  bool
	State Display
	// Reason is why the container waits (CrashLoopBackOff), or how it ended.
	Reason, Message string
	// Up tells that the container runs and its startup probe, if any, has succeeded. Ready tells
	// that it can serve requests.
	Up, Ready bool
	Health    Health // of its newest run
	Restarts  int
	// ExitCode, Started and Finished are those of the newest run, even while the container waits
	// for its next one.
	ExitCode          int
	Started, Finished time.Time
}

// The reasons of a container that is being brought up: nothing has failed.
const (
	ReasonCreating     = "ContainerCreating"
	ReasonInitializing = "PodInitializing"
)

// The other reasons why a container waits, and why it has ended.
const (
	reasonCrashLoop   = "CrashLoopBackOff"
	reasonStart       = "CreateContainerError"
	reasonStartError  = "StartError"
	reasonPull        = "ErrImagePull"
	reasonPullBackOff = "ImagePullBackOff"
	reasonNeverPull   = "ErrImageNeverPull"
	reasonImageName   = "InvalidImageName"
	reasonInspect     = "ImageInspectError"
	reasonCompleted   = "Completed"
	reasonError       = "Error"
	reasonOOM         = "OOMKilled"
	ReasonUnknown     = "ContainerStatusUnknown"
	reasonSandbox     = "CreatePodSandboxError"
	reasonPostStart   = "PostStartHookError"
)

// ReasonMount is the reason of a pod with a volume that can't be set up. As with a kubelet, the
// container is still being created then.
const ReasonMount = "FailedMount"

// ReasonDeadline is the reason of a pod that was active for longer than its activeDeadlineSeconds.
const ReasonDeadline = "DeadlineExceeded"

// ReasonPort is the reason of a failure to create a sandbox, because something else on the node has
// one of its host ports.
const ReasonPort = "PortInUse"

// ReasonAddress is the reason of a pod with an address that isn't this node's to give any more.
const ReasonAddress = "AddressLost"

// The reasons of a pod that was evicted: it used too much, or had to make way for a critical pod.
const (
	ReasonEvicted    = "Evicted"
	ReasonPreempting = "Preempting"
)

// exitKilled is the exit code of a process that was killed by SIGKILL.
const exitKilled = 137

// Initial returns the status of a pod before anything was found out about it: its containers wait,
// and nothing has failed.
func Initial(s Spec) Status {
	p := reporter{view: newView(s, Observed{}, time.Time{})}
	waiting := func(list []podContainer) (out []ContainerStatus) {
		for _, c := range list {
			out = append(out, ContainerStatus{Name: c.name, Image: c.Image, Init: c.init, State: Waiting, Reason: NotStartedReason(p.Pod)})
		}
		return out
	}
	return Status{Phase: PhasePending, Containers: waiting(p.allContainers()), Ephemeral: waiting(p.ephemerals())}
}

// reporter derives the status of a pod after the decision.
type reporter struct {
	*view
	backoffs Backoffs
	outcome  *outcome
}

func (p reporter) status() Status {
	out := Status{SandboxReady: p.sandboxUsable(), Initialized: p.initialized()}
	if p.current != nil {
		out.IPs = p.current.IPs
	}
	out.Serving = p.sandboxUsable() && p.outcome == nil && out.Initialized
	for _, c := range p.allContainers() {
		s := p.containerStatus(c, out.Initialized)
		out.Serving = out.Serving && (s.Ready || c.runsToCompletion)
		out.Containers = append(out.Containers, s)
	}
	out.Ready = out.Serving && p.Want == Run
	for _, c := range p.ephemerals() {
		s := p.containerStatus(c, true)
		s.Ready = false
		out.Ephemeral = append(out.Ephemeral, s)
	}
	out.Phase = p.phase(out.Initialized)
	out.Reason, out.Message = p.reason(out)
	out.Stuck = p.stuck(out)
	return out
}

// stuck reports whether something failed for good that the pod can't start without. It is tried
// again nevertheless, in case someone cures it.
func (p reporter) stuck(s Status) bool {
	if p.outcome != nil || p.Want != Run {
		return false
	}
	if !p.sandboxUsable() && !p.o.Creating && p.o.SandboxFailure.Final {
		return true
	}
	for i, c := range p.allContainers() {
		cs := s.Containers[i]
		reason, _ := p.imageReason(c)
		switch {
		case cs.State != Waiting:
		case reason == reasonNeverPull, reason == reasonImageName, reason != "" && p.o.Images[c.Image].Failure.Final:
			return true
		case reason == "" && p.o.StartFailures[c.name].Final && p.o.StartFailures[c.name].At.Equal(p.backoffs[keyContainer(c.name)].Last):
			return true
		}
	}
	return false
}

// phase returns the phase of the pod. A pod has ended when none of its containers run. It is
// stopped when its sandboxes are stopped too.
func (p reporter) phase(initialized bool) Phase {
	busy := p.o.Creating || len(p.o.Starting) > 0 || slices.ContainsFunc(p.o.Containers, live)
	switch {
	case p.outcome != nil && !busy:
		return p.outcome.phase
	case p.Want != Run && !busy && !slices.ContainsFunc(p.o.Sandboxes, func(s Sandbox) bool { return s.State != SandboxStopped }):
		return PhaseStopped
	case !initialized:
		return PhasePending
	}
	for i := range p.Pod.Spec.Containers {
		name := p.Pod.Spec.Containers[i].Name
		_, ran := p.newest(name)
		if _, refused := p.finalStartFailure(name); !ran && !refused {
			return PhasePending
		}
	}
	return PhaseRunning
}

// reason returns what kubectl shows for a pod: its outcome, or why the first container that doesn't
// run waits.
func (p reporter) reason(s Status) (reason, message string) {
	switch {
	case p.outcome != nil && (s.Phase == PhaseFailed || s.Phase == PhaseSucceeded):
		return cmp.Or(p.outcome.reason, p.endReason(s)), p.outcome.message
	case p.outcome != nil:
		return p.outcome.reason, p.outcome.message
	case s.Phase == PhaseStopped:
		return "", ""
	case p.Want != Run:
		return "Terminating", ""
	case !p.sandboxUsable() && !p.o.Creating && !p.o.SandboxFailure.At.IsZero() && !p.o.SandboxFailure.At.Before(p.backoffs[keySandbox].Last):
		return cmp.Or(p.o.SandboxFailure.Reason, reasonSandbox), p.o.SandboxFailure.Message
	}
	done := 0
	for i, c := range p.allContainers() {
		cs := s.Containers[i]
		switch {
		case cs.State == Running && (!c.runsToCompletion && cs.Up || s.Initialized), c.runsToCompletion && cs.State == Terminated && cs.ExitCode == 0:
			done++
		case cs.State == Waiting && cs.Reason != ReasonInitializing && cs.Reason != ReasonCreating,
			cs.State == Terminated && (p.shouldRestart(Container{Name: c.name, State: ContainerExited, ExitCode: cs.ExitCode}) || c.init):
			return initPrefix(c) + cs.Reason, cs.Message
		case cs.State == Waiting && p.mountFailed(c, cs):
			return initPrefix(c) + ReasonMount, cs.Message
		case c.init && !s.Initialized:
			return fmt.Sprintf("Init:%d/%d", done, len(p.Pod.Spec.InitContainers)), cs.Message
		case cs.State == Waiting:
			return cs.Reason, cs.Message
		}
	}
	if p.current != nil && p.current.State != SandboxStopped && p.current.Displaced != "" {
		return ReasonAddress, p.current.Displaced
	}
	return "", ""
}

// mountFailed reports whether a container waits for a volume that can't be set up.
func (p reporter) mountFailed(c podContainer, s ContainerStatus) bool {
	f := p.o.StartFailures[c.name]
	return f.Reason == ReasonMount && s.Message != "" && s.Message == f.Message
}

func initPrefix(c podContainer) string {
	if c.init {
		return "Init:"
	}
	return ""
}

// endReason returns the reason of the first container that failed, or Completed.
func (p reporter) endReason(s Status) string {
	for i, c := range p.allContainers() {
		if cs := s.Containers[i]; cs.State == Terminated && cs.ExitCode != 0 && (c.runsToCompletion || !c.init) {
			return initPrefix(c) + cs.Reason
		}
	}
	if s.Phase == PhaseFailed {
		return ReasonUnknown
	}
	return reasonCompleted
}

func (p reporter) containerStatus(c podContainer, initialized bool) ContainerStatus {
	out := ContainerStatus{Name: c.name, Image: c.Image, Init: c.init, State: Waiting}
	run, ok := p.newest(c.name)
	if ok {
		out.ID, out.Restarts, out.Health = run.ID, int(run.Attempt), run.Health
		out.ExitCode, out.Started, out.Finished = run.ExitCode, run.Started, run.Finished
	}
	if runs := p.runs[c.name]; !ok && len(runs) > 0 && runs[0].Attempt < p.FirstRuns[c.name] {
		out.Restarts = int(runs[0].Attempt)
	}
	if _, here := p.inCurrentSandbox(c.name); c.init && ok && !here && p.sandboxUsable() && p.Want == Run && p.outcome == nil {
		ok = false // it will run again in the new sandbox
	}
	if p.o.Starting[c.name] {
		out.Reason = NotStartedReason(p.Pod)
		return out
	}
	switch {
	case ok && run.State == ContainerRunning && run.Health.PostStart == Failing: // it is being stopped
		out.Reason, out.Message = reasonPostStart, run.Health.Message
		return out
	case ok && run.State == ContainerRunning:
		out.State, out.Up, out.Ready = Running, p.hasStarted(c, run), p.ready(c, run)
		if !out.Ready || run.Health.MustStop() {
			out.Message = run.Health.Message
		}
		return out
	case ok && run.State == ContainerUnknown:
		out.State, out.Reason = Running, ReasonUnknown
		return out
	case ok && run.State == ContainerExited:
		out.State, out.Reason, out.Message = Terminated, exitReason(run), exitMessage(run)
		out.Ready = c.runsToCompletion && run.ExitCode == 0
	}
	if f, refused := p.finalStartFailure(c.name); refused {
		out.State, out.Reason, out.Message = Terminated, reasonStartError, f.Message
		out.ExitCode, out.Finished = f.ExitCode, f.At
		return out
	}
	if p.Evicted != nil && !ok {
		out.State, out.Reason, out.Message = Terminated, ReasonUnknown, "its record was removed when the pod was evicted"
		out.ExitCode, out.Finished = exitKilled, p.Evicted.At
		return out
	}
	if reason, message := p.waitReason(c, run, ok, initialized); reason != "" {
		out.State, out.Reason, out.Message = Waiting, reason, message
	}
	return out
}

func exitReason(run Container) string {
	return cmp.Or(run.Reason, ExitReason(run.ExitCode, run.OOMKilled))
}

// exitMessage returns what a run left as its message or, without one, why its postStart hook
// failed.
func exitMessage(run Container) string {
	if run.Message == "" && run.Health.PostStart == Failing {
		return run.Health.Message
	}
	return run.Message
}

// ExitReason returns the reason of the end of a run for which the runtime gives none.
func ExitReason(code int, oomKilled bool) string {
	switch {
	case oomKilled:
		return reasonOOM
	case code == 0:
		return reasonCompleted
	}
	return reasonError
}

// waitReason returns why a container that doesn't run waits. The reason is empty if the container
// has ended for good or is about to restart.
func (p reporter) waitReason(c podContainer, run Container, ok, initialized bool) (reason, message string) {
	ended := ok && run.State == ContainerExited
	switch {
	case p.Want != Run || p.outcome != nil:
		if ended {
			return "", ""
		}
		return NotStartedReason(p.Pod), ""
	case c.runsToCompletion && ended && run.ExitCode == 0, !c.init && ended && !p.shouldRestart(run), c.ephemeral && ended:
		return "", ""
	case c.runsToCompletion && initialized:
		return "", ""
	case !c.init && !initialized && !ended:
		return NotStartedReason(p.Pod), ""
	}
	if reason, message := p.imageReason(c); reason != "" {
		return reason, message
	}
	key := keyContainer(c.name)
	b := p.backoffs[key]
	if delay := b.containerDelay(); delay > 0 && p.now.Before(b.Last.Add(delay)) {
		if f := p.o.StartFailures[c.name]; f.At.Equal(b.Last) {
			if f.Reason == ReasonMount {
				return NotStartedReason(p.Pod), f.Message
			}
			return cmp.Or(f.Reason, reasonStart), f.Message
		}
		message := fmt.Sprintf("back-off %s restarting failed container %s", delay, c.name)
		if last := exitMessage(run); ended && last != "" {
			message += ": " + last
		}
		return reasonCrashLoop, message
	}
	if ended {
		return "", ""
	}
	return NotStartedReason(p.Pod), ""
}

// NotStartedReason returns the reason of a container that hasn't started yet, without any failure.
// Like a kubelet's, it is the same for all containers of a pod.
func NotStartedReason(pod *corev1.Pod) string {
	if len(pod.Spec.InitContainers) > 0 {
		return ReasonInitializing
	}
	return ReasonCreating
}

// imageReason returns why a container's image isn't present. The reason is empty if nothing has
// failed.
func (p reporter) imageReason(c podContainer) (reason, message string) {
	image := p.o.Images[c.Image]
	key := keyImage(c.Image)
	b := p.backoffs[key]
	switch {
	case image.State == ImagePulling:
		return "", ""
	case image.State == ImageMisnamed:
		return reasonImageName, image.Problem
	case image.State == ImageUnclear:
		return reasonInspect, image.Problem
	case image.State == ImageDenied && c.ImagePullPolicy == corev1.PullNever:
		return reasonNeverPull, fmt.Sprintf("image %s was pulled with a login that the pod doesn't have, and imagePullPolicy is Never: add the Secret that has it to imagePullSecrets", c.Image)
	case image.State != ImagePresent && c.ImagePullPolicy == corev1.PullNever:
		return reasonNeverPull, fmt.Sprintf("image %s is not present, and imagePullPolicy is Never: %s", c.Image, p.Source.Image("imagePullPolicy"))
	case b.Count == 0 || image.State == ImagePresent && !image.alwaysPulled(c.ImagePullPolicy):
		return "", ""
	}
	failure := image.Failure
	if image.State == ImagePresent {
		failure.Message += "; to use the image that the node has without a pull, set imagePullPolicy: IfNotPresent"
	}
	switch {
	case failure.Reason != "":
		return failure.Reason, failure.Message
	case b.Count == 1:
		return reasonPull, failure.Message
	}
	return reasonPullBackOff, fmt.Sprintf("back-off %s pulling image %s: %s", b.imageDelay(), c.Image, failure.Message)
}
