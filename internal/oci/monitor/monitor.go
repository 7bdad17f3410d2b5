// Package monitor runs containers with an OCI runtime (runc, crun) under conmon.
//
// conmon is one small C process per container. It outlives this daemon, is the
// parent that learns the exit code, writes the log in the CRI format and
// serves attach. The runtime itself runs only for as long as it takes to
// create a container.
//
// Everything about a container is in one directory below Config.StateDir: the
// record of what was asked (written before anything is done), the identity of
// its processes, and what conmon leaves when it ends. A new Driver on the same
// directory carries on where the old one stopped; there is no state that only
// the memory has.
//
// A process is a number and its start time, and touched through a pidfd only
// (package pidfd), so that a reused number is never hit. Waiting is that pidfd
// in Go's poller: a goroutine per container, no thread and no polling.
//
// # What is not left to the runtime
//
// Starting and deleting are done in process where that is the same thing as
// what runc and crun do, which BenchmarkLifecycle puts at 0.3 instead of 7 ms
// and 0.9 instead of 9 ms (2 cores, runc 1.1.5):
//
//   - The init that "create" leaves behind waits at the FIFO exec.fifo in the
//     runtime's directory. "runc start" opens it for reading, waits for the
//     byte that init writes and removes it; "crun start" opens it for writing,
//     removes it and writes a byte. Both are done here with O_NONBLOCK, so that a
//     dead init can't block us. Whatever is out of the ordinary (no FIFO, so
//     started already; init gone; poststart hooks; a runtime that we don't
//     know) goes to the runtime's own start, which then finds the right words.
//   - Once no process is left, "delete" removes the cgroups and the runtime's
//     directory, and runs the poststop hooks. With hooks, Intel RDT or a
//     runtime that we don't know, the runtime does it.
package monitor

import (
	"path/filepath"
	"sync"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Config is what a driver needs to know.
type Config struct {
	// StateDir holds everything that the driver writes, but for what conmon
	// puts into a container's bundle. It should be on a tmpfs.
	StateDir string
	// Instance names the cgroup of the container that Find tries.
	Instance pod.Instance
	Host     host.Facts
	// Systemd has it ask systemd for the cgroups that are scopes.
	Systemd bool
	// Conmon is its path; if empty it is looked for.
	Conmon string
	// Runtimes are names or paths, best first; if empty the preferred ones.
	Runtimes []string
}

// preferred are the names of runtimes to look for, best first.
var preferred = []string{"crun", "runc"}

// Runtime is an OCI runtime that works on this host, as Find returns it.
type Runtime struct {
	// Name is what it calls itself: "runc", "crun".
	Name    string `json:"name"`
	Path    string `json:"path"`
	Version string `json:"version"`
	// NoUserNamespaces says why it can't run a container in one; empty if it has.
	NoUserNamespaces string `json:"noUserNamespaces"`
	// Conmon is the path of the monitor that it was tried with.
	Conmon string `json:"conmon"`
}

// Driver creates, runs and deletes containers. Its methods are safe for
// concurrent use; those that change one container must not overlap.
type Driver struct {
	cfg      Config
	handlers Handlers

	mu      sync.Mutex
	watches map[string]*oci.ExitNotifier // by container ID

	oomMu sync.Mutex // see blame
}

// New returns a driver for what was found. With a handler that is missing every
// Create fails, while containers of before can still be handled and deleted.
func New(cfg Config, handlers Handlers) *Driver {
	return &Driver{cfg: cfg, handlers: handlers, watches: map[string]*oci.ExitNotifier{}}
}

// containers is the directory with one of ours for each container.
func (cfg Config) containers() string { return filepath.Join(cfg.StateDir, "containers") }

// roots is the directory with one for each runtime, where it keeps its
// containers. They don't understand each other's files.
func (cfg Config) runtimesDir() string { return filepath.Join(cfg.StateDir, "runtime") }
