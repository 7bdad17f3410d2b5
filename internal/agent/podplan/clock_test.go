package podplan

import (
	"testing"
	"time"
)

// The clock of a node without a battery may be behind what was recorded before
// its last boot, and any clock may be set.
func TestClockIsSetBack(t *testing.T) {
	s := makeSpec(t, "Always", "a")
	s.Started = start.Add(-time.Hour)
	o := observe(t, s.Pod, "sb0 a.0:exit=1@3000 a.1:exit=1@3600")
	// It is decided an hour before the second end.
	d := Plan(s, o, at(0))
	if got := d.Backoffs[keyContainer("a")]; got.Count != 2 || !got.Last.Equal(at(0)) {
		t.Fatalf("two ends count as %+v", got)
	}
	if show(d.Actions) != "" || !d.Next.Equal(at(10)) {
		t.Errorf("does %q, next at %v, want to wait for ten seconds", show(d.Actions), d.Next.Sub(start))
	}
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(1)); d.Backoffs[keyContainer("a")].Count != 2 {
		t.Errorf("the same ends are counted again: %+v", d.Backoffs)
	}
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(11)); show(d.Actions) != "start:a.2@sb0" {
		t.Errorf("does %q after its wait", show(d.Actions))
	}
	// It fails again, at a time before that of the others: that counts too.
	o = observe(t, s.Pod, "sb0 a.1:exit=1@3600 a.2:exit=1@12")
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(12)); d.Backoffs[keyContainer("a")].Count != 3 || show(d.Actions) != "" || !d.Next.Equal(at(32)) {
		t.Errorf("%+v, does %q, next at %v", d.Backoffs, show(d.Actions), d.Next.Sub(start))
	}
	// While it waits, the clock is set back once more.
	o.Backoffs = d.Backoffs
	if d = Plan(s, o, at(-5000)); !d.Next.Equal(at(-5000 + 20)) {
		t.Errorf("next at %v, want twenty seconds from then at most", d.Next.Sub(start))
	}
}

// A pull for each start is one pull, also if the last start seems yet to come.
func TestPullAlwaysWithClockSetBack(t *testing.T) {
	s := makeSpec(t, "Always", "a")
	s.Pod.Spec.Containers[0].ImagePullPolicy = "Always"
	o := observe(t, s.Pod, "sb0 a.0:exit=0@3600")
	if d := Plan(s, o, at(0)); show(d.Actions) != "pull:a" {
		t.Fatalf("does %q, want a pull", show(d.Actions))
	}
	o.Images["img-a:1"] = Image{State: ImagePresent, Pulled: at(1)}
	if d := Plan(s, o, at(2)); show(d.Actions) != "start:a.1@sb0" {
		t.Errorf("does %q once it is pulled", show(d.Actions))
	}
}

// What ended before a pod was told to run again is not counted once more.
func TestReset(t *testing.T) {
	t.Parallel()
	s := makeSpec(t, "Always", "a")
	words := "sb0 a.0:exit=143@5 a.1:exit=143@9"
	o := observe(t, s.Pod, words)
	s.Want, s.Since = Stop, at(9)
	o.Backoffs = Plan(s, o, at(10)).Backoffs.Reset()
	s.Want = Run
	if d := Plan(s, o, at(11)); show(d.Actions) != "start:a.2@sb0" {
		t.Errorf("does %q, next at %v, want a start", show(d.Actions), d.Next.Sub(start))
	}
	if again := Backoffs(nil).Reset(); len(again) > 0 {
		t.Errorf("%v", again)
	}
}
