// Package monitor runs containers with an OCI runtime (runc, crun) under conmon.
//
// conmon is a small C process for each container. It outlives huskd, reaps the container's init
// process and records its exit code, writes the log in the CRI format and serves attach. The
// runtime itself runs only while it creates the container.
//
// Each container has one directory below Config.StateDir. It holds the record of the request, which
// is written before anything is done, the identity of the container's processes, and what conmon
// leaves when it exits. No state is in memory alone: a new Driver on the same directory continues
// where the old one stopped.
//
// A process is identified by its PID and start time and only touched through a pidfd (package
// pidfd), so that a reused PID is never hit. Waiting for a pidfd in Go's poller takes a goroutine
// for each container, but no thread and no polling.
//
// # What the runtime doesn't do
//
// The driver starts and deletes containers itself where that is equivalent to what runc and crun
// do. BenchmarkLifecycle measures 0.3 ms instead of 7 ms for a start and 0.9 ms instead of 9 ms for
// a deletion (2 cores, runc 1.1.5):
//
//   - The init process that "create" leaves waits at the FIFO exec.fifo in the runtime's directory.
//     "runc start" opens it for reading, waits for the byte that init writes, and removes it. "crun
//     start" opens it for writing, removes it, and writes a byte. The driver does both with
//     O_NONBLOCK, so that a dead init can't block it. In other cases it runs the runtime's start,
//     which also has the right error message: if there is no FIFO, because the container was
//     started, if init is dead, if there are poststart hooks, and if the runtime is another one.
//   - Once no process is left, "delete" removes the cgroups and the runtime's directory, and runs
//     the poststop hooks. The driver does the same, but runs the runtime's delete if there are
//     hooks or Intel RDT, or if the runtime is another one.
package monitor

import (
	"os"
	"path/filepath"
	"sync"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Config configures a Driver.
type Config struct {
	// StateDir is the directory of everything that the driver writes, except conmon's files in a
	// container's bundle. It should be on a tmpfs.
	StateDir string
	// Instance is part of the name of the cgroup that Find uses for its probes.
	Instance pod.Instance
	Host     host.Facts
	// Systemd says that runtimes ask systemd for cgroups that are scopes.
	Systemd bool
	// Monitors is the directory of the cgroup for conmon; nil to start it in that of this process.
	Monitors *os.File
	// Conmon is the path of conmon; if empty, conmon is looked up.
	Conmon string
	// Runtimes are names or paths, best first; if empty, the preferred ones.
	Runtimes []string
}

// preferred are the names of the runtimes to look up, best first.
var preferred = []string{"crun", "runc"}

// Runtime is an OCI runtime that works on this host, as Find returns it.
type Runtime struct {
	// Name is what the program calls itself: "runc", "crun".
	Name    string `json:"name"`
	Path    string `json:"path"`
	Version string `json:"version"`
	// NoUserNamespaces says why it can't run containers in a user namespace; empty if it can.
	NoUserNamespaces string `json:"noUserNamespaces"`
	// Conmon is the path of the conmon that it was probed with.
	Conmon string `json:"conmon"`
}

// Driver creates, runs and deletes containers. Its methods are safe for concurrent use, but the
// caller must serialize those that change the same container.
type Driver struct {
	cfg      Config
	handlers Handlers

	mu      sync.Mutex
	watches map[string]*oci.ExitNotifier // by container ID

	oomMu sync.Mutex // guards OthersKilled in all records: see attributeOOM
}

// New returns a driver that uses handlers. With a handler that is missing, Create fails, but
// existing containers can still be used and deleted.
func New(cfg Config, handlers Handlers) *Driver {
	return &Driver{cfg: cfg, handlers: handlers, watches: map[string]*oci.ExitNotifier{}}
}

// containers returns the directory that has a subdirectory for each container.
func (cfg Config) containers() string { return filepath.Join(cfg.StateDir, "containers") }

// runtimesDir returns the directory that has a subdirectory for each runtime's own state. Runtimes
// can't read each other's.
func (cfg Config) runtimesDir() string { return filepath.Join(cfg.StateDir, "runtime") }
