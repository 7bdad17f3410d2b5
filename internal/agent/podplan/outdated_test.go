package podplan

import "testing"

// TestOutdated checks that a container whose image was changed is stopped and restarted at once,
// however often it failed before. With restartPolicy Never it keeps running.
func TestOutdated(t *testing.T) {
	t.Parallel()
	for policy, stops := range map[string]bool{"Always": true, "OnFailure": true, "Never": false} {
		spec := makeSpec(t, policy, "a b")
		o := observe(t, spec.Pod, "sb0 a.0:run b.0:run")
		o.Containers[0].Outdated = true
		d := Plan(spec, o, at(5))
		if got := len(d.Actions) == 1; got != stops {
			t.Fatalf("%s: %v", policy, d.Actions)
		}
		if !stops {
			continue
		}
		if stop, ok := d.Actions[0].(StopContainer); !ok || stop.ID != o.Containers[0].ID || stop.Grace == 0 {
			t.Errorf("%s: %v", policy, d.Actions)
		}
		// Its exit doesn't count as a failure, even after three failures.
		for i, end := range []string{"0@10", "137@10"} {
			o = observe(t, spec.Pod, "sb0 a.0:exit="+end+" b.0:run")
			o.Containers[0].Outdated = true
			o.Backoffs = Backoffs{keyContainer("a"): {Count: 3, Last: at(1)}}
			d = Plan(spec, o, at(11))
			if start, ok := d.Actions[0].(StartContainer); len(d.Actions) != 1 || !ok || start.Name != "a" || start.Attempt != 1 {
				t.Errorf("%s, exit %d: %v, next %v", policy, i, d.Actions, d.Next)
			}
		}
	}
}
