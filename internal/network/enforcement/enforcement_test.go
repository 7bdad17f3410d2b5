package enforcement

import (
	"log/slog"
	"slices"
	"testing"

	"github.com/huskd/husk/internal/network/firewall"
	"github.com/huskd/husk/internal/network/policy/accept"
)

// TestProblems checks that the mistakes of policies are shown until they are corrected, beside the
// reason why policies aren't known.
func TestProblems(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	e := &Enforcement{cfg: Config{Log: log}, Firewall: firewall.New(firewall.Config{Log: log}), mistakes: map[string][]accept.Problem{}}
	wants := func(want ...string) {
		t.Helper()
		if got := e.Problems()[1:]; !slices.Equal(got, want) {
			t.Errorf("the problems are %q, want %q", got, want)
		}
	}
	if got := e.Problems(); len(got) != 1 {
		t.Fatalf("the problems are %q, want that the source has not answered", got)
	}
	e.mistaken("b", []accept.Problem{{Object: "b", Field: "spec", Text: "x"}})
	e.mistaken("a", []accept.Problem{{Object: "a", Field: "spec", Text: "y"}, {Object: "a", Field: "kind", Text: "z"}})
	wants("a: spec: y", "a: kind: z", "b: spec: x")
	e.mistaken("a", nil)
	wants("b: spec: x")
	if none := (*Enforcement)(nil).Problems(); none != nil {
		t.Errorf("without policy: %q", none)
	}
}
