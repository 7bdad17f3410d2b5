// Package view translates the states of sandboxes and containers into those of podplan.
package view

import (
	"errors"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// SandboxState returns the state of a sandbox. One that must be replaced counts as lost.
func SandboxState(st sandbox.Status) podplan.SandboxState {
	switch st.State {
	case sandboxstate.Ready:
		if st.Displaced.Replace {
			return podplan.SandboxLost
		}
		return podplan.SandboxReady
	case sandboxstate.Stopped, sandboxstate.Removing, sandboxstate.Removed:
		return podplan.SandboxStopped
	case sandboxstate.Killing, sandboxstate.Detaching, sandboxstate.Unpinning:
		return podplan.SandboxStopping
	}
	return podplan.SandboxLost
}

// ContainerState returns the state of a container.
func ContainerState(st container.Status) podplan.ContainerState {
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

// Addresses returns the IP addresses of a sandbox: the node's if it uses the node's network, none
// if it is stopped.
func Addresses(st sandbox.Status, node func() []string) []string {
	if SandboxState(st) == podplan.SandboxStopped {
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

// Failure returns err as the failure of an action that failed just now.
func Failure(err error) podplan.Failure {
	f := podplan.Failure{At: time.Now(), Message: err.Error(), Final: errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err)}
	if refusal, ok := errors.AsType[*oci.StartError](err); ok && (refusal.Code == 126 || refusal.Code == 127) {
		f.ExitCode, f.Final = refusal.Code, true
	}
	if _, ok := errors.AsType[*pod.PortInUseError](err); ok {
		f.Reason = podplan.ReasonPort
	} else if at, ok := errors.AsType[*pod.StageError](err); ok && at.Stage == string(sandboxstate.Attach) {
		f.Unattached = errdefs.IsUnavailable(err) || errdefs.IsResourceExhausted(err)
	}
	return f
}
