// Package containerstate is the life of a container as one table. It is pure: the
// owner of containers performs the action that a transition names and comes
// back with how it went.
//
// As with sandboxes, a state is journaled before its action begins and is
// named for what may exist while it is recorded.
package containerstate

import "github.com/huskd/husk/internal/lifecycle"

// State of a container, as it is journaled.
type State string

// The states, in the order of a life.
const (
	Reserved  State = "reserved"  // it has an ID and a record, nothing else
	Mounting  State = "mounting"  // its bundle and root file system may exist
	Creating  State = "creating"  // so may the runtime's container and its monitor
	Created   State = "created"   // its process waits to be started
	Starting  State = "starting"  // its process may run
	Running   State = "running"   // its process runs
	Releasing State = "releasing" // its process is ending or ended; the rest may be left
	Exited    State = "exited"    // only its record and its log are left
	Removing  State = "removing"  // its record is going
	Removed   State = "removed"   // its record is gone
)

// Action is what the owner does on entering a state.
type Action string

// The actions. None is that of a state that waits.
const (
	None    Action = ""
	Mount   Action = "mount"   // mount the root file system, write the bundle
	Create  Action = "create"  // have the runtime create it
	Start   Action = "start"   // have the runtime start it
	Release Action = "release" // kill what is left, delete it from the runtime, unmount, delete its files
	Clean   Action = "clean"   // give its image free
)

// Event is what happened to a container.
type Event string

// The events.
const (
	Make    Event = "make"   // somebody wants it created
	Done    Event = "done"   // the state's action succeeded
	Fail    Event = "fail"   // the state's action failed
	Run     Event = "run"    // somebody wants it started
	Exit    Event = "exit"   // its process ended, or must be taken for ended
	Destroy Event = "remove" // somebody wants it gone
	Lost    Event = "lost"   // huskd was restarted
	Reboot  Event = "reboot" // the host was restarted: nothing is left in the kernel
)

// Table has every event that is allowed in every state.
var Table = lifecycle.Table[State, Event, Action]{
	Done: Done,
	Fail: Fail,
	Actions: map[State]Action{
		Mounting:  Mount,
		Creating:  Create,
		Starting:  Start,
		Releasing: Release,
		Removing:  Clean,
	},
	To: map[State]map[Event]State{
		// A power loss, or damage, may have taken the later records.
		Reserved:  {Make: Mounting, Fail: Exited, Exit: Exited, Lost: Releasing, Reboot: Releasing},
		Mounting:  {Done: Creating, Fail: Releasing, Lost: Releasing, Reboot: Releasing},
		Creating:  {Done: Created, Fail: Releasing, Lost: Releasing, Reboot: Releasing},
		Created:   {Run: Starting, Fail: Releasing, Exit: Releasing, Lost: Created, Reboot: Releasing},
		Starting:  {Done: Running, Fail: Releasing, Exit: Releasing, Lost: Releasing, Reboot: Releasing},
		Running:   {Exit: Releasing, Lost: Running, Reboot: Releasing},
		Releasing: {Done: Exited, Fail: Releasing, Exit: Releasing, Lost: Releasing, Reboot: Releasing},
		Exited:    {Exit: Exited, Destroy: Removing, Lost: Exited, Reboot: Exited},
		Removing:  {Done: Removed, Fail: Removing, Destroy: Removing, Lost: Removing, Reboot: Removing},
	},
}

// Down says whether s is on the way to less, so that its record may use the
// space that the journal keeps back, and its action goes on even if the record
// could not be written.
func (s State) Down() bool {
	switch s {
	case Releasing, Exited, Removing, Removed:
		return true
	}
	return false
}

// Made says whether the container is being made: whoever asked for it was told
// nothing yet.
func (s State) Made() bool {
	switch s {
	case Reserved, Mounting, Creating:
		return true
	}
	return false
}

// Live says whether the container has a process that was not seen to end.
func (s State) Live() bool {
	switch s {
	case Created, Starting, Running:
		return true
	}
	return false
}

// Owes says whether s is one in which something is still to be done on the way
// to less: it is gone on with until it succeeds.
func (s State) Owes() bool { return s.Down() && Table.Actions[s] != None }
