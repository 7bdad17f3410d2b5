package podplan

import (
	"testing"
	"time"
)

// TestClockIsSetBack has runs that ended in the future: a clock may be set back, and the clock of a
// node without a battery may be behind the times recorded before its last boot.
func TestClockIsSetBack(t *testing.T) {
	s := makeSpec(t, "Always", "a")
	s.Started = start.Add(-time.Hour)
	o := observe(t, s.Pod, "sb0 a.0:exit=1@3000 a.1:exit=1@3600")
	// The decision is made an hour before the second exit.
	d := Plan(s, o, at(0))
	if got := d.Backoffs[keyContainer("a")]; got.Count != 2 || !got.Last.Equal(at(0)) {
		t.Fatalf("two exits are counted as %+v", got)
	}
	if show(d.Actions) != "" || !d.Next.Equal(at(10)) {
		t.Errorf("actions %q, next at %v; want none and a wait of 10s", show(d.Actions), d.Next.Sub(start))
	}
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(1)); d.Backoffs[keyContainer("a")].Count != 2 {
		t.Errorf("the same exits are counted twice: %+v", d.Backoffs)
	}
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(11)); show(d.Actions) != "start:a.2@sb0" {
		t.Errorf("actions %q after the wait", show(d.Actions))
	}
	// It fails again, at a time before the others. That counts too.
	o = observe(t, s.Pod, "sb0 a.1:exit=1@3600 a.2:exit=1@12")
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(12)); d.Backoffs[keyContainer("a")].Count != 3 || show(d.Actions) != "" || !d.Next.Equal(at(32)) {
		t.Errorf("backoffs %+v, actions %q, next at %v", d.Backoffs, show(d.Actions), d.Next.Sub(start))
	}
	// While it waits, the clock is set back once more.
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(-5000)); !d.Next.Equal(at(-5000 + 20)) {
		t.Errorf("next at %v, want at most 20s from then", d.Next.Sub(start))
	}
}

// TestPullAlwaysWithClockSetBack checks that policy Always pulls once per start even if the last
// start is in the future.
func TestPullAlwaysWithClockSetBack(t *testing.T) {
	s := makeSpec(t, "Always", "a")
	s.Pod.Spec.Containers[0].ImagePullPolicy = "Always"
	o := observe(t, s.Pod, "sb0 a.0:exit=0@3600")
	if d := Plan(s, o, at(0)); show(d.Actions) != "pull:a" {
		t.Fatalf("actions %q, want a pull", show(d.Actions))
	}
	o.Images["img-a:1"] = Image{State: ImagePresent, Pulled: at(1)}
	if d := Plan(s, o, at(2)); show(d.Actions) != "start:a.1@sb0" {
		t.Errorf("actions %q after the pull", show(d.Actions))
	}
}

// TestReset checks that exits from before a pod was told to run again aren't counted again.
func TestReset(t *testing.T) {
	t.Parallel()
	s := makeSpec(t, "Always", "a")
	state := "sb0 a.0:exit=143@5 a.1:exit=143@9"
	o := observe(t, s.Pod, state)
	s.Want, s.Since = Stop, at(9)
	o.Backoffs = Plan(s, o, at(10)).Backoffs.Reset()
	s.Want = Run
	if d := Plan(s, o, at(11)); show(d.Actions) != "start:a.2@sb0" {
		t.Errorf("actions %q, next at %v; want a start", show(d.Actions), d.Next.Sub(start))
	}
	if again := Backoffs(nil).Reset(); len(again) > 0 {
		t.Errorf("reset of nil: %v", again)
	}
}
