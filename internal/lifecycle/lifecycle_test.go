package lifecycle

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

type state string

func (s state) Down() bool { return s == "falling" || s == "ended" }

// table is a small lifecycle: two actions on the way up, one on the way down.
var table = Table[state]{
	Done: "done", Fail: "fail",
	Actions: map[state]Action{"rising": "rise", "climbing": "climb", "falling": "fall"},
	To: map[state]map[Event]state{
		"new":      {"begin": "rising"},
		"rising":   {"done": "climbing", "fail": "falling"},
		"climbing": {"done": "up", "fail": "falling"},
		"up":       {"stop": "falling"},
		"falling":  {"done": "ended", "fail": "falling", "stop": "falling"},
	},
}

// walker fails where fails says so, and notes its calls.
type walker struct {
	state
	fails  map[string]bool
	did    []string
	failed []error
}

func (w *walker) String() string { return "the walker" }
func (w *walker) State() state   { return w.state }

func (w *walker) Enter(to state) error {
	w.did = append(w.did, "enter "+string(to))
	if w.fails["enter "+string(to)] {
		return fmt.Errorf("can't enter %s", to)
	}
	w.state = to
	return nil
}

func (w *walker) Act(_ state, do Action) error {
	w.did = append(w.did, string(do))
	if w.fails[string(do)] {
		return fmt.Errorf("can't %s", do)
	}
	return nil
}

func (w *walker) Failed(err error) { w.failed = append(w.failed, err) }

func TestDrive(t *testing.T) {
	for _, c := range []struct {
		name  string
		from  state
		ev    Event
		fails []string
		to    state
		did   []string
		err   string
	}{
		{"up", "new", "begin", nil, "up", []string{"enter rising", "rise", "enter climbing", "climb", "enter up"}, ""},
		{"down", "up", "stop", nil, "ended", []string{"enter falling", "fall", "enter ended"}, ""},
		{"an action fails", "new", "begin", []string{"climb"}, "ended",
			[]string{"enter rising", "rise", "enter climbing", "climb", "enter falling", "fall", "enter ended"}, "can't climb"},
		{"a record fails", "rising", "done", []string{"enter climbing"}, "ended",
			[]string{"enter climbing", "enter falling", "fall", "enter ended"}, "can't enter climbing"},
		{"the way down fails", "up", "stop", []string{"fall"}, "falling", []string{"enter falling", "fall"}, "can't fall"},
		{"both ways fail", "new", "begin", []string{"rise", "fall"}, "falling",
			[]string{"enter rising", "rise", "enter falling", "fall"}, "can't rise\ncan't fall"},
		{"what isn't allowed", "new", "stop", nil, "new", nil, "the walker is new: can't stop"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := &walker{state: c.from, fails: map[string]bool{}}
			for _, f := range c.fails {
				w.fails[f] = true
			}
			err := Drive(&table, w, c.ev)
			if got := fmt.Sprint(err); got != c.err && (err != nil || c.err != "") {
				t.Errorf("error %q, want %q", got, c.err)
			}
			if w.state != c.to || !slices.Equal(w.did, c.did) {
				t.Errorf("state %s after %q, want %s after %q", w.state, w.did, c.to, c.did)
			}
			if c.to == "ended" && err != nil && (len(w.failed) != 1 || !errors.Is(err, w.failed[0])) {
				t.Errorf("Failed was called with %v", w.failed)
			}
		})
	}
}
