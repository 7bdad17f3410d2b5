package workload

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// BenchmarkPlan plans a Deployment with 1,000 pods that are ready.
func BenchmarkPlan(b *testing.B) {
	w := &Workload{Ref: Ref{Deployment, "default", "web"}, Template: &corev1.Pod{}, Replicas: 1000, Rollout: Rollout{Strategy: RollingUpdate}}
	in := Input{Workload: w, Now: start}
	first := Plan(in)
	in.State = first.State
	for i, pod := range first.Create {
		in.Pods = append(in.Pods, Pod{Name: fmt.Sprint(i), UID: fmt.Sprint(i), Revision: RevisionOf(pod), Created: start, Ready: true, ReadySince: start})
	}
	b.ReportAllocs()
	for b.Loop() {
		if d := Plan(in); !d.Status.Done {
			b.Fatal(d.Status)
		}
	}
}
