package oci

// State is the state of a container.
type State string

const (
	// Created is the state of a container whose program hasn't been started.
	Created State = "created"
	// Running is the state of a container whose program runs.
	Running State = "running"
	// Exited is the state of a container whose program has ended.
	Exited State = "exited"
)

// Status is what a driver knows about a container.
type Status struct {
	State   State
	Process Process
	// Exit is set if State is Exited.
	Exit Exit
}

// Usage is what a runtime reports that a container uses, in nanoseconds and bytes.
type Usage struct{ CPU, Memory, Processes uint64 }
