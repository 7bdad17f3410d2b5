// Package lifecycle describes the life of a sandbox or a container as one table of states and
// events, and drives an object through it.
//
// A state is named for what may exist while it is recorded. It is recorded before its action
// begins, so after a crash at any point the record says what may have to be undone. Every action
// can be repeated.
package lifecycle

import (
	"errors"
	"fmt"
)

// Event is what happened to an object, or what is wanted of it.
type Event string

// Action is what is done on entering a state.
type Action string

// State is a state of one table. Down reports whether the state belongs to the way down: its action
// goes on even if the record could not be written, and is repeated until it succeeds.
type State interface {
	~string
	Down() bool
}

// Table holds every event that is allowed in every state.
type Table[S State] struct {
	// To is the state that follows, by the state before and the event.
	To map[S]map[Event]S
	// Actions are the actions of states. A state without one waits for the next event.
	Actions map[S]Action

	// Create, Stop and Remove are the wishes that every table has. Done and Fail are the outcomes of
	// an action. Lost and Reboot say that huskd or the host was restarted.
	Create, Stop, Remove, Done, Fail, Lost, Reboot Event
	// Reserved is the first state: nothing is recorded yet. In Ended only the record is left, and in
	// Removed not even that.
	Reserved, Ended, Removed S
}

// Next returns what follows when e happens in s; ok is false if e is not allowed there.
func (t *Table[S]) Next(s S, e Event) (to S, do Action, ok bool) {
	if to, ok = t.To[s][e]; !ok {
		return s, do, false
	}
	return to, t.Actions[to], true
}

// Owes reports whether s is a state of the way down whose action is still to be done. It is retried
// until it succeeds.
func (t *Table[S]) Owes(s S) bool { return s.Down() && t.Actions[s] != "" }

// Walker is an object that is driven through a table.
type Walker[S State] interface {
	String() string // names it in errors
	State() S
	// Enter records a state, and only then makes it the walker's. It always succeeds on the way down.
	Enter(to S) error
	// Act performs the action of the state that was entered.
	Act(in S, do Action) error
	// Failed notes err as the reason why the walker is about to go down.
	Failed(err error)
}

// Drive applies e and performs the actions that follow, until w is in a state that waits. It
// returns the first error. If an action on the way down fails, w stays in that state and has to be
// driven again.
func Drive[S State](t *Table[S], w Walker[S], e Event) error {
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
