// Package podref finds the pods, and their containers and runs, that requests name.
package podref

import (
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/controller"
)

// Pod returns the pod with that name. The ID of a container is refused, since the operation is
// for the whole pod.
func Pod(a *agent.Agent, name string) (agent.Pod, error) {
	p, c, err := a.Find(name)
	if err == nil && c != "" {
		err = errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q is container %s of pod %s: name the pod", name, c, p.Name()))
	}
	return p, err
}

// defaultContainer is kubectl's annotation for the container to use if none is named.
const defaultContainer = "kubectl.kubernetes.io/default-container"

// Container returns a pod and one of its containers: the named one, the one whose ID name is,
// or the only one. The pod may be named by a workload that has it.
func Container(a *agent.Agent, name, containerName string) (agent.Pod, string, error) {
	p, byID, err := One(a, name)
	if err != nil {
		return p, "", err
	}
	// The status of a pod that was just added has no containers yet, so use the manifest.
	var names []string
	for c := range podspec.Containers(&p.Manifest.Spec) {
		names = append(names, c.Name)
	}
	for i := range p.Manifest.Spec.EphemeralContainers {
		names = append(names, p.Manifest.Spec.EphemeralContainers[i].Name)
	}
	if containerName == "" {
		containerName = byID
	}
	if containerName == "" {
		containerName = p.Manifest.Annotations[defaultContainer]
	}
	if regular := p.Manifest.Spec.Containers; containerName == "" && len(regular) == 1 {
		containerName = regular[0].Name
	}
	switch {
	case containerName == "":
		return p, "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("pod %s has the containers %s: choose one with -c", p.Name(), strings.Join(names, ", ")))
	case !slices.Contains(names, containerName):
		return p, "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s has no container %q: it has %s", p.Name(), containerName, strings.Join(names, ", ")))
	}
	return p, containerName, nil
}

// One returns the pod with that name or, if it is the name of a workload, one of its pods. It
// returns the container whose ID name is, too.
func One(a *agent.Agent, name string) (agent.Pod, string, error) {
	p, containerName, err := a.Find(name)
	if ref, ok := workload.ParseRef(name, manifest.DefaultNamespace); ok && errdefs.IsNotFound(err) {
		if p, ok = podOf(a.List(), ref); !ok {
			return p, "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s has no pods: husk rollout status lists workloads", ref))
		}
		return p, "", nil
	}
	return p, containerName, err
}

// podOf returns one of a workload's pods: the first that is ready or else the first that runs or
// else the first. Of a rollout that is one of the newest, because pods begins with those.
func podOf(pods []agent.Pod, ref workload.Ref) (best agent.Pod, ok bool) {
	rank := func(p agent.Pod) int {
		switch {
		case p.Status.Ready:
			return 2
		case Running(p):
			return 1
		}
		return 0
	}
	for _, p := range pods {
		if owner, owned := Owner(p); owned && owner == ref && (!ok || rank(p) > rank(best)) {
			best, ok = p, true
		}
	}
	return best, ok
}

// Owner returns the workload that a pod belongs to, if it runs on this node.
func Owner(p agent.Pod) (workload.Ref, bool) {
	owner, _, ok := workload.OwnerOf(p.Manifest)
	return owner, ok && strings.HasPrefix(p.Source, controller.Source)
}

// Running reports whether a pod runs or is about to.
func Running(p agent.Pod) bool {
	return p.Status.Phase == podplan.PhaseRunning || p.Status.Phase == podplan.PhasePending
}

// Run returns the last run of a container or, with previous, the one before.
func Run(p agent.Pod, name string, previous bool) (container.Status, error) {
	runs := p.Runs(name)
	switch {
	case len(runs) == 0:
		return container.Status{}, errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s of pod %s has not started: %s", name, p.Name(), waitReason(p, name)))
	case previous && len(runs) == 1:
		return container.Status{}, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("container %s of pod %s has no previous run", name, p.Name()))
	case previous:
		return runs[1], nil
	}
	return runs[0], nil
}

// Live returns the run of a container that runs now.
func Live(p agent.Pod, name string) (container.Status, error) {
	run, err := Run(p, name, false)
	if err == nil && run.Finished {
		err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s of pod %s isn't running: it ended with exit code %d", name, p.Name(), run.Exit.Code))
	}
	return run, err
}

func waitReason(p agent.Pod, name string) string {
	for _, c := range slices.Concat(p.Status.Containers, p.Status.Ephemeral) {
		if c.Name == name && c.Reason != "" {
			if c.Message != "" {
				return c.Reason + ": " + c.Message
			}
			return c.Reason
		}
	}
	return "see husk ps -a"
}
