// Package shim runs containers with runtimes that speak containerd's shim protocol, version 2:
// gVisor, Kata Containers, containerd's own shim of runc.
//
// A shim is a daemon that belongs to the runtime. Its program's command "start" launches it and
// prints the address of its socket, on which it serves the task service over ttrpc. A shim serves
// one container, or all containers of a pod: the spec's annotations say which.
//
// # What Husk does itself
//
// Logs. A shim copies a container's output into FIFOs that its client must read. If huskd read
// them, the container would block while huskd is down. So each container also has a conmon, which
// writes the log in the CRI format and serves attach, as for the containers of package monitor. The
// child that conmon watches is a process that only holds conmon's pipes open (package stdioholder).
// The shim gets the names of these pipes in /proc.
//
// Events. A shim reports exits and OOM kills to containerd by connecting to it. Husk waits for
// exits by a call instead, which also works after a restart, and reads OOM kills from the cgroup.
// gVisor's shim panics if it has an address for events and can't deliver one, so it gets none.
//
// As in package monitor, each container has one directory, its record is written before anything is
// done, and a new Driver on the same directory continues where the old one stopped.
package shim

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/pod"
)

// Config configures a Driver.
type Config struct {
	// StateDir is the directory of everything that the driver writes. It should be on a tmpfs.
	StateDir string
	// Instance is part of the name of the cgroup that Find uses for its probes.
	Instance pod.Instance
	Host     host.Facts
	// Monitors is the directory of the cgroup for conmon and shims; nil to start them in that of this
	// process.
	Monitors *os.File
	// Conmon is the path of conmon; if empty, conmon is looked up.
	Conmon string
}

// Driver creates, runs and deletes containers. Its methods are safe for concurrent use, but the
// caller must serialize those that change the same container.
type Driver struct {
	cfg      Config
	handlers Handlers

	mu      sync.Mutex
	watches map[string]*watch // by container ID
}

// New returns a driver that uses handlers.
func New(cfg Config, handlers Handlers) *Driver {
	return &Driver{cfg: cfg, handlers: handlers, watches: map[string]*watch{}}
}

// containers returns the directory that has a subdirectory for each container.
func (cfg Config) containers() string { return filepath.Join(cfg.StateDir, "containers") }

// wrap adds the operation and the container to err, if it isn't nil.
func (c *container) wrap(what string, err error) error {
	if err == nil || c == nil {
		return err
	}
	return fmt.Errorf("%s container %s: %w", what, pod.Short(c.ID), err)
}
