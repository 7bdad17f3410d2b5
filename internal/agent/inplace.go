package agent

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// inPlace returns the pod that is there with what has changed of it in the
// declared one, if that can be changed while it runs: the images of containers,
// one of which is then started again, and the resources of containers, unless the
// pod's quality of service class would be another, or they ask for a restart that
// the pod's policy doesn't have.
func inPlace(declared, there *corev1.Pod) (*corev1.Pod, bool) {
	out := there.DeepCopy()
	never := there.Spec.RestartPolicy == corev1.RestartPolicyNever
	take := func(to, from []corev1.Container, restarts bool) bool {
		for i := range min(len(to), len(from)) {
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
	restarts := there.Spec.RestartPolicy == corev1.RestartPolicyAlways
	ok := take(out.Spec.Containers, declared.Spec.Containers, restarts) && take(out.Spec.InitContainers, declared.Spec.InitContainers, false)
	if !ok || manifest.Hash(out) != manifest.Hash(declared) || criconfig.QOS(out) != criconfig.QOS(there) {
		return nil, false
	}
	return out, true
}

func wantsRestart(c *corev1.Container) bool {
	return slices.ContainsFunc(c.ResizePolicy, func(p corev1.ContainerResizePolicy) bool { return p.RestartPolicy == corev1.RestartContainer })
}

// Replace has the pod of that name, if it is of the same source and can't be
// changed into this one while it runs, make way for it.
func (a *Agent) Replace(pod *corev1.Pod, source string) error {
	a.mu.RLock()
	w := a.workers[nameOf(pod)]
	a.mu.RUnlock()
	if w == nil {
		return nil
	}
	rec := w.record()
	if _, ok := inPlace(pod, rec.declared()); ok || rec.Source != source || rec.Want == podplan.Remove {
		return nil
	}
	return w.want(podplan.Remove, nil)
}

// tellIgnored says which fields of the manifest make no difference here.
func (w care) tellIgnored() {
	if ignored := manifest.Ignored(w.manifest); len(ignored) > 0 && !strings.HasPrefix(w.rec.Source, string(source.API)) {
		w.tell(false, "", "Ignored", "no effect without a cluster: "+strings.Join(ignored, ", "))
	}
}
