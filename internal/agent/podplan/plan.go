// Package podplan decides what is to be done for a pod next. It is pure: what is
// wanted, what is there and the time go in, the actions that are due, the
// moment to look again and the pod's status come out. Whoever runs pods calls
// Plan after each change of what it sees, does what it says, and never decides
// anything itself.
//
// The rules are the kubelet's: init containers one after the other, sidecars
// before and beside them, restarts with backoff, a lost sandbox replaced by
// the next attempt, everything stopped in the reverse order.
//
// The actions of one decision don't depend on each other: they may be done at
// once and in any order, and each may fail. What depends on them is in a later
// decision. An action under way shows in what is observed, so that it is not
// asked for again.
package podplan

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// Want is what is to become of a pod.
type Want string

// The fates of a pod.
const (
	Run    Want = "run"
	Stop   Want = "stop"   // nothing of it runs; its records stay
	Remove Want = "remove" // nothing of it is left
)

// Spec is what is wanted.
type Spec struct {
	// Pod is valid and has its defaults, as from the manifest package.
	Pod  *corev1.Pod
	Want Want
	// Started is when the pod was first wanted: activeDeadlineSeconds counts
	// from it.
	Started time.Time
	// Since is when Stop or Remove was asked for: the grace counts from it.
	Since time.Time
	// Grace replaces the pod's own for Stop and Remove, if it is not nil.
	Grace *time.Duration
	// FirstAttempt is the first attempt at a sandbox since the pod was last told to
	// run. What ran in earlier ones was stopped, and tells nothing of the pod.
	FirstAttempt uint32
	// Evicted, if not nil, says that the pod has to go from the node at once.
	Evicted *Eviction
}

// Eviction is why a pod has failed, though its program may not have.
type Eviction struct {
	At      time.Time `json:"at"`
	Message string    `json:"message"`
	// Emptied says that its disk space was given back.
	Emptied bool `json:"emptied,omitempty"`
}

// EvictionBackoff is how long a pod that is begun anew after an eviction waits for that:
// it may fill the disk at once again.
const EvictionBackoff = time.Minute

// Observed is what is there.
type Observed struct {
	// Sandboxes and Containers of the pod, in any order, also those that
	// ended.
	Sandboxes  []Sandbox
	Containers []Container
	// Images by the name that the pod's containers have for them. One that is
	// not in the map is taken to be absent.
	Images map[string]Image
	// Creating says that a sandbox is being created. Starting has the names of
	// containers that are being started.
	Creating bool
	Starting map[string]bool
	// SandboxFailure is how the last creation of a sandbox failed, and
	// StartFailures how the last start of each container did. They may stay
	// after a success.
	SandboxFailure Failure
	StartFailures  map[string]Failure
	// Backoffs is the last decision's.
	Backoffs Backoffs
}

// SandboxState is how far a sandbox is.
type SandboxState string

// The states of a sandbox.
const (
	SandboxReady SandboxState = "ready"
	// SandboxLost is neither ready nor stopped: it may hold an address.
	SandboxLost     SandboxState = "lost"
	SandboxStopping SandboxState = "stopping"
	SandboxStopped  SandboxState = "stopped"
)

// Sandbox is one attempt at the pod's environment.
type Sandbox struct {
	ID      string
	Attempt uint32
	State   SandboxState
	IPs     []string
}

// ContainerState is how far a container is.
type ContainerState string

// The states of a container.
const (
	// ContainerCreated was left behind before its process began.
	ContainerCreated ContainerState = "created"
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited"
	// ContainerUnknown may run or not.
	ContainerUnknown ContainerState = "unknown"
)

// Container is one run of one of the pod's containers.
type Container struct {
	ID, Name string
	Sandbox  string // ID
	// Attempt counts the runs of the same name, over all sandboxes.
	Attempt uint32
	State   ContainerState
	// Started and Finished are zero before they happen.
	Started, Finished time.Time
	ExitCode          int
	OOMKilled         bool
	// Reason is the runtime's word for how it ended, Message says more.
	Reason, Message string
	// Deadline is when a stop that is under way will kill it; zero if none is.
	Deadline time.Time
	// Health is kept after the end.
	Health Health
	// Outdated says that the pod has another image for it since.
	Outdated bool
}

// ImageState is how far an image is.
type ImageState string

// The states of an image.
const (
	ImageAbsent  ImageState = "absent"
	ImagePulling ImageState = "pulling"
	ImagePresent ImageState = "present"
)

// Image is what is known of an image that the pod needs.
type Image struct {
	State ImageState
	// Pulled is when it was last pulled for this pod; zero if it never was.
	Pulled time.Time
	// Failure is how the last pull failed. It may stay after a success.
	Failure Failure
}

// Failure is an action that failed. Reason is one word, as Kubernetes has
// them, or empty for the usual one. The zero value is no failure.
type Failure struct {
	At              time.Time
	Reason, Message string
	// ExitCode is that of a shell whose program can't be executed or isn't
	// there (126, 127), if that is what failed.
	ExitCode int
}

// Decision is what follows.
type Decision struct {
	Actions []Action
	// Next is when to decide again if nothing changes before; zero is never.
	Next   time.Time
	Status Status
	// Backoffs are to be handed to the next call.
	Backoffs Backoffs
	// Gone says that nothing of a pod to be removed is left.
	Gone bool
}

// Action is one of the types below.
type Action interface{ action() }

type (
	// CreateSandbox makes the environment: namespaces, network, files.
	CreateSandbox struct{ Attempt uint32 }
	// StopSandbox ends what is left in a sandbox and gives back its address.
	StopSandbox struct{ ID string }
	// RemoveSandbox forgets a stopped sandbox. It may be asked for again.
	RemoveSandbox struct{ ID string }
	// PullImage fetches an image under the name that the pod has for it.
	PullImage struct{ Image string }
	// StartContainer creates a container in a sandbox and starts it: nothing
	// can be decided in between.
	StartContainer struct {
		Name, Sandbox string
		Attempt       uint32
	}
	// StopContainer sends SIGTERM and, after the grace, SIGKILL; with a grace of
	// 0 at once. A stop that is under way is to be cut short to the new grace.
	StopContainer struct {
		ID    string
		Grace time.Duration
	}
	// RemoveContainer forgets a container that doesn't run. It may be asked for
	// again.
	RemoveContainer struct{ ID string }
)

func (CreateSandbox) action()   {}
func (StopSandbox) action()     {}
func (RemoveSandbox) action()   {}
func (PullImage) action()       {}
func (StartContainer) action()  {}
func (StopContainer) action()   {}
func (RemoveContainer) action() {}

// Plan decides what is to be done for a pod at the moment now.
func Plan(s Spec, o Observed, now time.Time) Decision {
	p := &planner{view: newView(s, o, now), backoffs: o.Backoffs.clone()}
	p.countFailures()
	p.outcome = p.decideOutcome()
	switch {
	case s.Want == Stop:
		p.stopAll(s.Since)
	case s.Want == Remove:
		if p.stopAll(s.Since) {
			p.removeAll()
		}
	case p.outcome != nil:
		if p.stopAll(p.outcome.at) && s.Evicted != nil {
			p.removeContainers() // with what they have written
		}
	default:
		p.run()
	}
	p.decision.Status = reporter{p}.status()
	p.decision.Backoffs = p.backoffs
	return p.decision
}

// planner is one decision in the making.
type planner struct {
	*view
	backoffs Backoffs
	decision Decision
	// outcome is how the pod has ended, or nil.
	outcome *outcome
}

func (p *planner) do(a Action) { p.decision.Actions = append(p.decision.Actions, a) }

// wakeAt asks for another decision at t.
func (p *planner) wakeAt(t time.Time) {
	if next := p.decision.Next; t.After(p.now) && (next.IsZero() || t.Before(next)) {
		p.decision.Next = t
	}
}

// decideOutcome says how the pod has ended, or nil.
func (p *planner) decideOutcome() *outcome {
	end := p.containersOutcome()
	if e := p.Evicted; e != nil {
		end = &outcome{PhaseFailed, reasonEvicted, e.Message, e.At}
		if p.Pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
			p.wakeAt(e.At.Add(EvictionBackoff))
		}
	} else if d := p.Pod.Spec.ActiveDeadlineSeconds; d != nil {
		deadline := p.Started.Add(time.Duration(*d) * time.Second)
		if end == nil && p.Want == Run {
			p.wakeAt(deadline)
		}
		if !p.now.Before(deadline) && (end == nil || end.at.After(deadline)) {
			end = &outcome{PhaseFailed, "DeadlineExceeded", "the pod was active for longer than its activeDeadlineSeconds", deadline}
		}
	}
	if end != nil && p.Want != Run && end.at.After(p.Since) {
		return nil // it ended because it was stopped
	}
	return end
}
