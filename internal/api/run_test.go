package api

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
)

// TestUnsteady checks that a wait doubts a pod that became ready just now, unless a probe vouches
// for it.
func TestUnsteady(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for _, c := range []struct {
		name  string
		ready bool
		probe *corev1.Probe
		ran   time.Duration
		left  time.Duration
	}{
		{"just started", true, nil, 10 * time.Millisecond, steadyTime - 10*time.Millisecond},
		{"not ready", false, nil, 10 * time.Millisecond, 0},
		{"runs for long", true, nil, time.Hour, 0},
		{"probed", true, &corev1.Probe{}, 10 * time.Millisecond, 0},
		{"the clock was set back", true, nil, -time.Hour, steadyTime},
	} {
		p := agent.Pod{
			Manifest: &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", ReadinessProbe: c.probe}}}},
			Status: podplan.Status{Ready: c.ready, Containers: []podplan.ContainerStatus{
				{Name: "c", State: podplan.Running, Started: now.Add(-c.ran)},
			}},
		}
		if left := max(0, unsteady(p, now)); left != c.left {
			t.Errorf("%s: %v left, want %v", c.name, left, c.left)
		}
	}
}

func TestMessageOfACrash(t *testing.T) {
	t.Parallel()
	p := agent.Pod{Status: podplan.Status{Phase: podplan.PhaseRunning, Reason: "CrashLoopBackOff", Message: "back-off 10s restarting failed container c", Containers: []podplan.ContainerStatus{
		{Name: "c", State: podplan.Waiting, Reason: "CrashLoopBackOff", Message: "back-off 10s restarting failed container c", ExitCode: 3},
	}}}
	if got, want := runMessage(p), "CrashLoopBackOff: back-off 10s restarting failed container c (exit code 3)"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
