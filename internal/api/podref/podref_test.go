package podref

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/workload"
	"github.com/huskd/husk/internal/workload/controller"
)

// TestPodOf checks which pod of a workload a command uses.
func TestPodOf(t *testing.T) {
	web := workload.Ref{Kind: workload.StatefulSet, Namespace: "default", Name: "web"}
	pod := func(name, owner, source string, phase podplan.Phase, ready bool) agent.Pod {
		controls := true
		return agent.Pod{
			Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name,
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: string(workload.StatefulSet), Name: owner, Controller: &controls}},
			}},
			Source: source, Status: podplan.Status{Phase: phase, Ready: ready},
		}
	}
	const source = controller.Source
	for _, c := range []struct {
		want string
		pods []agent.Pod
	}{
		{"", nil},
		{"", []agent.Pod{pod("web-0", "web", "run", podplan.PhaseRunning, true), pod("db-0", "db", source, podplan.PhaseRunning, true)}},
		{"web-0", []agent.Pod{pod("web-0", "web", source, podplan.PhaseFailed, false)}},
		{"web-1", []agent.Pod{pod("web-0", "web", source, podplan.PhaseFailed, false), pod("web-1", "web", source, podplan.PhasePending, false)}},
		{"web-2", []agent.Pod{pod("web-1", "web", source, podplan.PhaseRunning, false), pod("web-2", "web", source, podplan.PhaseRunning, true), pod("web-3", "web", source, podplan.PhaseRunning, true)}},
	} {
		p, ok := podOf(c.pods, web)
		if ok != (c.want != "") || ok && p.Manifest.Name != c.want {
			t.Errorf("of %d pods, %v, %t; want %s", len(c.pods), p.Manifest, ok, c.want)
		}
	}
}
