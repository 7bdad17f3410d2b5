package declared

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
)

// TestDoubt checks that what was last in force stays while an origin isn't sure of what it
// declares: what it lacks and what it has differently, until it is told of it again, or is no
// longer in doubt.
func TestDoubt(t *testing.T) {
	s := New(func() []*policy.Pod { return nil }, "files", "run")
	asked := 0
	other := namespaced("x", "changed")
	other.Priority = 7
	s.Remember(func() Known {
		asked++
		return Known{
			Policies:   named(namespaced("x", "lost"), other, namespaced("x", "same"), namespaced("x", "of-files")),
			Namespaces: map[string]labels.Set{"x": {"kubernetes.io/metadata.name": "x"}, "y": {"kubernetes.io/metadata.name": "y", "team": "a"}},
			Same:       func(a, b *policy.Policy) bool { return a.Priority == b.Priority },
		}
	})
	run := func(doubts []string, policies ...*policy.Policy) {
		s.Declare("run", Objects{Policies: named(policies...), Doubts: doubts})
	}
	priority := func(w *world, want int32) {
		t.Helper()
		w.mu.Lock()
		defer w.mu.Unlock()
		if p := w.state.Policies["NetworkPolicy x/changed"]; p == nil || p.Priority != want {
			t.Errorf("the changed policy is %+v", p)
		}
	}
	doubts := []string{"/j/damaged-1 is bad"}
	s.Declare("files", Objects{})
	run(doubts, namespaced("x", "changed"), namespaced("x", "same"))
	w := start(t, s)
	const tail = " as last in force, because /j/damaged-1 is bad: husk run their manifests again, or look at docs/troubleshooting.md for how to give them up"
	const both = "map[x:kubernetes.io/metadata.name=x y:kubernetes.io/metadata.name=y,team=a] []"
	w.eventually(t, "[NetworkPolicy x/changed NetworkPolicy x/lost NetworkPolicy x/of-files NetworkPolicy x/same] "+both+
		" waiting for policies: Namespace y, NetworkPolicy x/changed, NetworkPolicy x/lost, NetworkPolicy x/of-files"+tail)
	priority(w, 7)

	// What the origin is told of again is as it says, and what it removes is gone.
	again := namespaced("x", "changed")
	again.Priority = 3
	run(doubts, again)
	w.eventually(t, "[NetworkPolicy x/changed NetworkPolicy x/lost NetworkPolicy x/of-files] "+both+
		" waiting for policies: Namespace y, NetworkPolicy x/lost, NetworkPolicy x/of-files"+tail)
	priority(w, 3)

	// An origin that is sure has the last word.
	s.Declare("files", Objects{Policies: named(namespaced("x", "of-files")), Namespaces: map[string]map[string]string{"y": {"team": "b"}}})
	s.Declare("files", Objects{})
	w.eventually(t, "[NetworkPolicy x/changed NetworkPolicy x/lost] map[x:kubernetes.io/metadata.name=x] []"+
		" waiting for policies: NetworkPolicy x/lost"+tail)
	run(nil, again)
	w.eventually(t, "[NetworkPolicy x/changed] map[x:kubernetes.io/metadata.name=x] [] waiting for <nil>")
	if asked != 1 {
		t.Errorf("asked %d times for what was last in force", asked)
	}
}

// TestDoubtWithoutMemory checks that nothing is in force in place of what is, if neither the origin
// nor the memory can be trusted.
func TestDoubtWithoutMemory(t *testing.T) {
	s := New(func() []*policy.Pod { return nil }, "run")
	s.Remember(func() Known { return Known{Err: errors.New("policies.json: its checksum is wrong")} })
	s.Declare("run", Objects{Policies: named(namespaced("x", "p")), Doubts: []string{"/j/damaged-1 is bad"}})
	w := start(t, s)
	w.eventually(t, "[] map[] [] waiting for policies: /j/damaged-1 is bad, and what was last in force can't be read either: policies.json: its checksum is wrong")
	s.Declare("run", Objects{Policies: named(namespaced("x", "p"))})
	w.eventually(t, "[NetworkPolicy x/p] map[x:kubernetes.io/metadata.name=x] [] waiting for <nil>")
}
