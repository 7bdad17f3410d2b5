package containerstate

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
	for from, rows := range Table.To {
		for on, to := range rows {
			if from == Releasing && on == Done {
				continue // Release has undone it
			}
			if !covers(exists[to], exists[from]) {
				t.Errorf("%s on %s leads to %s, which forgets some of %+v", from, on, to, exists[from])
			}
		}
	}
}

func TestEveryStateSurvivesARestartAndAReboot(t *testing.T) {
	for _, s := range states {
		if _, _, ok := Table.Next(s, Lost); !ok {
			t.Errorf("%s doesn't allow a restart", s)
		}
		to, _, ok := Table.Next(s, Reboot)
		if !ok || to.Live() {
			t.Errorf("%s: a reboot leads to %s", s, to)
		}
	}
}

// TestExitAndRemoveEndInRemoved ends and removes from every state that a restart can lead to. A
// failed release must leave the state as it is.
func TestExitAndRemoveEndInRemoved(t *testing.T) {
	for _, start := range states {
		s, _, _ := Table.Next(start, Lost)
		if to, _, ok := Table.Next(s, Exit); ok {
			s = to
		}
		if s == Releasing {
			if to, _, _ := Table.Next(s, Fail); to != s {
				t.Errorf("a failed release leads to %s", to)
			}
			s, _, _ = Table.Next(s, Done)
		}
		s, do, ok := Table.Next(s, Remove)
		if !ok || do != Clean {
			t.Fatalf("from %s: can't be removed in %s", start, s)
		}
		if s, _, _ = Table.Next(s, Done); s != Removed {
			t.Errorf("from %s: ends in %s", start, s)
		}
	}
}

func TestWhereCommandsAreAllowed(t *testing.T) {
	for _, s := range states {
		if _, _, ok := Table.Next(s, Make); ok != (s == Reserved) {
			t.Errorf("%s: make is allowed: %v", s, ok)
		}
		if _, _, ok := Table.Next(s, Run); ok != (s == Created) {
			t.Errorf("%s: run is allowed: %v", s, ok)
		}
		if _, _, ok := Table.Next(s, Remove); ok != (s == Exited || s == Removing) {
			t.Errorf("%s: remove is allowed: %v", s, ok)
		}
	}
}
