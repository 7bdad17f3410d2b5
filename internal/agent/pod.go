package agent

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/sandbox"
)

// Pod is what is known of a pod at one moment. It isn't changed once handed out.
type Pod struct {
	// Manifest as it was given, with its defaults and a UID.
	Manifest *corev1.Pod
	Source   string // "run" or "file:/path"
	Want     podplan.Want
	Created  time.Time
	Status   podplan.Status
	// Sandboxes and Containers of the pod, newest first.
	Sandboxes  []sandbox.Status
	Containers []container.Status
	// Pulls under way.
	Pulls []image.Progress
	// Settled says that nothing of the pod is on the host and nothing will be
	// done, so that it is stopped or has ended.
	Settled bool
	// Problem is the last failure of taking the pod down, until that succeeds.
	Problem string
	// Resize is how far it is with other resources.
	Resize Resize
	// Newer is closed when this is no longer the latest that is known.
	Newer <-chan struct{}
}

// Name is namespace/name.
func (p Pod) Name() string { return nameOf(p.Manifest) }

// Sandbox returns the newest sandbox, if there is one.
func (p Pod) Sandbox() (st sandbox.Status, ok bool) {
	for _, s := range p.Sandboxes {
		if !ok || s.Config.GetMetadata().GetAttempt() > st.Config.GetMetadata().GetAttempt() {
			st, ok = s, true
		}
	}
	return st, ok
}

// Runs returns the runs of a container of the pod, newest first. Those that
// never began are left out.
func (p Pod) Runs(name string) []container.Status {
	var runs []container.Status
	for _, c := range p.Containers {
		if c.Name() == name && !c.Started.IsZero() {
			runs = append(runs, c)
		}
	}
	return runs
}
