// Package view says in the planner's words how sandboxes and containers are.
package view

import (
	"errors"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// Sandbox says how far a sandbox is.
func Sandbox(st sandbox.Status) podplan.SandboxState {
	switch st.State {
	case sandboxstate.Ready:
		return podplan.SandboxReady
	case sandboxstate.Stopped, sandboxstate.Removing, sandboxstate.Removed:
		return podplan.SandboxStopped
	case sandboxstate.Killing, sandboxstate.Detaching, sandboxstate.Unpinning:
		return podplan.SandboxStopping
	}
	return podplan.SandboxLost
}

// Container says how far a container is.
func Container(st container.Status) podplan.ContainerState {
	switch {
	case st.Started.IsZero():
		return podplan.ContainerCreated
	case st.Finished:
		return podplan.ContainerExited
	}
	switch st.State {
	case containerstate.Running:
		return podplan.ContainerRunning
	case containerstate.Exited, containerstate.Removing:
		return podplan.ContainerExited
	}
	return podplan.ContainerUnknown
}

// Addresses are the sandbox's, or the node's for one in the node's network. One
// that is stopped has none.
func Addresses(st sandbox.Status, node func() []string) []string {
	if Sandbox(st) == podplan.SandboxStopped {
		return nil
	}
	if st.HostNetwork() {
		return node()
	}
	var out []string
	for _, p := range st.Addresses() {
		out = append(out, p.Addr().String())
	}
	return out
}

// Failure is an action that failed just now.
func Failure(err error) podplan.Failure {
	f := podplan.Failure{At: time.Now(), Message: err.Error()}
	if refusal, ok := errors.AsType[*oci.StartError](err); ok && (refusal.Code == 126 || refusal.Code == 127) {
		f.ExitCode = refusal.Code
	}
	return f
}
