package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sandbox"
)

// Resize is the progress of a change of a running pod's resources.
type Resize struct {
	// Held is why the pod keeps its former resources: corev1.PodReasonDeferred until enough is
	// free, corev1.PodReasonInfeasible for good. Message says more.
	Held, Message string
	// Applying says that the new resources are not in force in all running containers yet. Problem
	// is why applying them failed the last time.
	Applying bool
	Problem  string
}

// resizer changes the resources of a running pod.
type resizer struct {
	*podState
	tasks *retrier
	held  admission.Refusal // why the last resize waits
}

// setPod makes declared the pod's content. If its resources don't fit, the pod keeps those that it
// has until they do. The caller holds mu.
func (r *resizer) setPod(declared *corev1.Pod) error {
	rec := r.rec
	rec.Pod, rec.Desired = declared, nil
	held, freed := admission.Refusal{}, false
	if criconfig.Resized(r.rec.Pod, declared) {
		if held, freed = r.a.admitted.Resize(declared); held.Reason == "" {
			rec.Resize = true
			r.tasks.hurry(resizeTask)
		} else {
			rec.Pod, rec.Desired = criconfig.WithResources(declared, r.rec.Pod), declared
		}
	}
	before := r.rec
	if err := r.save(r.a.records.Put, rec); err != nil {
		r.a.admitted.Restore(before.Pod)
		return err
	}
	switch {
	case held.Reason != "" && held != r.held:
		r.warningEvent("", "Resize"+held.Reason, held.Message)
	case held.Reason == "" && rec.Resize && !before.Resize:
		r.normalEvent("", "ResizeStarted", "applying the new resources to the containers")
	}
	r.held = held
	if freed {
		r.a.background.Go(r.a.capacityFreed)
	}
	return nil
}

// retry tries a held resize again.
func (r *resizer) retry() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.Desired == nil {
		return
	}
	if err := r.setPod(r.rec.Desired); err != nil {
		r.a.cfg.Log.Error("agent: a resize stays held", "error", err)
	}
	r.nudge()
}

// apply starts to give the running containers the pod's limits. It waits until no container has to
// restart for its resources first. The caller holds mu, and has made sure that no container is
// being started: that one might get the former limits.
func (r *resizer) apply(seen snapshot) {
	if !r.rec.Resize || r.spec().Want != podplan.Run {
		return
	}
	pod, node := r.rec.Pod, r.a.cfg.Node()
	limits := map[string]*runtimeapi.LinuxContainerResources{}
	var running []container.Status
	for _, st := range seen.containers {
		if c := criconfig.FindContainer(pod, st.Name()); c != nil && view.ContainerState(st) == podplan.ContainerRunning {
			if resizeRestarts(pod, c, st) {
				return
			}
			limits[st.ID] = criconfig.Resources(pod, c, node)
			running = append(running, st)
		}
	}
	r.tasks.run(resizeTask, func(ctx context.Context) error {
		if err := r.checkMemory(pod, seen.sandboxes, running, limits); err != nil {
			return err
		}
		var errs []error
		for _, st := range seen.sandboxes {
			if err := r.a.cfg.Sandboxes.Update(ctx, st.ID, criconfig.PodResources(pod), nil); !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
		for id, to := range limits {
			if err := r.a.cfg.Containers.Update(ctx, id, to); err != nil {
				if st, gone := r.a.cfg.Containers.Get(id); gone == nil && view.ContainerState(st) == podplan.ContainerRunning {
					errs = append(errs, err)
				}
			}
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("pod %s: %w", r.name(), err)
		}
		return r.completed(pod)
	})
}

// checkMemory returns an error if a new limit is below the memory that is in use: the kernel would
// kill processes to enforce it.
func (r *resizer) checkMemory(pod *corev1.Pod, sandboxes []sandbox.Status, running []container.Status, limits map[string]*runtimeapi.LinuxContainerResources) error {
	if r.a.cfg.Memory == nil {
		return nil
	}
	var errs []error
	check := func(what, cgroup string, limit int64) {
		if used, old := r.a.cfg.Memory(cgroup); limit > 0 && (old == 0 || uint64(limit) < old) && used >= uint64(limit) {
			errs = append(errs, fmt.Errorf("%s: new memory limit (%d) below current usage (%d)", what, limit, used))
		}
	}
	for _, sb := range sandboxes {
		cgroup := r.a.cfg.Sandboxes.Cgroup(sb)
		if view.SandboxState(sb) == podplan.SandboxReady {
			check("pod "+r.name(), cgroup, criconfig.PodResources(pod).GetMemoryLimitInBytes())
		}
		for _, st := range running {
			if st.Sandbox == sb.ID {
				check("container "+st.Name(), st.Cgroup(cgroup), limits[st.ID].GetMemoryLimitInBytes())
			}
		}
	}
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.tasks.failures[resizeTask] == 0 {
		r.warningEvent("", "ResizeError", err.Error())
	}
	return err
}

// completed records that the containers have the limits of pod, unless the pod has changed since.
func (r *resizer) completed(pod *corev1.Pod) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rec.Pod != pod {
		return nil
	}
	rec := r.rec
	rec.Resize = false
	if err := r.save(r.a.records.Put, rec); err != nil {
		return err
	}
	r.normalEvent("", "ResizeCompleted", "the containers have the new resources")
	return nil
}

// status returns the progress. The caller holds mu.
func (r *resizer) status() Resize {
	out := Resize{Held: r.held.Reason, Message: r.held.Message, Applying: r.rec.Resize && r.spec().Want == podplan.Run}
	if r.tasks.failures[resizeTask] > 0 {
		out.Problem = r.tasks.problem
	}
	return out
}

// resizeRestarts reports whether a container has to restart for its new resources: its resizePolicy
// says so, and they differ from those in the run's config. Changes made to the run since, for
// example by a plugin, don't count.
func resizeRestarts(pod *corev1.Pod, c *corev1.Container, run container.Status) bool {
	if !wantsRestart(c) || pod.Spec.RestartPolicy == corev1.RestartPolicyNever {
		return false
	}
	was, now := run.Config.GetLinux().GetResources(), criconfig.Resources(pod, c, criconfig.Node{})
	requested, known := run.Config.GetAnnotations()[criconfig.AnnotationMemoryRequest]
	memory := was.GetMemoryLimitInBytes() != now.GetMemoryLimitInBytes() || known && requested != criconfig.MemoryRequest(c)
	cpu := was.GetCpuShares() != now.GetCpuShares() || was.GetCpuQuota() != now.GetCpuQuota()
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool {
		return p.RestartPolicy == corev1.RestartContainer && (p.ResourceName == corev1.ResourceMemory && memory || p.ResourceName != corev1.ResourceMemory && cpu)
	})
}

func wantsRestart(c *corev1.Container) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer })
}

// capacityFreed tries again what waits for capacity: first the held resizes by priority, then the
// pods that wait to start.
func (a *Agent) capacityFreed() {
	type waiting struct {
		w   *worker
		rec record
	}
	var resizes []waiting
	a.mu.RLock()
	for _, w := range a.workers.byName {
		if rec := w.record(); rec.Desired != nil {
			resizes = append(resizes, waiting{w, rec})
		}
	}
	a.mu.RUnlock()
	slices.SortFunc(resizes, func(x, y waiting) int {
		return cmp.Or(criconfig.ComparePriority(x.rec.Pod, y.rec.Pod), x.rec.Started.Compare(y.rec.Started))
	})
	for _, r := range resizes {
		r.w.resizer.retry()
	}
	a.ImagesChanged()
}
