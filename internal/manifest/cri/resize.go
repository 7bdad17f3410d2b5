package cri

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
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
