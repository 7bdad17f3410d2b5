// Package containerstate is the life of a container as one table. It is pure: the owner of
// containers performs the action that a transition names and reports the outcome as the next event.
//
// A state is named for what may exist while it is recorded: see package lifecycle.
package containerstate

import "github.com/huskd/husk/internal/lifecycle"

// State is the state of a container, as it is journaled.
type State string

// The states, in the order of a life.
const (
	Reserved  State = "reserved"  // it has an ID, nothing else
	Mounting  State = "mounting"  // its bundle and root file system may exist
	Creating  State = "creating"  // the runtime's container and its monitor may exist, too
	Created   State = "created"   // its process waits to be started
	Starting  State = "starting"  // its process may run
	Running   State = "running"   // its process runs
	Releasing State = "releasing" // its process is ending or has ended; the rest may be left
	Exited    State = "exited"    // only its record and its log are left
	Removing  State = "removing"  // its record is being removed
	Removed   State = "removed"   // its record is gone
)

// Action is what the owner does on entering a state.
type Action = lifecycle.Action

// The actions. None is that of a state that waits for the next event.
const (
	None    Action = ""
	Mount   Action = "mount"   // mount its root file system, write its bundle
	Create  Action = "create"  // make the runtime create it
	Start   Action = "start"   // make the runtime start it
	Release Action = "release" // kill what is left, delete it from the runtime, unmount it, delete its files
	Clean   Action = "clean"   // release its image
)

// Event is what happened to a container, or what is wanted of it.
type Event = lifecycle.Event

// The events.
const (
	Make   Event = "make"   // a client wants it created
	Done   Event = "done"   // the state's action succeeded
	Fail   Event = "fail"   // the state's action failed
	Run    Event = "run"    // a client wants it started
	Exit   Event = "exit"   // its process has ended, or must be taken for ended
	Remove Event = "remove" // a client wants it removed
	Lost   Event = "lost"   // huskd was restarted
	Reboot Event = "reboot" // the host was restarted: nothing is left in the kernel
)

// Lifecycle is the table of containers.
type Lifecycle = lifecycle.Table[State]

// Table holds every event that is allowed in every state.
var Table = Lifecycle{
	Actions: map[State]Action{
		Mounting:  Mount,
		Creating:  Create,
		Starting:  Start,
		Releasing: Release,
		Removing:  Clean,
	},
	To: map[State]map[Event]State{
		// Lost and Reboot go the whole way down: a power loss, or damage, may have lost a later record.
		Reserved:  {Make: Mounting, Fail: Exited, Exit: Exited, Lost: Releasing, Reboot: Releasing},
		Mounting:  {Done: Creating, Fail: Releasing, Lost: Releasing, Reboot: Releasing},
		Creating:  {Done: Created, Fail: Releasing, Lost: Releasing, Reboot: Releasing},
		Created:   {Run: Starting, Fail: Releasing, Exit: Releasing, Lost: Created, Reboot: Releasing},
		Starting:  {Done: Running, Fail: Releasing, Exit: Releasing, Lost: Releasing, Reboot: Releasing},
		Running:   {Exit: Releasing, Lost: Running, Reboot: Releasing},
		Releasing: {Done: Exited, Fail: Releasing, Exit: Releasing, Lost: Releasing, Reboot: Releasing},
		Exited:    {Exit: Exited, Remove: Removing, Lost: Exited, Reboot: Exited},
		Removing:  {Done: Removed, Fail: Removing, Remove: Removing, Lost: Removing, Reboot: Removing},
	},
	Create: Make, Stop: Exit, Remove: Remove, Done: Done, Fail: Fail, Lost: Lost, Reboot: Reboot,
	Reserved: Reserved, Ended: Exited, Removed: Removed,
}

// Down reports whether s is on the way down. Its record may then use the space that the journal
// reserves, and its action goes on even if the record could not be written.
func (s State) Down() bool {
	switch s {
	case Releasing, Exited, Removing, Removed:
		return true
	}
	return false
}

// BeingCreated reports whether the container is being created: the client has no answer yet.
func (s State) BeingCreated() bool {
	switch s {
	case Reserved, Mounting, Creating:
		return true
	}
	return false
}

// Live reports whether the container has a process that has not been seen to end.
func (s State) Live() bool {
	switch s {
	case Created, Starting, Running:
		return true
	}
	return false
}
