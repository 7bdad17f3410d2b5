// Package lifecycle is the life of a container as one table. It is pure: the
// owner of containers performs the action that a transition names and comes
// back with how it went.
//
// As with sandboxes, a state is journaled before its action begins and is
// named for what may exist while it is recorded.
package lifecycle

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

// Transition is a row of the table.
type Transition struct {
	From   State
	On     Event
	To     State
	Action Action
}

var actions = map[State]Action{
	Mounting:  Mount,
	Creating:  Create,
	Starting:  Start,
	Releasing: Release,
	Removing:  Clean,
}

// table has every event that is allowed in every state.
var table = []struct {
	from State
	on   Event
	to   State
}{
	{Reserved, Make, Mounting},
	{Reserved, Fail, Exited},
	{Reserved, Exit, Exited},
	{Reserved, Lost, Exited},
	{Reserved, Reboot, Exited},

	{Mounting, Done, Creating},
	{Mounting, Fail, Releasing},
	{Mounting, Lost, Releasing},
	{Mounting, Reboot, Releasing},

	{Creating, Done, Created},
	{Creating, Fail, Releasing},
	{Creating, Lost, Releasing},
	{Creating, Reboot, Releasing},

	{Created, Run, Starting},
	{Created, Fail, Releasing},
	{Created, Exit, Releasing},
	{Created, Lost, Created},
	{Created, Reboot, Releasing},

	{Starting, Done, Running},
	{Starting, Fail, Releasing},
	{Starting, Exit, Releasing},
	{Starting, Lost, Releasing},
	{Starting, Reboot, Releasing},

	{Running, Exit, Releasing},
	{Running, Lost, Running},
	{Running, Reboot, Releasing},

	{Releasing, Done, Exited},
	{Releasing, Fail, Releasing},
	{Releasing, Exit, Releasing},
	{Releasing, Lost, Releasing},
	{Releasing, Reboot, Releasing},

	{Exited, Exit, Exited},
	{Exited, Destroy, Removing},
	{Exited, Lost, Exited},
	{Exited, Reboot, Exited},

	{Removing, Done, Removed},
	{Removing, Fail, Removing},
	{Removing, Destroy, Removing},
	{Removing, Lost, Removing},
	{Removing, Reboot, Removing},
}

// Next returns what follows when e happens in s; ok is false if e can't.
func Next(s State, e Event) (to State, do Action, ok bool) {
	for _, row := range table {
		if row.from == s && row.on == e {
			return row.to, actions[row.to], true
		}
	}
	return s, None, false
}

// Table returns every transition, for tests and for the documentation.
func Table() []Transition {
	rows := make([]Transition, 0, len(table))
	for _, row := range table {
		rows = append(rows, Transition{row.from, row.on, row.to, actions[row.to]})
	}
	return rows
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

// Live says whether the container has a process that was not seen to end.
func (s State) Live() bool {
	switch s {
	case Created, Starting, Running:
		return true
	}
	return false
}
