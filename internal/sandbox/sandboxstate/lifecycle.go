// Package sandboxstate is the life of a pod sandbox as a table, one for each order in which it can
// be attached to the network. It is pure: the owner of sandboxes performs the action that a
// transition names and reports the outcome as the next event.
//
// A state is named for what may exist while it is recorded: see package lifecycle.
package sandboxstate

import (
	"maps"

	"github.com/huskd/husk/internal/lifecycle"
)

// State is the state of a sandbox, as it is journaled.
type State string

// The states, in the order of a life.
const (
	Reserved  State = "reserved"  // it has an ID, nothing else
	Pinning   State = "pinning"   // its namespaces and files may exist
	Attaching State = "attaching" // its attachment to the network may exist, too
	Starting  State = "starting"  // its infra process may exist, too, if it needs one
	Ready     State = "ready"     // containers may be created in it
	Killing   State = "killing"   // processes may be left in it
	Detaching State = "detaching" // no process is left; it may be attached
	Unpinning State = "unpinning" // it is detached, or its detachment is a debt; namespaces may be left
	Stopped   State = "stopped"   // nothing of it is left in the kernel
	Removing  State = "removing"  // its containers and files are being removed
	Removed   State = "removed"   // its record is gone
)

// Action is what the owner does on entering a state.
type Action = lifecycle.Action

// The actions. None is that of a state that waits for the next event.
const (
	None       Action = ""
	Pin        Action = "pin"         // make its cgroup and files, create and pin its namespaces
	Attach     Action = "attach"      // attach it to the network
	StartInfra Action = "start-infra" // start its infra process, if it needs one
	Kill       Action = "kill"        // end every process in it
	Detach     Action = "detach"      // detach it from the network, or record that as a debt
	Unpin      Action = "unpin"       // remove its cgroup, unpin its namespaces, unmount its files
	Clean      Action = "clean"       // remove its containers
)

// Event is what happened to a sandbox, or what is wanted of it.
type Event = lifecycle.Event

// The events.
const (
	Run    Event = "run"    // a client wants it
	Done   Event = "done"   // the state's action succeeded
	Fail   Event = "fail"   // the state's action failed
	Stop   Event = "stop"   // a client wants it stopped, or its infra process died
	Remove Event = "remove" // a client wants it removed
	Lost   Event = "lost"   // huskd was restarted
	Reboot Event = "reboot" // the host was restarted: nothing is left in the kernel
)

// Order says whether a sandbox is attached to the network before or after its infra process is
// started.
type Order string

// The orders. Namespaces come first in both.
const (
	BeforeStart Order = "before-start" // no process exists before its network does
	AfterStart  Order = "after-start"  // for networks that must find the sandbox running
)

// Lifecycle is a table of sandboxes.
type Lifecycle = lifecycle.Table[State]

// Of returns the table for an order: Table unless it is AfterStart.
func Of(order Order) *Lifecycle {
	if order == AfterStart {
		return &Late
	}
	return &Table
}

// Table holds every event that is allowed in every state. An action on the way down that failed is
// retried, with backoff, until it succeeds. What was being created when huskd was lost goes the
// whole way down: a damaged journal may have lost a later record, and every action succeeds on what
// doesn't exist.
var Table = table(way{
	Pinning:   {Done: Attaching, Fail: Unpinning, Lost: Killing, Reboot: Unpinning},
	Attaching: {Done: Starting, Fail: Detaching, Lost: Killing, Reboot: Detaching},
	Starting:  {Done: Ready, Fail: Killing, Lost: Killing, Reboot: Detaching},
})

// Late is the table of sandboxes that are attached after their infra process is started.
var Late = table(way{
	Pinning:   {Done: Starting, Fail: Unpinning, Lost: Killing, Reboot: Unpinning},
	Starting:  {Done: Attaching, Fail: Killing, Lost: Killing, Reboot: Unpinning},
	Attaching: {Done: Ready, Fail: Killing, Lost: Killing, Reboot: Detaching},
})

type way map[State]map[Event]State

// table completes the way from the namespaces to Ready.
func table(to way) Lifecycle {
	maps.Copy(to, way{
		Reserved:  {Run: Pinning, Fail: Stopped, Stop: Stopped, Lost: Killing, Reboot: Stopped},
		Ready:     {Stop: Killing, Lost: Ready, Reboot: Detaching},
		Killing:   {Done: Detaching, Fail: Killing, Stop: Killing, Lost: Killing, Reboot: Detaching},
		Detaching: {Done: Unpinning, Fail: Detaching, Stop: Detaching, Lost: Detaching, Reboot: Detaching},
		Unpinning: {Done: Stopped, Fail: Unpinning, Stop: Unpinning, Lost: Unpinning, Reboot: Unpinning},
		Stopped:   {Stop: Stopped, Remove: Removing, Lost: Stopped, Reboot: Stopped},
		Removing:  {Done: Removed, Fail: Removing, Remove: Removing, Lost: Removing, Reboot: Removing},
	})
	return Lifecycle{
		To: to,
		Actions: map[State]Action{
			Pinning:   Pin,
			Attaching: Attach,
			Starting:  StartInfra,
			Killing:   Kill,
			Detaching: Detach,
			Unpinning: Unpin,
			Removing:  Clean,
		},
		Create: Run, Stop: Stop, Remove: Remove, Done: Done, Fail: Fail, Lost: Lost, Reboot: Reboot,
		Reserved: Reserved, Ended: Stopped, Removed: Removed,
	}
}

// Down reports whether s is on the way down. Its record may then use the space that the journal
// reserves, and its action goes on even if the record could not be written.
func (s State) Down() bool {
	switch s {
	case Killing, Detaching, Unpinning, Stopped, Removing, Removed:
		return true
	}
	return false
}
