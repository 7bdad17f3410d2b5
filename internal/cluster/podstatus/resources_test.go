package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// TestPodLevelResources resizes a pod as a whole: its status has the former resources until the
// new ones are in force.
func TestPodLevelResources(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{Spec: corev1.PodSpec{Resources: &corev1.ResourceRequirements{}}}
	report := func(limit string, resize agent.Resize) (allocated, actual string) {
		cpu := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(limit)}
		pod.Spec.Resources = &corev1.ResourceRequirements{Requests: cpu, Limits: cpu}
		pod.Status = statusOf(pod, agent.Pod{Manifest: pod, Resize: resize, Status: podplan.Status{Phase: podplan.PhaseRunning}}, criconfig.Node{}, time.Unix(1, 0))
		return pod.Status.AllocatedResources.Cpu().String(), pod.Status.Resources.Limits.Cpu().String()
	}
	for _, c := range []struct {
		limit     string
		resize    agent.Resize
		allocated string
		actual    string
	}{
		{"1", agent.Resize{}, "1", "1"},
		{"2", agent.Resize{Applying: true}, "2", "1"},
		{"2", agent.Resize{}, "2", "2"},
	} {
		if allocated, actual := report(c.limit, c.resize); allocated != c.allocated || actual != c.actual {
			t.Errorf("%+v: %s is allocated, the limit is %s", c, allocated, actual)
		}
	}
}
