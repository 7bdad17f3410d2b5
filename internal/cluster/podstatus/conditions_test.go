package podstatus

import (
	"fmt"
	"slices"
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

// TestNeverRan: the containers of a pod that was deleted before the node knew it have the states
// that a kubelet reports.
func TestNeverRan(t *testing.T) {
	t.Parallel()
	state := func(s corev1.ContainerStatus) string {
		switch {
		case s.State.Terminated != nil:
			return fmt.Sprint(s.Name, " ", s.State.Terminated.Reason, " ", s.State.Terminated.ExitCode)
		case s.State.Waiting != nil:
			return s.Name + " waits: " + s.State.Waiting.Reason
		}
		return s.Name + " runs"
	}
	runs := []corev1.ContainerStatus{{Name: "setup", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	for name, c := range map[string]struct {
		init []corev1.Container
		last []corev1.ContainerStatus
		want []string
	}{
		"of one container":       {nil, nil, []string{"c ContainerStatusUnknown 137"}},
		"with an init container": {[]corev1.Container{{Name: "setup"}}, nil, []string{"setup waits: PodInitializing", "c waits: PodInitializing"}},
		"its init container ran": {[]corev1.Container{{Name: "setup"}}, runs, []string{"setup ContainerStatusUnknown 137", "c waits: PodInitializing"}},
	} {
		pod := onServer(parse(t, web))
		pod.Spec.InitContainers, pod.Status.InitContainerStatuses = c.init, c.last
		var got []string
		s := neverRan(pod)
		for _, status := range slices.Concat(s.InitContainerStatuses, s.ContainerStatuses) {
			got = append(got, state(status))
		}
		if s.Phase != corev1.PodFailed || !slices.Equal(got, c.want) {
			t.Errorf("%s: %s, %v, want %v", name, s.Phase, got, c.want)
		}
		if before := pod.Status.InitContainerStatuses; len(before) > 0 && before[0].State.Running == nil {
			t.Errorf("%s: the server's pod was changed", name)
		}
	}
}
