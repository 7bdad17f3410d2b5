// Package podplan decides the next actions for a pod. It is Husk's counterpart of kubelet's
// computePodActions, and follows kubelet's rules: init containers start one after the other,
// sidecars start among them and stop after the containers, restarts are backed off, and a lost
// sandbox is replaced by a new one.
//
// The package is pure. Plan takes the pod's spec, its observed state and the time. It returns the
// actions that are due, the time of the next decision, and the pod's status. The caller calls Plan
// after each change and carries out the actions. It decides nothing itself.
//
// The actions of one decision are independent: they may run concurrently, in any order, and each
// may fail. Actions that depend on others follow in a later decision. Actions in progress are part
// of the observed state, so that Plan doesn't return them again.
package podplan

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/remedy"
)

// Want is the desired state of a pod.
type Want string

// The desired states of a pod.
const (
	Run    Want = "run"
	Stop   Want = "stop"   // stop the pod and keep its records
	Remove Want = "remove" // stop the pod and remove its records
)

// Spec is a pod and its desired state.
type Spec struct {
	// Pod comes from package manifest: it is valid and has its defaults.
	Pod  *corev1.Pod
	Want Want
	// Started is when the pod was first told to run. activeDeadlineSeconds counts from then.
	Started time.Time
	// Since is when Stop or Remove was requested. The grace period counts from then.
	Since time.Time
	// Grace overrides the pod's grace period for Stop and Remove. It may be nil.
	Grace *time.Duration
	// FirstAttempt is the first sandbox attempt since the pod was last told to run. Containers in
	// earlier sandboxes have been stopped and don't count for the pod's outcome.
	FirstAttempt uint32
	// FirstRuns is the first attempt of each container since a rule has last restarted all
	// containers. Earlier runs don't count.
	FirstRuns map[string]uint32
	// Source says for whom messages are.
	Source remedy.Source
	// Evicted is set once the pod is evicted: it must be stopped at once, and has failed.
	Evicted *Eviction
}

// Eviction is the eviction of a pod.
type Eviction struct {
	At time.Time `json:"at"`
	// Reason is ReasonEvicted if it is empty.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message"`
	// Emptied tells that the pod's disk space has been freed.
	Emptied bool `json:"emptied,omitempty"`
}

// EvictionBackoff is the wait before an evicted pod is recreated, because it may fill the disk
// again.
const EvictionBackoff = time.Minute

// Observed is the observed state of a pod.
type Observed struct {
	// Sandboxes and Containers of the pod, in any order, including those that have ended.
	Sandboxes  []Sandbox
	Containers []Container
	// Images by the names that the pod's containers use. Images not in the map are absent.
	Images map[string]Image
	// Creating tells that a sandbox is being created. Starting has the names of the containers that
	// are being started.
	Creating bool
	Starting map[string]bool
	// SandboxFailure is the last failure to create a sandbox. StartFailures are the last failures
	// to start each container. They may still be set after a success.
	SandboxFailure Failure
	StartFailures  map[string]Failure
	// Backoffs are those of the previous decision.
	Backoffs Backoffs
}

// SandboxState is the state of a sandbox.
type SandboxState string

// The states of a sandbox.
const (
	SandboxReady SandboxState = "ready"
	// SandboxLost is neither ready nor stopped. The sandbox may still hold its address.
	SandboxLost     SandboxState = "lost"
	SandboxStopping SandboxState = "stopping"
	SandboxStopped  SandboxState = "stopped"
)

// Sandbox is one of the pod's sandboxes.
type Sandbox struct {
	ID      string
	Attempt uint32
	State   SandboxState
	IPs     []string
	// Displaced says why an address of it isn't this node's any more; empty if that isn't so.
	Displaced string
}

// ContainerState is the state of a container.
type ContainerState string

// The states of a container.
const (
	// ContainerCreated means that the container was left behind before its process started.
	ContainerCreated ContainerState = "created"
	ContainerRunning ContainerState = "running"
	ContainerExited  ContainerState = "exited"
	// ContainerUnknown means that the container may or may not run.
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
	// Reason is the runtime's reason for the end of the run, Message explains it.
	Reason, Message string
	// Deadline is when a stop in progress will kill the container; zero without one.
	Deadline time.Time
	// Health is kept after the end.
	Health Health
	// Outdated tells that the image in the pod's spec has changed since the run started.
	Outdated bool
}

// ImageState is the state of an image.
type ImageState string

// The states of an image.
const (
	ImageAbsent  ImageState = "absent"
	ImagePulling ImageState = "pulling"
	ImagePresent ImageState = "present"
	// ImageDenied is an image that the node has, which the pod may not use before a pull shows that
	// its registry lets it.
	ImageDenied ImageState = "denied"
	// ImageMisnamed is an image whose name none can have.
	ImageMisnamed ImageState = "misnamed"
	// ImageUnclear is an image of which the node can't tell whether it has it.
	ImageUnclear ImageState = "unclear"
)

// Image is an image that the pod needs.
type Image struct {
	State ImageState
	// Problem explains the states ImageMisnamed and ImageUnclear.
	Problem string
	// Loaded says that the image came from an archive and was never pulled.
	Loaded bool
	// Pulled is when it was last pulled for this pod; zero if it never was.
	Pulled time.Time
	// Failure is the last failure to pull the image. It may still be set after a success.
	Failure Failure
}

// Failure is a failed action. Reason is a Kubernetes reason, or empty for the default one. The zero
// value means that nothing failed.
type Failure struct {
	At              time.Time
	Reason, Message string
	// Final tells that a repetition fails too, unless someone changes something: an image or object
	// that doesn't exist, or a setting that is not valid.
	Final bool
	// Unattached tells that the network couldn't take a sandbox, and may be able to later.
	Unattached bool
	// ExitCode is 126 if the program could not be executed and 127 if it was not found, as in a
	// shell. Otherwise it is 0.
	ExitCode int
}

// Decision is the result of Plan.
type Decision struct {
	Actions []Action
	// Next is when to call Plan again if nothing changes before; zero means never.
	Next   time.Time
	Status Status
	// Backoffs must be passed to the next call, in Observed.
	Backoffs Backoffs
	// Gone tells that the pod should be removed and nothing of it is left.
	Gone bool
}

// Action is one of the types below.
type Action interface{ action() }

type (
	// CreateSandbox creates a sandbox: its namespaces, network and files.
	CreateSandbox struct{ Attempt uint32 }
	// StopSandbox kills all processes left in a sandbox and releases its address.
	StopSandbox struct{ ID string }
	// RemoveSandbox removes the record of a stopped sandbox. It may be returned repeatedly.
	RemoveSandbox struct{ ID string }
	// PullImage pulls an image. Image is the name in the pod's spec.
	PullImage struct{ Image string }
	// StartContainer creates a container in a sandbox and starts it.
	StartContainer struct {
		Name, Sandbox string
		Attempt       uint32
	}
	// StopContainer sends SIGTERM, and SIGKILL after the grace period. With a grace period of 0 it
	// sends SIGKILL at once. It shortens the grace period of a stop in progress.
	StopContainer struct {
		ID    string
		Grace time.Duration
	}
	// RestartAll records that the exit of a container restarts all containers: the runs before
	// FirstRuns no longer count, and are killed.
	RestartAll struct {
		Container string
		FirstRuns map[string]uint32
	}
	// RemoveContainer removes the record of a container that doesn't run. It may be returned
	// repeatedly.
	RemoveContainer struct{ ID string }
)

func (CreateSandbox) action()   {}
func (StopSandbox) action()     {}
func (RemoveSandbox) action()   {}
func (PullImage) action()       {}
func (StartContainer) action()  {}
func (StopContainer) action()   {}
func (RestartAll) action()      {}
func (RemoveContainer) action() {}

// Plan returns the actions for a pod at the time now, and its status.
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
			p.removeContainers() // also frees the disk space of their writable layers
		}
	default:
		p.run()
	}
	p.decision.Status = reporter{p.view, p.backoffs, p.outcome}.status()
	p.decision.Backoffs = p.backoffs
	return p.decision
}

// planner makes one decision.
type planner struct {
	*view
	backoffs Backoffs
	decision Decision
	// outcome is the pod's outcome, or nil if it hasn't ended.
	outcome *outcome
}

func (p *planner) do(a Action) { p.decision.Actions = append(p.decision.Actions, a) }

// wakeAt requests another decision at t, unless an earlier one is already requested.
func (p *planner) wakeAt(t time.Time) {
	if next := p.decision.Next; t.After(p.now) && (next.IsZero() || t.Before(next)) {
		p.decision.Next = t
	}
}

// decideOutcome returns the pod's outcome, or nil if it hasn't ended.
func (p *planner) decideOutcome() *outcome {
	end := p.containersOutcome()
	if e := p.Evicted; e != nil {
		end = &outcome{PhaseFailed, cmp.Or(e.Reason, ReasonEvicted), e.Message, e.At}
		if p.Pod.Spec.RestartPolicy == corev1.RestartPolicyAlways {
			p.wakeAt(e.At.Add(EvictionBackoff))
		}
	} else if d := p.Pod.Spec.ActiveDeadlineSeconds; d != nil {
		deadline := p.Started.Add(time.Duration(*d) * time.Second)
		if end == nil && p.Want == Run {
			p.wakeAt(deadline)
		}
		if !p.now.Before(deadline) && (end == nil || end.at.After(deadline)) {
			end = &outcome{PhaseFailed, ReasonDeadline, "the pod was active for longer than its activeDeadlineSeconds", deadline}
		}
	}
	if end != nil && p.Want != Run && end.at.After(p.Since) {
		return nil // the pod ended because it was stopped
	}
	return end
}
