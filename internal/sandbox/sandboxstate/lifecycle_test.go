package sandboxstate

import (
	"maps"
	"slices"
	"testing"
)

var states = []State{Reserved, Pinning, Attaching, Starting, Ready, Killing, Detaching, Unpinning, Stopped, Removing}

// may is what can exist on the host while a state is recorded. The tests prove from it that no
// transition leaks.
type may struct{ files, netns, attachment, process bool }

var exists = map[State]may{
	Reserved:  {},
	Pinning:   {files: true, netns: true},
	Attaching: {files: true, netns: true, attachment: true},
	Starting:  {files: true, netns: true, attachment: true, process: true},
	Ready:     {files: true, netns: true, attachment: true, process: true},
	Killing:   {files: true, netns: true, attachment: true, process: true},
	Detaching: {files: true, netns: true, attachment: true},
	Unpinning: {files: true, netns: true},
	Stopped:   {},
	Removing:  {},
	Removed:   {},
}

// existsLate is exists for Late.
func existsLate() map[State]may {
	late := maps.Clone(exists)
	late[Starting] = may{files: true, netns: true, process: true}
	late[Attaching] = may{files: true, netns: true, process: true, attachment: true}
	return late
}

// orders runs a test for both tables.
func orders(t *testing.T, test func(t *testing.T, table *Lifecycle, exists map[State]may)) {
	t.Run(string(BeforeStart), func(t *testing.T) { test(t, Of(BeforeStart), exists) })
	t.Run(string(AfterStart), func(t *testing.T) { test(t, Of(AfterStart), existsLate()) })
}

// covers reports whether all that may exist in a may also exist in b.
func covers(b, a may) bool {
	return (b.files || !a.files) && (b.netns || !a.netns) && (b.attachment || !a.attachment) && (b.process || !a.process)
}

func TestNoTransitionForgetsWhatMayExist(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for from, rows := range table.To {
			for on, to := range rows {
				if on == Done || on == Reboot {
					continue // something is gone then: see the tests below
				}
				if !covers(exists[to], exists[from]) {
					t.Errorf("%s on %s leads to %s, which forgets some of %+v", from, on, to, exists[from])
				}
			}
		}
	})
}

func TestDoneForgetsOnlyWhatItsActionUndid(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		undoes := map[Action]may{
			Kill:   {process: true},
			Detach: {attachment: true},
			Unpin:  {files: true, netns: true},
		}
		for _, s := range states {
			to, _, ok := table.Next(s, Done)
			if !ok {
				continue
			}
			undone := undoes[table.Actions[s]]
			after := exists[to]
			after.files = after.files || undone.files
			after.netns = after.netns || undone.netns
			after.attachment = after.attachment || undone.attachment
			after.process = after.process || undone.process
			if !covers(after, exists[s]) {
				t.Errorf("%s on done leads to %s, which forgets some of %+v", s, to, exists[s])
			}
		}
	})
}

// TestRebootForgetsOnlyTheKernel: the attachment outlives a boot, as plugins keep a part of it on
// disk or elsewhere. It must still be detached.
func TestRebootForgetsOnlyTheKernel(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for _, s := range states {
			to, _, ok := table.Next(s, Reboot)
			if !ok {
				t.Errorf("%s doesn't allow a reboot", s)
				continue
			}
			if exists[s].attachment && !exists[to].attachment {
				t.Errorf("%s on reboot leads to %s, which forgets the attachment", s, to)
			}
			if exists[to].process {
				t.Errorf("%s on reboot leads to %s, in which a process may exist", s, to)
			}
		}
	})
}

func TestEveryStateSurvivesARestart(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, _ map[State]may) {
		for _, s := range states {
			if _, _, ok := table.Next(s, Lost); !ok {
				t.Errorf("%s doesn't allow a restart", s)
			}
		}
	})
}

// TestStopAndRemoveEndInRemoved stops and removes from every state that a restart can lead to.
// Actions that fail must leave the state as it is.
func TestStopAndRemoveEndInRemoved(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, _ map[State]may) {
		for _, start := range states {
			s, _, _ := table.Next(start, Lost)
			if to, _, ok := table.Next(s, Stop); ok {
				s = to
			} else if s != Removing {
				t.Errorf("%s doesn't allow a stop", s)
			}
			for i := 0; s != Stopped && s != Removing; i++ {
				if i > 20 {
					t.Fatalf("from %s: stuck in %s", start, s)
				}
				if to, _, ok := table.Next(s, Fail); !ok || to != s {
					t.Errorf("%s: a failure leads to %s", s, to)
				}
				to, _, ok := table.Next(s, Done)
				if !ok {
					t.Fatalf("from %s: nothing follows %s", start, s)
				}
				s = to
			}
			s, do, ok := table.Next(s, Remove)
			if !ok || do != Clean {
				t.Fatalf("from %s: can't be removed in %s", start, s)
			}
			if s, _, _ = table.Next(s, Done); s != Removed {
				t.Errorf("from %s: ends in %s", start, s)
			}
		}
	})
}

// TestOrders walks up both tables.
func TestOrders(t *testing.T) {
	for order, want := range map[Order][]Action{
		"":          {Pin, Attach, StartInfra, None},
		BeforeStart: {Pin, Attach, StartInfra, None},
		AfterStart:  {Pin, StartInfra, Attach, None},
	} {
		var actions []Action
		s, on := Reserved, Run
		for s != Ready {
			to, do, ok := Of(order).Next(s, on)
			if !ok {
				t.Fatalf("%s: no transition on %s in %s", order, on, s)
			}
			actions = append(actions, do)
			s, on = to, Done
		}
		if !slices.Equal(actions, want) {
			t.Errorf("%q: %v, want %v", order, actions, want)
		}
	}
}

func TestOnlyReservedCanBeRun(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, _ map[State]may) {
		for _, s := range append(states, Removed) {
			if _, _, ok := table.Next(s, Run); ok != (s == Reserved) {
				t.Errorf("%s: run is allowed: %v", s, ok)
			}
		}
	})
}
