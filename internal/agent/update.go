package agent

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// follow has a pod be as it is declared now, without being made anew: what an
// API server lets be changed of a pod can be changed while it runs. Its grace
// only shrinks.
func (w care) follow(d declaration) error {
	if err := w.change(d.pod); err != nil || d.ending == nil {
		return err
	}
	rec := w.record()
	if rec.Want == podplan.Remove || rec.Want == podplan.Stop && rec.Grace != nil && *rec.Grace <= *d.ending {
		return nil
	}
	return w.want(podplan.Stop, d.ending)
}

// change gives the pod another content.
func (w care) change(pod *corev1.Pod) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if manifest.Hash(w.rec.declared()) == manifest.Hash(pod) {
		return nil
	}
	if err := w.allot(pod); err != nil {
		return err
	}
	w.backoffs = w.backoffs.Reset()
	clear(w.seen.startFailures)
	w.nudge()
	if w.rec.Want == podplan.Run && len(w.sandboxes) > 0 { // its labels may be in a volume
		w.a.background.Go(w.refresh)
	}
	return nil
}

// outdated says whether a run is to make way for another because its container
// now has another image, or resources for which it asks to be started anew.
func outdated(pod *corev1.Pod, run container.Status) bool {
	c := criconfig.FindContainer(pod, run.Name())
	if c == nil {
		return false
	}
	image := run.Config.GetImage().GetUserSpecifiedImage()
	return image != "" && image != c.Image || changes(pod, c, run)
}

// resizing stands for a resize among what is ending: both are tried again after
// a while when they fail.
const resizing = "resize"

// resize gives the running containers the limits that the pod has now, once those
// are gone that make way for others. The caller holds w.mu.
func (w care) resize(containers []container.Status) {
	if !w.rec.Resize || w.spec().Want != podplan.Run || len(w.underWay.starting) > 0 { // what is being started may have the limits of before
		return
	}
	pod, node := w.rec.Pod, w.a.cfg.Node()
	limits := map[string]*runtimeapi.LinuxContainerResources{}
	for _, st := range containers {
		if c := criconfig.FindContainer(pod, st.Name()); c != nil && view.Container(st) == podplan.ContainerRunning {
			if changes(pod, c, st) {
				return
			}
			limits[st.ID] = criconfig.Resources(pod, c, node)
		}
	}
	sandboxes := append([]string(nil), w.sandboxes...)
	w.end(resizing, func(ctx context.Context) error {
		var errs []error
		for _, id := range sandboxes {
			if err := w.a.cfg.Sandboxes.Update(ctx, id, criconfig.PodResources(pod), nil); !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err) {
				errs = append(errs, err)
			}
		}
		for id, to := range limits {
			if err := w.a.cfg.Containers.Update(ctx, id, to); err != nil {
				if st, gone := w.a.cfg.Containers.Get(id); gone == nil && view.Container(st) == podplan.ContainerRunning {
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
	w.tell(false, "", "ResizeCompleted", "its containers have the resources that it has now")
	return nil
}
