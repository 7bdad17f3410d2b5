// Package lifecycle is the life of a pod sandbox as one table. It is pure: the
// owner of sandboxes performs the action that a transition names and comes
// back with how it went.
//
// A state is named for what may exist while it is recorded: it is journaled
// before its action begins, so that after a crash anywhere the record tells
// what there may be to undo. Every action can be repeated.
package lifecycle

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

// Transition is a row of the table.
type Transition struct {
	From   State
	On     Event
	To     State
	Action Action
}

// actions maps each state to what is done on entering it.
var actions = map[State]Action{
	Pinning:   Pin,
	Attaching: Attach,
	Starting:  StartInfra,
	Killing:   Kill,
	Detaching: Detach,
	Unpinning: Unpin,
	Removing:  Clean,
}

// table has every event that is allowed in every state. A down-going action
// that failed is repeated, with backoff, until it succeeds.
var table = []struct {
	from State
	on   Event
	to   State
}{
	{Reserved, Run, Pinning},
	{Reserved, Fail, Stopped},
	{Reserved, Stop, Stopped},
	{Reserved, Lost, Stopped},
	{Reserved, Reboot, Stopped},

	{Pinning, Done, Attaching},
	{Pinning, Fail, Unpinning},
	{Pinning, Lost, Unpinning},
	{Pinning, Reboot, Unpinning},

	{Attaching, Done, Starting},
	{Attaching, Fail, Detaching},
	{Attaching, Lost, Detaching},
	{Attaching, Reboot, Detaching},

	{Starting, Done, Ready},
	{Starting, Fail, Killing},
	{Starting, Lost, Killing},
	{Starting, Reboot, Detaching},

	{Ready, Stop, Killing},
	{Ready, Lost, Ready},
	{Ready, Reboot, Detaching},

	{Killing, Done, Detaching},
	{Killing, Fail, Killing},
	{Killing, Stop, Killing},
	{Killing, Lost, Killing},
	{Killing, Reboot, Detaching},

	{Detaching, Done, Unpinning},
	{Detaching, Fail, Detaching},
	{Detaching, Stop, Detaching},
	{Detaching, Lost, Detaching},
	{Detaching, Reboot, Detaching},

	{Unpinning, Done, Stopped},
	{Unpinning, Fail, Unpinning},
	{Unpinning, Stop, Unpinning},
	{Unpinning, Lost, Unpinning},
	{Unpinning, Reboot, Unpinning},

	{Stopped, Stop, Stopped},
	{Stopped, Remove, Removing},
	{Stopped, Lost, Stopped},
	{Stopped, Reboot, Stopped},

	{Removing, Done, Removed},
	{Removing, Fail, Removing},
	{Removing, Remove, Removing},
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
	case Killing, Detaching, Unpinning, Stopped, Removing, Removed:
		return true
	}
	return false
}
