package agent

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/identity"
)

// inPlace returns existing with the changes of declared, if a running pod can be changed that way.
// The images of containers can change if the containers restart. The resources can change unless
// the pod's QoS class would change, or a container would have to restart and the pod's policy
// forbids it.
func inPlace(declared, existing *corev1.Pod) (*corev1.Pod, bool) {
	out := existing.DeepCopy()
	never := existing.Spec.RestartPolicy == corev1.RestartPolicyNever
	merge := func(to, from []corev1.Container, restarts bool) bool {
		for i := range min(len(to), len(from)) {
			if own := to[i].RestartPolicy; own != nil {
				restarts = restarts && *own == corev1.ContainerRestartPolicyAlways
			}
			if to[i].Image != from[i].Image && !restarts {
				return false
			}
			if !equality.Semantic.DeepEqual(to[i].Resources, from[i].Resources) && wantsRestart(&from[i]) && never {
				return false
			}
			to[i].Image, to[i].ImagePullPolicy = from[i].Image, from[i].ImagePullPolicy
			to[i].Resources, to[i].ResizePolicy = from[i].Resources, from[i].ResizePolicy
		}
		return true
	}
	restarts := existing.Spec.RestartPolicy == corev1.RestartPolicyAlways
	ok := merge(out.Spec.Containers, declared.Spec.Containers, restarts) && merge(out.Spec.InitContainers, declared.Spec.InitContainers, false)
	if !ok || identity.Hash(out) != identity.Hash(declared) || criconfig.QOS(out) != criconfig.QOS(existing) {
		return nil, false
	}
	return out, true
}

// follow changes a running pod into what is declared now, and stops it if it is being deleted
// there. The grace of the stop can only get shorter. The stop comes first, because the deletion has
// a generation, and whoever sees that one in the status expects the pod to end.
func (w *worker) follow(d declaration) error {
	rec := w.record()
	ends := rec.Want == podplan.Remove || rec.Want == podplan.Stop && rec.Grace != nil && d.deletionGrace != nil && *rec.Grace <= *d.deletionGrace
	if d.deletionGrace != nil && !ends {
		if err := w.want(podplan.Stop, d.deletionGrace); err != nil {
			return err
		}
	}
	return w.change(d.pod)
}

// change changes a running pod into pod.
func (w *worker) change(pod *corev1.Pod) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.rec.declared()
	same := identity.Hash(before) == identity.Hash(pod) && equality.Semantic.DeepEqual(before.Spec.EphemeralContainers, pod.Spec.EphemeralContainers)
	if same && before.Generation == pod.Generation {
		return nil
	}
	if err := w.resizer.setPod(pod); err != nil {
		return err
	}
	if same {
		w.nudge() // to publish the generation
	} else {
		w.changed() // a volume may hold the pod's labels
	}
	return nil
}

// setObjects replaces the pod's copies of the objects it references. Its volumes follow; a running
// container keeps the environment that it started with.
func (w *worker) setObjects(objects manifest.Objects) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if rec.Objects.Equal(objects) {
		return nil
	}
	rec.Objects = objects
	if err := w.save(w.a.records.Put, rec); err != nil {
		return err
	}
	w.changed() // a container may have failed for lack of an object
	return nil
}

// changed makes the worker act on a change of its record: it tries again what has failed, and
// updates the volumes of running containers. The caller holds w.mu.
func (w *worker) changed() {
	w.resetBackoffs()
	w.nudge()
	if w.rec.Want == podplan.Run && len(w.inventory.ids) > 0 {
		w.a.background.Go(w.volumes.refresh)
	}
}
