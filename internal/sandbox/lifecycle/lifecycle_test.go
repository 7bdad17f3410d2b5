package lifecycle

import "testing"

var (
	states = []State{Reserved, Pinning, Attaching, Starting, Ready, Killing, Detaching, Unpinning, Stopped, Removing}
	events = []Event{Run, Done, Fail, Stop, Remove, Lost, Reboot}
)

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

// covers says whether b allows for all that a may have left.
func covers(b, a may) bool {
	return (b.files || !a.files) && (b.netns || !a.netns) && (b.attachment || !a.attachment) && (b.process || !a.process)
}

func TestNoTransitionForgetsWhatMayExist(t *testing.T) {
	for _, row := range Table() {
		if row.On == Done || row.On == Reboot {
			continue // these say that something is gone
		}
		if !covers(exists[row.To], exists[row.From]) {
			t.Errorf("%s on %s leads to %s, which forgets some of %+v", row.From, row.On, row.To, exists[row.From])
		}
	}
}

func TestDoneTakesAwayOnlyWhatItsActionUndid(t *testing.T) {
	undoes := map[Action]may{
		Kill:   {process: true},
		Detach: {attachment: true},
		Unpin:  {files: true, netns: true},
	}
	for _, s := range states {
		to, _, ok := Next(s, Done)
		if !ok {
			continue
		}
		undone := undoes[actions[s]]
		after := exists[to]
		after.files = after.files || undone.files
		after.netns = after.netns || undone.netns
		after.attachment = after.attachment || undone.attachment
		after.process = after.process || undone.process
		if !covers(after, exists[s]) {
			t.Errorf("%s done leads to %s: something of %+v is forgotten", s, to, exists[s])
		}
	}
}

// TestARebootForgetsOnlyTheKernel: what outlives a boot, the attachment that a
// plugin keeps on disk or elsewhere, must still be detached.
func TestARebootForgetsOnlyTheKernel(t *testing.T) {
	for _, s := range states {
		to, _, ok := Next(s, Reboot)
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
}

func TestEveryStateSurvivesARestart(t *testing.T) {
	for _, s := range states {
		if _, _, ok := Next(s, Lost); !ok {
			t.Errorf("%s: a restart isn't provided for", s)
		}
	}
}

// TestStopAndRemoveEndInRemoved walks down from every state that a restart can
// leave, with every action failing a few times.
func TestStopAndRemoveEndInRemoved(t *testing.T) {
	for _, start := range states {
		s, _, _ := Next(start, Lost)
		if to, _, ok := Next(s, Stop); ok {
			s = to
		} else if s != Removing {
			t.Errorf("%s: can't be stopped", s)
		}
		for i := 0; s != Stopped && s != Removing; i++ {
			if i > 20 {
				t.Fatalf("from %s: stuck in %s", start, s)
			}
			if to, _, ok := Next(s, Fail); !ok || to != s {
				t.Errorf("%s: a failure leads to %s", s, to)
			}
			to, _, ok := Next(s, Done)
			if !ok {
				t.Fatalf("from %s: nothing follows %s", start, s)
			}
			s = to
		}
		s, do, ok := Next(s, Remove)
		if !ok || do != Clean {
			t.Fatalf("from %s: can't be removed in %s", start, s)
		}
		if s, _, _ = Next(s, Done); s != Removed {
			t.Errorf("from %s: ends in %s", start, s)
		}
	}
}

func TestOnlyTheRightEventsAreAllowed(t *testing.T) {
	allowed := map[State]int{}
	for _, row := range Table() {
		allowed[row.From]++
	}
	for _, s := range states {
		n := 0
		for _, e := range events {
			if to, do, ok := Next(s, e); ok {
				n++
				if do != actions[to] {
					t.Errorf("%s on %s: action %q, not that of %s", s, e, do, to)
				}
			} else if to != s || do != None {
				t.Errorf("%s on %s isn't allowed but changes something", s, e)
			}
		}
		if n != allowed[s] {
			t.Errorf("%s: the table has %d rows, %d are distinct events", s, allowed[s], n)
		}
	}
	if _, _, ok := Next(Removed, Run); ok {
		t.Error("a removed sandbox can be run")
	}
}
