// Package lifecycle is how a life is told as one table of states and events,
// and how its owner walks through it.
//
// A state is named for what may exist while it is recorded. It is recorded
// before its action begins, so that after a crash anywhere the record tells
// what there may be to undo. Every action can be repeated.
package lifecycle

import (
	"errors"
	"fmt"
)

// State is one of a table's. Down says whether it is on the way to less: its
// action goes on even if the record could not be written, and is repeated until
// it succeeds.
type State interface {
	~string
	Down() bool
}

// Table has every event that is allowed in every state.
type Table[S State, E, A ~string] struct {
	// To is the state that follows, by the state before and what happens in it.
	To map[S]map[E]S
	// Actions are what is done on entering a state. One without waits to be told.
	Actions map[S]A
	// Done and Fail are how an action went.
	Done, Fail E
}

// Next returns what follows when e happens in s; ok is false if e can't.
func (t *Table[S, E, A]) Next(s S, e E) (to S, do A, ok bool) {
	if to, ok = t.To[s][e]; !ok {
		return s, do, false
	}
	return to, t.Actions[to], true
}

// Walker is what has a life.
type Walker[S State, A ~string] interface {
	String() string // as an error names it
	State() S
	// Enter records a state, and only then makes it the walker's. On the way down
	// it succeeds.
	Enter(to S) error
	// Act performs the action of the state that was entered.
	Act(in S, do A) error
	// Failed notes why it goes down, before it does.
	Failed(err error)
}

// Drive lets e happen and performs the actions that follow, until w is in a
// state that waits. It returns the first error. An action on the way down that
// fails leaves w in its state, to be driven again.
func Drive[S State, E, A ~string](t *Table[S, E, A], w Walker[S, A], e E) error {
	var first error
	for {
		to, do, ok := t.Next(w.State(), e)
		if !ok {
			return errors.Join(first, fmt.Errorf("%s is %s: can't %s", w, w.State(), e))
		}
		if err := w.Enter(to); err != nil {
			first = errors.Join(first, err)
			w.Failed(first)
			e = t.Fail
			continue
		}
		if do == "" {
			return first
		}
		switch err := w.Act(to, do); {
		case err == nil:
			e = t.Done
		case to.Down():
			return errors.Join(first, err)
		default:
			first = err
			w.Failed(err)
			e = t.Fail
		}
	}
}
