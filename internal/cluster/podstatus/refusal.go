package podstatus

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
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
	pod *corev1.Pod
	// said is when events last said why. Invariant: Reporter.mu guards it.
	said time.Time
}

// remindTime is how often an event says again that a pod waits for something that this node doesn't
// have. Its status says only that the containers are being created, and the server keeps events for
// an hour.
const remindTime = 10 * time.Minute

// Reject reports a pod that this node hasn't admitted as failed.
func (r *Reporter) Reject(pod *corev1.Pod, why admission.Refusal) {
	r.setRefusal(pod, &refusal{failed: true, why: map[string]admission.Refusal{apiserver.WholePod: why}})
}

// Refuse reports why a pod or some of its ephemeral containers, by their names, aren't run. A pod
// that doesn't run yet is pending. One that runs goes on as it was.
func (r *Reporter) Refuse(pod *corev1.Pod, why map[string]admission.Refusal) {
	r.setRefusal(pod, &refusal{why: why})
}

// Forget drops what is refused of a pod that is no longer on the server.
func (r *Reporter) Forget(uid types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.refused, uid)
}

// setRefusal replaces the refusal of a pod and adds an event for each new reason.
func (r *Reporter) setRefusal(pod *corev1.Pod, next *refusal) {
	next.pod, next.said = pod, time.Now()
	r.mu.Lock()
	last := r.refused[pod.UID]
	r.refused[pod.UID] = next
	r.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(next.why)) {
		if last == nil || last.why[name] != next.why[name] {
			r.say(next, name)
		}
	}
	r.Nudge()
}

// say adds the event of a refusal.
func (r *Reporter) say(s *refusal, container string) {
	why := s.why[container]
	r.Events.Add(event.Event{Pod: s.pod.Namespace + "/" + s.pod.Name, UID: string(s.pod.UID), Container: container, Warning: true, Reason: why.Reason, Message: why.Message})
}

// remind repeats the events of pods that wait.
func (r *Reporter) remind(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.refused {
		if s.wholePod() && !s.failed && now.Sub(s.said) >= remindTime {
			s.said = now
			r.say(s, apiserver.WholePod)
		}
	}
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
func (r *refusal) status(pod *corev1.Pod, node criconfig.Node, now time.Time) corev1.PodStatus {
	why := r.why[apiserver.WholePod]
	if !r.failed && why.Reason != apiserver.ReasonNotSupported {
		return waitingAsWithKubelet(pod, why, node, now)
	}
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
	s.InitContainerStatuses, s.ContainerStatuses = waiting(pod.Spec.InitContainers, why), waiting(pod.Spec.Containers, why)
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

// waitingAsWithKubelet returns the status of a pod that waits for what a kubelet would wait for,
// too. Like a kubelet's, it says that the containers are being created; events say what is missing.
func waitingAsWithKubelet(pod *corev1.Pod, why admission.Refusal, node criconfig.Node, now time.Time) corev1.PodStatus {
	p := agent.Pod{Manifest: pod, Created: now, Want: podplan.Run, Status: podplan.Status{Phase: podplan.PhasePending, Initialized: len(pod.Spec.InitContainers) == 0}}
	for i, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, c := range list {
			p.Status.Containers = append(p.Status.Containers, podplan.ContainerStatus{
				Name: c.Name, Image: c.Image, Init: i == 0, State: podplan.Waiting, Reason: podplan.NotStartedReason(pod), Message: why.Message,
			})
		}
	}
	return statusOf(pod, p, node, now)
}

// waiting returns the statuses of containers that wait.
func waiting(containers []corev1.Container, why admission.Refusal) (out []corev1.ContainerStatus) {
	for i := range containers {
		out = append(out, waitingStatus(&containers[i], why))
	}
	return out
}

func waitingStatus(c *corev1.Container, why admission.Refusal) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		Name: c.Name, Image: c.Image, Started: new(false),
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: why.Reason, Message: why.Message}},
	}
}
