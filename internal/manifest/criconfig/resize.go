package criconfig

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/huskd/husk/internal/manifest"
)

// FindContainer returns the pod's container with the name, which may be an ephemeral one, or nil.
func FindContainer(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		if c := manifest.Ephemeral(&pod.Spec.EphemeralContainers[i]); c.Name == name {
			return c
		}
	}
	return nil
}

// WithResources returns a copy of pod with the resources of another pod.
func WithResources(pod, from *corev1.Pod) *corev1.Pod {
	out := pod.DeepCopy()
	out.Spec.Resources = from.Spec.Resources.DeepCopy()
	for _, list := range [][]corev1.Container{out.Spec.InitContainers, out.Spec.Containers} {
		for i := range list {
			if was := FindContainer(from, list[i].Name); was != nil {
				list[i].Resources = *was.Resources.DeepCopy()
			}
		}
	}
	return out
}

// Resized reports whether the limits or requests of the pod or a container differ.
func Resized(before, after *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(WithResources(after, before).Spec, after.Spec)
}

// criticalPriority is the lowest priority of the pods that a cluster can't do without
// (system-cluster-critical and above).
const criticalPriority = 2_000_000_000

// Critical reports whether a pod is one that a cluster can't do without, by its priority. The name
// of the class counts for pods that no API server has given a priority.
func Critical(pod *corev1.Pod) bool {
	if pod.Spec.Priority != nil {
		return *pod.Spec.Priority >= criticalPriority
	}
	return pod.Spec.PriorityClassName == "system-node-critical" || pod.Spec.PriorityClassName == "system-cluster-critical"
}

// ComparePriority orders pods for when resources are scarce: by descending priority, then by QoS
// class.
func ComparePriority(a, b *corev1.Pod) int {
	priority := func(pod *corev1.Pod) int32 {
		if pod.Spec.Priority == nil {
			return 0
		}
		return *pod.Spec.Priority
	}
	class := func(pod *corev1.Pod) int {
		return slices.Index([]corev1.PodQOSClass{corev1.PodQOSGuaranteed, corev1.PodQOSBurstable, corev1.PodQOSBestEffort}, QOS(pod))
	}
	return cmp.Or(cmp.Compare(priority(b), priority(a)), cmp.Compare(class(a), class(b)))
}
