package agent

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/sandbox"
)

// Pod is the state of a pod at one moment. It is not changed once it is handed out.
type Pod struct {
	// Manifest is the pod as it runs, with its defaults and a UID.
	Manifest *corev1.Pod
	Source   string // "run", or where it is declared: "file:/path"
	Want     podplan.Want
	Created  time.Time
	Status   podplan.Status
	// Sandboxes and Containers are those of the pod, newest first.
	Sandboxes  []sandbox.Status
	Containers []container.Status
	// ImageRefs are the names of the containers' images with their digests, by the images' IDs. It
	// lacks images without such a name.
	ImageRefs map[string]string
	// Pulls are the image pulls under way.
	Pulls []image.Progress
	// Finished says that the pod is stopped or has ended: nothing of it runs, nothing is under way,
	// and nothing more will be done.
	Finished bool
	// Problem is the last failure to stop or remove something; empty after a success.
	Problem string
	// Resize is the progress of a change of its resources.
	Resize Resize
	// Newer is closed when a newer state is available.
	Newer <-chan struct{}
}

// Name returns namespace/name.
func (p Pod) Name() string { return nameOf(p.Manifest) }

// ReportedName returns the pod's name on the API server: its own, or that of its mirror if it was
// declared elsewhere, which ends in the node's name.
func (p Pod) ReportedName(node string) string {
	if strings.HasPrefix(p.Source, string(source.API)) {
		return p.Manifest.Name
	}
	return p.Manifest.Name + "-" + node
}

// Sandbox returns the newest sandbox, if there is one.
func (p Pod) Sandbox() (st sandbox.Status, ok bool) {
	if len(p.Sandboxes) == 0 {
		return sandbox.Status{}, false
	}
	return p.Sandboxes[0], true
}

// Runs returns the runs of a container of the pod, newest first, without those that never started.
func (p Pod) Runs(name string) []container.Status {
	var runs []container.Status
	for _, c := range p.Containers {
		if c.Name() == name && !c.Started.IsZero() {
			runs = append(runs, c)
		}
	}
	return runs
}
