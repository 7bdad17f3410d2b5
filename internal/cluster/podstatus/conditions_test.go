package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// TestIncompleteInitContainers: an init container is incomplete until it has ended well, also while
// it runs. A sidecar is complete once it has started.
func TestIncompleteInitContainers(t *testing.T) {
	t.Parallel()
	pod := onServer(parse(t, web))
	always := corev1.ContainerRestartPolicyAlways
	pod.Spec.InitContainers = []corev1.Container{{Name: "sidecar", RestartPolicy: &always}, {Name: "init1"}, {Name: "init2"}}
	p := agent.Pod{Manifest: pod, Source: "api:x", Status: podplan.Status{Phase: podplan.PhasePending, Containers: []podplan.ContainerStatus{
		{Name: "sidecar", Init: true, State: podplan.Running, Up: true},
		{Name: "init1", Init: true, State: podplan.Running, Up: true},
		{Name: "init2", Init: true, State: podplan.Waiting},
	}}}
	const want = "containers with incomplete status: [init1 init2]"
	for _, c := range statusOf(pod, p, criconfig.Node{}, time.Unix(1, 0)).Conditions {
		if c.Type == corev1.PodInitialized && (c.Status != corev1.ConditionFalse || c.Message != want) {
			t.Errorf("the condition is %s %q, want %q", c.Status, c.Message, want)
		}
	}
}
