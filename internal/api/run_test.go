package api

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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

// TestTooManyCrashes checks when a wait gives up a pod that crashes again and again.
func TestTooManyCrashes(t *testing.T) {
	t.Parallel()
	pod := func(restarts int, reason string) agent.Pod {
		return agent.Pod{
			Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}},
			Status:   podplan.Status{Containers: []podplan.ContainerStatus{{Name: "c", Restarts: restarts, Reason: reason, ExitCode: 3}}},
		}
	}
	const before = 7 // restarts before the wait don't count
	seen := crashCount{}
	for _, c := range []struct {
		restarts int
		reason   string
		gives    bool
	}{{before, crashLoop, false}, {before + 3, crashLoop, false}, {before + 4, "", false}, {before + 4, crashLoop, true}} {
		if why := seen.tooMany(pod(c.restarts, c.reason)); (why != "") != c.gives || c.gives && !strings.Contains(why, "container c has crashed 5 times, last with exit code 3") {
			t.Errorf("after %d restarts, %q: %q", c.restarts, c.reason, why)
		}
	}
}
