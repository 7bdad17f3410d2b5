package agent

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// Resize is how far a pod is with resources that it is to have while it runs.
type Resize struct {
	// Held is why it doesn't get them: corev1.PodReasonDeferred until there is
	// room, corev1.PodReasonInfeasible for good. Message says more.
	Held, Message string
	// Applying says that what it gets isn't in force in all that runs, Problem why
	// that failed the last time.
	Applying bool
	Problem  string
}

// declared is the pod as it is to be; Pod is what there is room for of it.
func (rec record) declared() *corev1.Pod {
	if rec.Desired != nil {
		return rec.Desired
	}
	return rec.Pod
}

// changes says whether a container is to be started anew for the resources that
// it has: those for which it asks so, and that are not what the run began with.
// What has been changed of a run since, by a plugin for one, doesn't count.
func changes(pod *corev1.Pod, c *corev1.Container, run container.Status) bool {
	if !wantsRestart(c) || pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return false
	}
	was, now := run.Config.GetLinux().GetResources(), criconfig.Resources(pod, c, criconfig.Node{})
	memory := was.GetMemoryLimitInBytes() != now.GetMemoryLimitInBytes()
	cpu := was.GetCpuShares() != now.GetCpuShares() || was.GetCpuQuota() != now.GetCpuQuota()
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer && (p.ResourceName == corev1.ResourceMemory && memory || p.ResourceName != corev1.ResourceMemory && cpu)
	})
}

// allot has the pod be as it is declared, but for resources that there is no room
// for: those it keeps as they are until there is. The caller holds w.mu.
func (w care) allot(declared *corev1.Pod) error {
	rec := w.rec
	rec.Pod, rec.Desired = declared, nil
	held, freed := refusal{}, false
	if criconfig.Resized(w.rec.Pod, declared) {
		if held, freed = w.a.room.resize(declared, w.a.cfg.Node); held.reason == "" {
			rec.Resize = true
		} else {
			rec.Pod, rec.Desired = criconfig.WithResources(declared, w.rec.Pod), declared
		}
	}
	if err := w.a.records.Put(string(declared.UID), rec); err != nil {
		w.a.room.restore(w.rec.Pod)
		return fmt.Errorf("pod %s: %w", nameOf(declared), err)
	}
	switch {
	case held.reason != "" && held != w.seen.held:
		w.tell(true, "", "Resize"+held.reason, held.message)
	case held.reason == "" && rec.Resize && !w.rec.Resize:
		w.tell(false, "", "ResizeStarted", "its containers get the resources that it has now")
	}
	w.rec, w.seen.held = rec, held
	if freed {
		w.a.background.Go(w.a.roomFreed)
	}
	return nil
}

// roomFreed has those looked at again that wait for room: first the resizes, in
// their order, then the pods that wait to start.
func (a *Agent) roomFreed() {
	type waiting struct {
		*worker
		record
	}
	var resizes []waiting
	a.mu.RLock()
	for _, w := range a.workers {
		if rec := w.record(); rec.Desired != nil {
			resizes = append(resizes, waiting{w, rec})
		}
	}
	a.mu.RUnlock()
	slices.SortFunc(resizes, func(x, y waiting) int {
		return cmp.Or(criconfig.ComparePriority(x.Pod, y.Pod), x.Started.Compare(y.Started))
	})
	for _, r := range resizes {
		care{r.worker}.retryResize()
	}
	a.ImagesChanged()
}

// retryResize tries a resize again that was held.
func (w care) retryResize() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rec.Desired == nil {
		return
	}
	if err := w.allot(w.rec.Desired); err != nil {
		w.a.cfg.Log.Error("agent: a resize stays held", "error", err)
	}
	w.nudge()
}

// resizeNow is how far a resize is. The caller holds w.mu.
func (w care) resizeNow() Resize {
	r := Resize{Held: w.seen.held.reason, Message: w.seen.held.message, Applying: w.rec.Resize && w.spec().Want == podplan.Run}
	if w.underWay.tries[resizing] > 0 {
		r.Problem = w.seen.problem
	}
	return r
}
