package agent

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/sandbox"
)

// look fetches what is there of the pod, newest first.
func (w *worker) look() ([]sandbox.Status, []container.Status) {
	var sandboxes []sandbox.Status
	var containers []container.Status
	for i := len(w.sandboxes) - 1; i >= 0; i-- {
		id := w.sandboxes[i]
		st, err := w.a.cfg.Sandboxes.Get(id)
		if err != nil {
			w.sandboxes = slices.Delete(w.sandboxes, i, i+1)
			w.a.owner.Delete(id)
			continue
		}
		sandboxes = append(sandboxes, st)
		containers = append(containers, w.a.cfg.Containers.List(id)...)
	}
	newest := func(a, b uint32) int { return cmp.Compare(b, a) }
	slices.SortFunc(sandboxes, func(a, b sandbox.Status) int {
		return newest(a.Config.GetMetadata().GetAttempt(), b.Config.GetMetadata().GetAttempt())
	})
	slices.SortStableFunc(containers, func(a, b container.Status) int {
		return newest(a.Config.GetMetadata().GetAttempt(), b.Config.GetMetadata().GetAttempt())
	})
	return sandboxes, containers
}

// observe says in the planner's words what is there.
func (w *worker) observe(sandboxes []sandbox.Status, containers []container.Status) podplan.Observed {
	o := podplan.Observed{
		Images:         map[string]podplan.Image{},
		Creating:       w.underWay.creating,
		Starting:       maps.Clone(w.underWay.starting),
		SandboxFailure: w.seen.sandboxFailure,
		StartFailures:  maps.Clone(w.seen.startFailures),
		Backoffs:       w.backoffs,
	}
	for _, st := range sandboxes {
		o.Sandboxes = append(o.Sandboxes, podplan.Sandbox{
			ID:      st.ID,
			Attempt: st.Config.GetMetadata().GetAttempt(),
			State:   view.Sandbox(st),
			IPs:     w.a.addresses(st),
		})
	}
	for _, st := range containers {
		if w.underWay.starting[st.Name()] && st.Started.IsZero() {
			continue
		}
		o.Containers = append(o.Containers, podplan.Container{
			ID: st.ID, Name: st.Name(), Sandbox: st.Sandbox, Attempt: st.Config.GetMetadata().GetAttempt(),
			State:   view.Container(st),
			Started: st.Started, Finished: st.Exit.At,
			ExitCode: st.Exit.Code, OOMKilled: st.Exit.OOMKilled, Reason: st.Reason, Message: care{w}.message(st),
			Deadline: w.underWay.deadlines[st.ID],
			Health:   care{w}.health(st.ID),
			Outdated: outdated(w.rec.Pod, st),
		})
	}
	for _, list := range [][]corev1.Container{w.rec.Pod.Spec.InitContainers, w.rec.Pod.Spec.Containers} {
		for i := range list {
			o.Images[list[i].Image] = w.image(list[i].Image)
		}
	}
	maps.Copy(o.StartFailures, w.rec.Refused)
	for i := range w.rec.Pod.Spec.EphemeralContainers {
		name := w.rec.Pod.Spec.EphemeralContainers[i].Image
		o.Images[name] = w.image(name)
	}
	return o
}

func (w *worker) image(name string) podplan.Image {
	out := w.seen.images[name]
	out.State = podplan.ImageAbsent
	if _, err := w.a.cfg.Images.Get(name); err == nil {
		out.State = podplan.ImagePresent
	}
	if _, ok := w.underWay.pulls[name]; ok {
		out.State = podplan.ImagePulling
	}
	return out
}

// addresses are the sandbox's, or the node's for one in the node's network.
func (a *Agent) addresses(st sandbox.Status) []string {
	return view.Addresses(st, func() []string { return a.cfg.Node().IPs })
}
