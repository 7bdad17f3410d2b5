package oci

// State of a container, as its driver finds it.
type State string

const (
	// Created is a container whose program was not started yet.
	Created State = "created"
	Running State = "running"
	Exited  State = "exited"
)

// Status is what a driver knows of a container.
type Status struct {
	State   State
	Process Process
	// Exit is set once the state is Exited.
	Exit Exit
}

// Usage is what a runtime says that a container uses, in nanoseconds and bytes.
type Usage struct{ CPU, Memory, Processes uint64 }

// StartError is a runtime's refusal to start a program, in its own words.
type StartError struct {
	// Code is the exit status that a shell would give: 127 if there is no such
	// program, 126 if it can't be executed, 128 for anything else.
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *StartError) Error() string { return e.Message }
