package criconfig

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestSwapLimit(t *testing.T) {
	t.Parallel()
	list := func(memory string) corev1.ResourceList {
		if memory == "" {
			return nil
		}
		return corev1.ResourceList{corev1.ResourceMemory: resource.MustParse(memory)}
	}
	const gi = 1 << 30
	limited := Swap{Limited: true, Bytes: 2 * gi}
	for name, c := range map[string]struct {
		request, limit string
		priority       int32
		swap           Swap
		want           string
	}{
		"a quarter":            {"1Gi", "", 0, limited, "536870912"},
		"with a limit":         {"1Gi", "2Gi", 0, limited, "536870912"},
		"no swap":              {"1Gi", "", 0, Swap{Limited: true}, "0"},
		"not limited":          {"1Gi", "", 0, Swap{}, ""},
		"without a request":    {"", "", 0, limited, "0"},
		"guaranteed":           {"1Gi", "1Gi", 0, limited, "0"},
		"critical":             {"1Gi", "", 2_000_000_000, limited, "0"},
		"more than the memory": {"5Gi", "", 0, limited, "0"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Priority: &c.priority, Containers: []corev1.Container{
			{Name: "c", Resources: corev1.ResourceRequirements{Requests: list(c.request), Limits: list(c.limit)}},
			{Name: "other", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}},
		}}}
		node := Node{Memory: 4 * gi, Unified: true, Swap: c.swap}
		if got := Resources(pod, &pod.Spec.Containers[0], node).Unified["memory.swap.max"]; got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
		node.Unified = false
		if got := Resources(pod, &pod.Spec.Containers[0], node).Unified; got != nil {
			t.Errorf("%s with cgroup v1: %v", name, got)
		}
	}
}
