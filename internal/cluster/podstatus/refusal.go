package podstatus

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source/apiserver"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// refusal is why a pod, or a part of it, isn't run. A nil refusal refuses nothing.
type refusal struct {
	// failed says that the node hasn't admitted the pod, which is final. Otherwise the pod waits
	// until its spec changes.
	failed bool
	// why has the reasons by the name of an ephemeral container, or by apiserver.WholePod.
	why map[string]admission.Refusal
}

// Reject reports a pod that this node hasn't admitted as failed.
func (r *Reporter) Reject(pod *corev1.Pod, why admission.Refusal) {
	r.setRefusal(pod, &refusal{true, map[string]admission.Refusal{apiserver.WholePod: why}})
}

// Refuse reports why a pod or some of its ephemeral containers, by their names, aren't run. A pod
// that doesn't run yet is pending. One that runs goes on as it was.
func (r *Reporter) Refuse(pod *corev1.Pod, why map[string]admission.Refusal) {
	r.setRefusal(pod, &refusal{false, why})
}

// Forget drops what is refused of a pod that is no longer on the server.
func (r *Reporter) Forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, uid)
}

// setRefusal replaces the refusal of a pod and adds an event for each new reason.
func (r *Reporter) setRefusal(pod *corev1.Pod, next *refusal) {
	r.mu.Lock()
	last := r.refused[pod.UID]
	r.refused[pod.UID] = next
	r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(next.why)) {
		why := next.why[name]
		if last == nil || last.why[name] != why {
			r.Events.Add(event.Event{Pod: pod.Namespace + "/" + pod.Name, UID: string(pod.UID), Container: name, Warning: true, Reason: why.Reason, Message: why.Message})
		}
	}
	r.Nudge()
}

// wholePod reports whether the refusal is about the pod as a whole.
func (r *refusal) wholePod() bool {
	if r == nil {
		return false
	}
	_, ok := r.why[apiserver.WholePod]
	return ok
}

// status returns the status of a refused pod that doesn't run.
func (r *refusal) status(pod *corev1.Pod, now time.Time) corev1.PodStatus {
	why := r.why[apiserver.WholePod]
	s := *pod.Status.DeepCopy()
	s.Phase, s.Reason, s.Message, s.ObservedGeneration = corev1.PodPending, why.Reason, why.Message, pod.Generation
	if s.StartTime == nil {
		s.StartTime = stamp(now)
	}
	if s.QOSClass == "" {
		s.QOSClass = criconfig.QOS(pod)
	}
	if r.failed {
		s.Phase = corev1.PodFailed
		return s
	}
	waiting := func(of []corev1.Container) (out []corev1.ContainerStatus) {
		for i := range of {
			out = append(out, waitingStatus(&of[i], why))
		}
		return out
	}
	s.InitContainerStatuses, s.ContainerStatuses = waiting(pod.Spec.InitContainers), waiting(pod.Spec.Containers)
	c := conditions{&s, pod, now}
	for _, of := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
		c.put(of, false, why.Reason, why.Message)
	}
	return s
}

// ephemeral returns the statuses of the ephemeral containers that are refused.
func (r *refusal) ephemeral(pod *corev1.Pod) (out []corev1.ContainerStatus) {
	if r == nil {
		return nil
	}
	for i := range pod.Spec.EphemeralContainers {
		c := manifest.Ephemeral(&pod.Spec.EphemeralContainers[i])
		if why, ok := r.why[c.Name]; ok {
			out = append(out, waitingStatus(c, why))
		}
	}
	return out
}

func waitingStatus(c *corev1.Container, why admission.Refusal) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, Started: new(false),
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}},
	}
}
