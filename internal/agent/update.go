package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/plan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/cri"
)

// follow has a pod be as it is declared now, without being made anew: what an
// API server lets be changed of a pod can be changed while it runs. Its grace
// only shrinks.
func (w care) follow(d declaration) error {
	if err := w.change(d.pod); err != nil || d.ending == nil {
		return err
	}
	rec := w.record()
	if rec.Want == plan.Remove || rec.Want == plan.Stop && rec.Grace != nil && *rec.Grace <= *d.ending {
		return nil
	}
	return w.want(plan.Stop, d.ending)
}

// change gives the pod another content.
func (w care) change(pod *corev1.Pod) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if manifest.Hash(rec.Pod) == manifest.Hash(pod) {
		return nil
	}
	rec.Resize = rec.Resize || resized(rec.Pod, pod)
	rec.Pod = pod
	if err := w.a.records.Put(string(pod.UID), rec); err != nil {
		return fmt.Errorf("pod %s: %w", nameOf(pod), err)
	}
	w.rec = rec
	w.backoffs = w.backoffs.Reset()
	clear(w.seen.startFailures)
	w.nudge()
	if rec.Want == plan.Run && len(w.sandboxes) > 0 { // its labels may be in a volume
		w.a.background.Go(w.refresh)
	}
	return nil
}

// resized says whether a container has other limits or requests.
func resized(before, after *corev1.Pod) bool {
	changed := false
	for _, list := range [][]corev1.Container{after.Spec.InitContainers, after.Spec.Containers} {
		for i := range list {
			was := find(before, list[i].Name)
			changed = changed || was != nil && !equality.Semantic.DeepEqual(was.Resources, list[i].Resources)
		}
	}
	return changed
}

// outdated says whether a run has another image than its container now has.
func outdated(pod *corev1.Pod, run container.Status) bool {
	c := find(pod, run.Name())
	image := run.Config.GetImage().GetUserSpecifiedImage()
	return c != nil && image != "" && image != c.Image
}

// resizing stands for a resize among what is ending: both are tried again after
// a while when they fail.
const resizing = "resize"

// resize gives the running containers the limits that the pod has now. The
// caller holds w.mu.
func (w care) resize(containers []container.Status) {
	if !w.rec.Resize || w.spec().Want != plan.Run {
		return
	}
	pod, node := w.rec.Pod, w.a.cfg.Node()
	limits := map[string]*runtimeapi.LinuxContainerResources{}
	for _, st := range containers {
		if c := find(pod, st.Name()); c != nil && view.Container(st) == plan.ContainerRunning {
			limits[st.ID] = cri.Resources(pod, c, node)
		}
	}
	sandboxes := append([]string(nil), w.sandboxes...)
	w.end(resizing, func(ctx context.Context) error {
		var errs []error
		for _, id := range sandboxes {
			if err := w.a.cfg.Sandboxes.Update(ctx, id, cri.PodResources(pod), nil); !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
		for id, to := range limits {
			if err := w.a.cfg.Containers.Update(ctx, id, to); err != nil {
				if st, gone := w.a.cfg.Containers.Get(id); gone == nil && view.Container(st) == plan.ContainerRunning {
					errs = append(errs, err)
				}
			}
		}
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("pod %s: %w", nameOf(pod), err)
		}
		return w.resized(pod)
	})
}

// resized notes that the limits are those of the pod, unless it has changed since.
func (w care) resized(pod *corev1.Pod) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.rec.Pod != pod {
		return nil
	}
	rec := w.rec
	rec.Resize = false
	if err := w.a.records.Put(string(pod.UID), rec); err != nil {
		return err
	}
	w.rec = rec
	return nil
}
