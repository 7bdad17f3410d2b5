package lifecycle

import "testing"

var states = []State{Reserved, Mounting, Creating, Created, Starting, Running, Releasing, Exited, Removing}

// may is what can exist on the host while a state is recorded.
type may struct{ mount, process bool }

var exists = map[State]may{
	Mounting:  {mount: true},
	Creating:  {mount: true, process: true},
	Created:   {mount: true, process: true},
	Starting:  {mount: true, process: true},
	Running:   {mount: true, process: true},
	Releasing: {mount: true, process: true},
}

func covers(b, a may) bool { return (b.mount || !a.mount) && (b.process || !a.process) }

func TestNoTransitionForgetsWhatMayExist(t *testing.T) {
	for _, row := range Table() {
		if row.From == Releasing && row.On == Done {
			continue // that is what Release undoes
		}
		if !covers(exists[row.To], exists[row.From]) {
			t.Errorf("%s on %s leads to %s, which forgets some of %+v", row.From, row.On, row.To, exists[row.From])
		}
	}
}

func TestEveryStateSurvivesARestartAndAReboot(t *testing.T) {
	for _, s := range states {
		if _, _, ok := Next(s, Lost); !ok {
			t.Errorf("%s: a restart isn't provided for", s)
		}
		to, _, ok := Next(s, Reboot)
		if !ok || to.Live() {
			t.Errorf("%s: a reboot leads to %s", s, to)
		}
	}
}

// TestExitAndRemoveEndInRemoved walks down from every state that a restart
// leaves, with every action failing first.
func TestExitAndRemoveEndInRemoved(t *testing.T) {
	for _, start := range states {
		s, _, _ := Next(start, Lost)
		if to, _, ok := Next(s, Exit); ok {
			s = to
		}
		if s == Releasing {
			if to, _, _ := Next(s, Fail); to != s {
				t.Errorf("a failed release leads to %s", to)
			}
			s, _, _ = Next(s, Done)
		}
		s, do, ok := Next(s, Destroy)
		if !ok || do != Clean {
			t.Fatalf("from %s: can't be removed in %s", start, s)
		}
		if s, _, _ = Next(s, Done); s != Removed {
			t.Errorf("from %s: ends in %s", start, s)
		}
	}
}

func TestEachRowIsThereOnce(t *testing.T) {
	type key struct {
		s State
		e Event
	}
	seen := map[key]bool{}
	for _, row := range Table() {
		k := key{row.From, row.On}
		if seen[k] {
			t.Errorf("%s on %s is there twice", row.From, row.On)
		}
		seen[k] = true
		to, do, ok := Next(row.From, row.On)
		if !ok || to != row.To || do != row.Action {
			t.Errorf("%s on %s: %s, %q, %v", row.From, row.On, to, do, ok)
		}
	}
	for _, s := range states {
		if _, _, ok := Next(s, Make); ok != (s == Reserved) {
			t.Errorf("%s: make is allowed: %v", s, ok)
		}
		if _, _, ok := Next(s, Run); ok != (s == Created) {
			t.Errorf("%s: run is allowed: %v", s, ok)
		}
		if _, _, ok := Next(s, Destroy); ok != (s == Exited || s == Removing) {
			t.Errorf("%s: remove is allowed: %v", s, ok)
		}
	}
}
