package criconfig

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/manifest"
)

// Resources are the limits of a container of the pod.
func Resources(pod *corev1.Pod, c *corev1.Container, n Node) *runtimeapi.LinuxContainerResources {
	return containerResources(pod, c, n)
}

// Requested is what a pod asks for of a resource.
func Requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	return podRequest(pod, name).DeepCopy()
}

// PodResources are the limits of the pod as a whole.
func PodResources(pod *corev1.Pod) *runtimeapi.LinuxContainerResources { return podResources(pod) }

// Find returns the pod's container of that name, also an ephemeral one, or nil.
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

// WithResources is a pod with the resources of another.
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

// Resized says whether the pod or a container has other limits or requests.
func Resized(before, after *corev1.Pod) bool {
	return !equality.Semantic.DeepEqual(WithResources(after, before).Spec, after.Spec)
}

// Precede compares pods by who comes first where there isn't enough for all: those
// of the higher priority, then those of the better class.
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
