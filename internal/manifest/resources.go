package manifest

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest/podspec"
)

// setPodResources sets the requests and limits of the pod as a whole that follow from the others.
// As in an API server, a pod that sets some of them gets the sums of its containers' requests and
// of their limits of huge pages, and then its limits as requests.
func setPodResources(pod *corev1.Pod) {
	r := pod.Spec.Resources
	if r == nil || len(r.Limits)+len(r.Requests) == 0 {
		return
	}
	sum := func(list *corev1.ResourceList, of func(*corev1.Container, corev1.ResourceName) (resource.Quantity, bool), name corev1.ResourceName) {
		if _, ok := (*list)[name]; ok {
			return
		}
		if q := Total(pod, of, name); !q.IsZero() {
			if *list == nil {
				*list = corev1.ResourceList{}
			}
			(*list)[name] = *q
		}
	}
	forEachContainer(pod, func(c *corev1.Container, _ string, _ bool) {
		for name := range c.Resources.Limits {
			if _, huge := HugePageSize(name); huge {
				if _, requested := r.Requests[name]; !requested {
					sum(&r.Limits, hugePagesOf, name)
				}
			}
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			sum(&r.Requests, RequestOf, name)
		}
	})
	setDefaultRequests(r)
}

// hugePagesOf returns a container's limit of huge pages, which is zero if it has none.
func hugePagesOf(c *corev1.Container, name corev1.ResourceName) (resource.Quantity, bool) {
	return c.Resources.Limits[name].DeepCopy(), true
}

// RequestOf returns a copy of a container's request, because Quantity.Add may modify memory that
// quantities share.
func RequestOf(c *corev1.Container, name corev1.ResourceName) (resource.Quantity, bool) {
	return c.Resources.Requests[name].DeepCopy(), true
}

// LimitOf returns a copy of a container's limit, if it has one.
func LimitOf(c *corev1.Container, name corev1.ResourceName) (resource.Quantity, bool) {
	q, ok := c.Resources.Limits[name]
	return q.DeepCopy(), ok && !q.IsZero()
}

// Total returns the largest sum of values that run at the same time: those of the containers and
// sidecars, or that of an init container and the sidecars before it. It is zero if a container has
// no value.
func Total(pod *corev1.Pod, of func(*corev1.Container, corev1.ResourceName) (resource.Quantity, bool), name corev1.ResourceName) *resource.Quantity {
	var sidecars, most resource.Quantity
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		q, ok := of(c, name)
		if !ok {
			return &resource.Quantity{}
		}
		if podspec.IsSidecar(c) {
			sidecars.Add(q)
			continue
		}
		q.Add(sidecars)
		if q.Cmp(most) > 0 {
			most = q
		}
	}
	sum := sidecars
	for i := range pod.Spec.Containers {
		q, ok := of(&pod.Spec.Containers[i], name)
		if !ok {
			return &resource.Quantity{}
		}
		sum.Add(q)
	}
	if most.Cmp(sum) > 0 {
		sum = most
	}
	return &sum
}
