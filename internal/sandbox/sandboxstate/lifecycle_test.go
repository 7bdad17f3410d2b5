package sandboxstate

import (
	"maps"
	"slices"
	"testing"
)

var states = []State{Reserved, Pinning, Attaching, Starting, Ready, Killing, Detaching, Unpinning, Stopped, Removing}

// may is what can exist on the host while a state is recorded: the invariant
// that makes the table leak-proof.
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

// existsLate differs by what comes first.
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

// covers says whether b allows for all that a may have left.
func covers(b, a may) bool {
	return (b.files || !a.files) && (b.netns || !a.netns) && (b.attachment || !a.attachment) && (b.process || !a.process)
}

func TestNoTransitionForgetsWhatMayExist(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for from, rows := range table.To {
			for on, to := range rows {
				if on == Done || on == Reboot {
					continue // these say that something is gone
				}
				if !covers(exists[to], exists[from]) {
					t.Errorf("%s on %s leads to %s, which forgets some of %+v", from, on, to, exists[from])
				}
			}
		}
	})
}

func TestDoneTakesAwayOnlyWhatItsActionUndid(t *testing.T) {
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
				t.Errorf("%s done leads to %s: something of %+v is forgotten", s, to, exists[s])
			}
		}
	})
}

// TestARebootForgetsOnlyTheKernel: what outlives a boot, the attachment that a
// plugin keeps on disk or elsewhere, must still be detached.
func TestARebootForgetsOnlyTheKernel(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for _, s := range states {
			to, _, ok := table.Next(s, Reboot)
			if !ok {
				t.Errorf("%s: a reboot isn't provided for", s)
				continue
			}
			if exists[s].attachment && !exists[to].attachment {
				t.Errorf("%s on reboot leads to %s, which forgets the attachment", s, to)
			}
			if exists[to].process {
				t.Errorf("%s on reboot leads to %s, as if a process could have survived", s, to)
			}
		}
	})
}

func TestEveryStateSurvivesARestart(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for _, s := range states {
			if _, _, ok := table.Next(s, Lost); !ok {
				t.Errorf("%s: a restart isn't provided for", s)
			}
		}
	})
}

// TestStopAndRemoveEndInRemoved walks down from every state that a restart can
// leave, with every action failing a few times.
func TestStopAndRemoveEndInRemoved(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for _, start := range states {
			s, _, _ := table.Next(start, Lost)
			if to, _, ok := table.Next(s, Stop); ok {
				s = to
			} else if s != Removing {
				t.Errorf("%s: can't be stopped", s)
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

// TestTheOrders walks up both.
func TestTheOrders(t *testing.T) {
	for order, want := range map[Order][]Action{
		"":          {Pin, Attach, StartInfra, None},
		BeforeStart: {Pin, Attach, StartInfra, None},
		AfterStart:  {Pin, StartInfra, Attach, None},
	} {
		var deeds []Action
		s, on := Reserved, Run
		for s != Ready {
			to, do, ok := Of(order).Next(s, on)
			if !ok {
				t.Fatalf("%s: nothing follows %s in %s", order, on, s)
			}
			deeds = append(deeds, do)
			s, on = to, Done
		}
		if !slices.Equal(deeds, want) {
			t.Errorf("%q: %v, want %v", order, deeds, want)
		}
	}
}

func TestOnlyWhatIsReservedCanBeRun(t *testing.T) {
	orders(t, func(t *testing.T, table *Lifecycle, exists map[State]may) {
		for _, s := range append(states, Removed) {
			if _, _, ok := table.Next(s, Run); ok != (s == Reserved) {
				t.Errorf("%s: run is allowed: %v", s, ok)
			}
		}
	})
}
