// Package view says in the planner's words how sandboxes and containers are.
package view

import (
	"errors"
	"time"

	"github.com/huskd/husk/internal/agent/plan"
	"github.com/huskd/husk/internal/container"
	container_lifecycle "github.com/huskd/husk/internal/container/lifecycle"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/lifecycle"
)

// Sandbox says how far a sandbox is.
func Sandbox(st sandbox.Status) plan.SandboxState {
	switch st.State {
	case lifecycle.Ready:
		return plan.SandboxReady
	case lifecycle.Stopped, lifecycle.Removing, lifecycle.Removed:
		return plan.SandboxStopped
	case lifecycle.Killing, lifecycle.Detaching, lifecycle.Unpinning:
		return plan.SandboxStopping
	}
	return plan.SandboxLost
}

// Container says how far a container is.
func Container(st container.Status) plan.ContainerState {
	switch {
	case st.Started.IsZero():
		return plan.ContainerCreated
	case st.Finished:
		return plan.ContainerExited
	}
	switch st.State {
	case container_lifecycle.Running:
		return plan.ContainerRunning
	case container_lifecycle.Exited, container_lifecycle.Removing:
		return plan.ContainerExited
	}
	return plan.ContainerUnknown
}

// Addresses are the sandbox's, or the node's for one in the node's network. One
// that is stopped has none.
func Addresses(st sandbox.Status, node func() []string) []string {
	if Sandbox(st) == plan.SandboxStopped {
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
func Failure(err error) plan.Failure {
	f := plan.Failure{At: time.Now(), Message: err.Error()}
	if refusal, ok := errors.AsType[*oci.StartError](err); ok && (refusal.Code == 126 || refusal.Code == 127) {
		f.ExitCode = refusal.Code
	}
	return f
}
