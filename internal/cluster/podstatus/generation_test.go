package podstatus

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// TestObservedGeneration: a status and its conditions have the generation of the pod from which
// they were computed, though the server has a newer one.
func TestObservedGeneration(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		source               string
		resize               agent.Resize
		server, agents, last int64 // generations
		want                 int64
	}{
		"current":                         {"api:/x", agent.Resize{}, 4, 4, 3, 4},
		"older than the server's":         {"api:/x", agent.Resize{}, 4, 3, 3, 3},
		"of a resize in flight":           {"api:/x", agent.Resize{Applying: true}, 5, 4, 3, 4},
		"of a held resize":                {"api:/x", agent.Resize{Held: corev1.PodReasonDeferred}, 5, 4, 3, 4},
		"recorded without one":            {"api:/x", agent.Resize{}, 4, 0, 3, 3},
		"of a server without generations": {"api:/x", agent.Resize{}, 0, 0, 0, 0},
		"of a mirror":                     {"file:/x", agent.Resize{}, 1, 0, 0, 1},
	} {
		pod := onServer(parse(t, web))
		p := agent.Pod{Manifest: parse(t, web), Source: c.source, Resize: c.resize, Status: podplan.Status{Phase: podplan.PhaseRunning}}
		pod.Generation, pod.Status.ObservedGeneration, p.Manifest.Generation = c.server, c.last, c.agents
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, ObservedGeneration: c.last}, {Type: "example.com/theirs", ObservedGeneration: 9}}
		s := statusOf(pod, p, criconfig.Node{}, time.Unix(1, 0))
		if s.ObservedGeneration != c.want {
			t.Errorf("%s: the status has generation %d, want %d", name, s.ObservedGeneration, c.want)
		}
		for _, condition := range s.Conditions {
			want := c.want
			if condition.Type == "example.com/theirs" {
				want = 9
			}
			if condition.ObservedGeneration != want {
				t.Errorf("%s: condition %s has generation %d, want %d", name, condition.Type, condition.ObservedGeneration, want)
			}
		}
	}
}
