// Package sandboxstate is the life of a pod sandbox as a table, one for each order
// in which it can be attached to the network. It is pure: the owner of sandboxes performs the action that a transition names and comes
// back with how it went.
//
// A state is named for what may exist while it is recorded: it is journaled
// before its action begins, so that after a crash anywhere the record tells
// what there may be to undo. Every action can be repeated.
package sandboxstate

import (
	"maps"

	"github.com/huskd/husk/internal/lifecycle"
)

// State of a sandbox, as it is journaled.
type State string

// The states, in the order of a life.
const (
	Reserved  State = "reserved"  // it has an ID and a record, nothing else
	Pinning   State = "pinning"   // its namespaces and files may exist
	Attaching State = "attaching" // so may its attachment to the network
	Starting  State = "starting"  // so may its infra process, if it has one
	Ready     State = "ready"     // containers may be created in it
	Killing   State = "killing"   // processes of it may be left
	Detaching State = "detaching" // no process is left; it may be attached
	Unpinning State = "unpinning" // detached, or that is owed; namespaces may be left
	Stopped   State = "stopped"   // nothing of it is left in the kernel
	Removing  State = "removing"  // its containers and files are going
	Removed   State = "removed"   // its record is gone
)

// Action is what the owner does on entering a state.
type Action string

// The actions. None is that of a state that waits to be told.
const (
	None       Action = ""
	Pin        Action = "pin"         // make its cgroup and files, create and pin its namespaces
	Attach     Action = "attach"      // attach it to the network
	StartInfra Action = "start-infra" // start the infra process, if it needs one
	Kill       Action = "kill"        // end every process in it
	Detach     Action = "detach"      // detach it, or owe it
	Unpin      Action = "unpin"       // remove its cgroup, unpin its namespaces, unmount its files
	Clean      Action = "clean"       // remove its containers
)

// Event is what happened to a sandbox.
type Event string

// The events.
const (
	Run    Event = "run"    // somebody wants it
	Done   Event = "done"   // the state's action succeeded
	Fail   Event = "fail"   // the state's action failed
	Stop   Event = "stop"   // somebody wants it stopped, or its infra process died
	Remove Event = "remove" // somebody wants it gone
	Lost   Event = "lost"   // huskd was restarted
	Reboot Event = "reboot" // the host was restarted: nothing is left in the kernel
)

// Order says whether a sandbox is attached to the network before its infra
// process is started or after that.
type Order string

// The orders. Namespaces come first in both.
const (
	BeforeStart Order = "before-start" // no process exists before its network does
	AfterStart  Order = "after-start"  // for networks that must find the sandbox running
)

// Of returns the table of sandboxes of an order: Table unless it is AfterStart.
func Of(order Order) *lifecycle.Table[State, Event, Action] {
	if order == AfterStart {
		return &Late
	}
	return &Table
}

// Table has every event that is allowed in every state. A down-going action
// that failed is repeated, with backoff, until it succeeds. What was being made
// when huskd was lost goes the whole way down: a damaged journal may have lost a
// later record, and every action succeeds on what isn't there.
var Table = table(way{
	Pinning:   {Done: Attaching, Fail: Unpinning, Lost: Killing, Reboot: Unpinning},
	Attaching: {Done: Starting, Fail: Detaching, Lost: Killing, Reboot: Detaching},
	Starting:  {Done: Ready, Fail: Killing, Lost: Killing, Reboot: Detaching},
})

// Late is the table of sandboxes that are attached after their infra process is
// started.
var Late = table(way{
	Pinning:   {Done: Starting, Fail: Unpinning, Lost: Killing, Reboot: Unpinning},
	Starting:  {Done: Attaching, Fail: Killing, Lost: Killing, Reboot: Unpinning},
	Attaching: {Done: Ready, Fail: Killing, Lost: Killing, Reboot: Detaching},
})

type way map[State]map[Event]State

// table completes the way from the namespaces to Ready.
func table(to way) lifecycle.Table[State, Event, Action] {
	maps.Copy(to, way{
		Reserved:  {Run: Pinning, Fail: Stopped, Stop: Stopped, Lost: Killing, Reboot: Stopped},
		Ready:     {Stop: Killing, Lost: Ready, Reboot: Detaching},
		Killing:   {Done: Detaching, Fail: Killing, Stop: Killing, Lost: Killing, Reboot: Detaching},
		Detaching: {Done: Unpinning, Fail: Detaching, Stop: Detaching, Lost: Detaching, Reboot: Detaching},
		Unpinning: {Done: Stopped, Fail: Unpinning, Stop: Unpinning, Lost: Unpinning, Reboot: Unpinning},
		Stopped:   {Stop: Stopped, Remove: Removing, Lost: Stopped, Reboot: Stopped},
		Removing:  {Done: Removed, Fail: Removing, Remove: Removing, Lost: Removing, Reboot: Removing},
	})
	return lifecycle.Table[State, Event, Action]{
		Done: Done,
		Fail: Fail,
		Actions: map[State]Action{
			Pinning:   Pin,
			Attaching: Attach,
			Starting:  StartInfra,
			Killing:   Kill,
			Detaching: Detach,
			Unpinning: Unpin,
			Removing:  Clean,
		},
		To: to,
	}
}

// Down says whether s is on the way to less, so that its record may use the
// space that the journal keeps back, and its action goes on even if the record
// could not be written.
func (s State) Down() bool {
	switch s {
	case Killing, Detaching, Unpinning, Stopped, Removing, Removed:
		return true
	}
	return false
}

// Owes says whether s is one in which something is still to be done on the way
// to less: it is gone on with until it succeeds.
func (s State) Owes() bool { return s.Down() && Table.Actions[s] != None }
