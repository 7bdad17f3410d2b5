package podstatus

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestStatusPatch(t *testing.T) {
	t.Parallel()
	then := metav1.Unix(0, 0)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, Message: "away with it", PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
		Conditions: []corev1.PodCondition{
			{Type: "Ready", Status: "False", Reason: "Because", LastTransitionTime: then},
			{Type: "theirs", Status: "True", LastTransitionTime: then}, {Type: "dropped", Status: "True", LastTransitionTime: then},
		},
		ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}},
	}
	reordered := *pod.Status.DeepCopy()
	slices.Reverse(reordered.Conditions)
	for _, same := range []corev1.PodStatus{pod.Status, reordered} {
		if patch, err := statusPatch(pod.UID, pod.Status, same); err != nil || patch != nil {
			t.Errorf("without a change: got %s, %v", patch, err)
		}
	}
	after := *pod.Status.DeepCopy()
	after.Message, after.PodIP, after.PodIPs = "", "10.0.0.2", []corev1.PodIP{{IP: "10.0.0.2"}}
	after.Conditions = []corev1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: then}, pod.Status.Conditions[1]}
	want := `{"metadata":{"uid":"u"},"status":{"conditions":[{"lastProbeTime":null,"lastTransitionTime":"1970-01-01T00:00:00Z","message":null,"observedGeneration":null,"reason":null,"status":"True","type":"Ready"},` +
		`{"$patch":"delete","type":"dropped"}],"message":null,"podIP":"10.0.0.2","podIPs":[{"$patch":"replace"},{"ip":"10.0.0.2"}]}}`
	if patch, err := statusPatch(pod.UID, pod.Status, after); err != nil || string(patch) != want {
		t.Errorf("got %v\n%s, want\n%s", err, patch, want)
	}
}
