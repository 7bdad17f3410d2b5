package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestResized(t *testing.T) {
	t.Parallel()
	of := func(memory string) *corev1.Pod {
		limits := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "x", Resources: corev1.ResourceRequirements{Limits: limits}}}}}
	}
	before, after := of("64Mi"), of("65536Ki")
	after.Spec.Containers[0].Image, after.Labels = "other", map[string]string{"a": "b"}
	if Resized(before, after) {
		t.Error("a different image counts as a resize")
	}
	after.Spec.Resources = &corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}}
	if !Resized(before, after) {
		t.Error("a resize of the pod as a whole is not detected")
	}
	after = of("65Mi")
	if held := WithResources(after, before); !Resized(before, after) || Resized(before, held) || !Resized(held, after) {
		t.Error("a resize of a container is not detected")
	}
}

func TestFindContainer(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "i"}}, Containers: []corev1.Container{{Name: "c"}},
		EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e"}}},
	}}
	for _, name := range []string{"i", "c", "e"} {
		if c := FindContainer(pod, name); c == nil || c.Name != name {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if FindContainer(pod, "x") != nil {
		t.Error("it found a container that doesn't exist")
	}
}

func TestComparePriority(t *testing.T) {
	t.Parallel()
	of := func(priority *int32, memory string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Priority: priority, Containers: []corev1.Container{{Name: "c"}}}}
		if memory != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
		}
		return p
	}
	order := []*corev1.Pod{of(new(int32(9)), ""), of(nil, "1Mi"), of(nil, ""), of(new(int32(-1)), "1Mi")}
	for i := range order {
		for j := range order {
			if got := ComparePriority(order[i], order[j]); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%d and %d: %d", i, j, got)
			}
		}
	}
}
