package admission

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// sized returns a pod with requests and a priority. If guaranteed is set, it has limits too.
func sized(t *testing.T, name, requests string, priority int32, guaranteed bool) *corev1.Pod {
	t.Helper()
	p := requesting(t, name, requests)
	p.Spec.Priority = &priority
	if guaranteed {
		p.Spec.Containers[0].Resources.Limits = p.Spec.Containers[0].Resources.Requests
	}
	return p
}

func TestVictims(t *testing.T) {
	t.Parallel()
	const critical = 2_000_000_000
	allocatable := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi"), corev1.ResourcePods: resource.MustParse("5")}
	for name, c := range map[string]struct {
		wants  string
		others []*corev1.Pod
		want   string // "too few" if there aren't enough
	}{
		"fits": {"cpu: 1", []*corev1.Pod{sized(t, "a", "cpu: 3", 0, false)}, ""},
		"the one that suffices": {"cpu: 2", []*corev1.Pod{
			sized(t, "small", "cpu: 500m", 0, false), sized(t, "large", "cpu: 3", 0, false),
		}, "large"},
		"the smaller of two": {"cpu: 1", []*corev1.Pod{
			sized(t, "large", "cpu: 2, memory: 2Gi", 0, false), sized(t, "small", "cpu: 2, memory: 1Gi", 0, false),
		}, "small"},
		"the lower class first": {"cpu: 1", []*corev1.Pod{
			sized(t, "guaranteed", "cpu: 2, memory: 1Gi", 0, true), sized(t, "b1", "cpu: 1", 0, false), sized(t, "b2", "cpu: 1", 0, false),
		}, "b1"},
		"as much of the higher class as needed": {"cpu: 3", []*corev1.Pod{
			sized(t, "g1", "cpu: 1, memory: 1Gi", 0, true), sized(t, "g2", "cpu: 2, memory: 1Gi", 0, true), sized(t, "b", "cpu: 1", 0, false),
		}, "g2 b"},
		"both resources": {"cpu: 3, memory: 3Gi", []*corev1.Pod{
			sized(t, "cpu", "cpu: 3", 0, false), sized(t, "memory", "memory: 3Gi", 0, false), sized(t, "none", "", 0, false),
		}, "cpu memory"},
		"critical pods stay": {"cpu: 2", []*corev1.Pod{sized(t, "a", "cpu: 3", critical, false)}, "too few"},
		"unless theirs is lower": {"cpu: 2", []*corev1.Pod{
			sized(t, "lower", "cpu: 3", critical, false), sized(t, "small", "cpu: 1", 0, false),
		}, "too few"},
		"too large": {"cpu: 5", []*corev1.Pod{sized(t, "a", "cpu: 3", 0, false)}, "too few"},
		"too many": {"cpu: 1m", []*corev1.Pod{
			sized(t, "a", "cpu: 10m", 0, false), sized(t, "b", "", 0, false), sized(t, "c", "", 0, false), sized(t, "d", "", 0, false), sized(t, "e", "", 0, false),
		}, "b"},
	} {
		pod := sized(t, "critical", c.wants, critical, false)
		victims, err := Victims(pod, c.others, Short(allocatable, pod, c.others))
		var got []string
		for _, v := range victims {
			got = append(got, v.Name)
		}
		if c.want == "too few" {
			got = []string{"too few"}
			if !errors.Is(err, ErrTooFew) || !strings.Contains(err.Error(), "cpu") {
				got = []string{fmt.Sprint(err)}
			}
		} else if err != nil {
			t.Error(err)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
	higher := sized(t, "higher", "cpu: 2", critical+1000, false)
	lower := []*corev1.Pod{sized(t, "lower", "cpu: 3", critical, false)}
	if victims, err := Victims(higher, lower, Short(allocatable, higher, lower)); err != nil || !slices.Equal(victims, lower) {
		t.Errorf("%v, %v", victims, err)
	}
}
