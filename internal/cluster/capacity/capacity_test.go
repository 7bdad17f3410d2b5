package capacity

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(t *testing.T, reserved map[string]string) corev1.ResourceList {
	t.Helper()
	out, err := Parse(reserved)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAllocatable(t *testing.T) {
	t.Parallel()
	capacity := list(t, map[string]string{"cpu": "2", "memory": "4Gi", "ephemeral-storage": "10Gi"})
	capacity[corev1.ResourcePods] = resource.MustParse("110")
	kube := list(t, map[string]string{"cpu": "100m", "memory": "1Gi", "pid": "1000"})
	system := list(t, map[string]string{"cpu": "200m", "ephemeral-storage": "11Gi"})
	got := Allocatable(capacity, kube, system)
	want := list(t, map[string]string{"cpu": "1700m", "memory": "3Gi", "ephemeral-storage": "0"})
	want[corev1.ResourcePods] = resource.MustParse("110")
	if !equality.Semantic.DeepEqual(got, want) {
		t.Errorf("allocatable %v, want %v", got, want)
	}
	if before := capacity[corev1.ResourceMemory]; before.String() != "4Gi" {
		t.Error("Allocatable has changed the capacity")
	}
	if err := Check(capacity, kube); err != nil {
		t.Error(err)
	}
	if err := Check(capacity, kube, system); err == nil || !strings.Contains(err.Error(), "reserve 11Gi of ephemeral-storage, but the node has 10Gi") {
		t.Errorf("reserving more than there is: %v", err)
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	_, err := Parse(map[string]string{"cpu": "x", "memory": "-1", "nvidia.com/gpu": "1"})
	if err == nil || strings.Count(err.Error(), "\n") != 2 || !strings.Contains(err.Error(), `"nvidia.com/gpu" can't be reserved`) {
		t.Errorf("got %v", err)
	}
}
