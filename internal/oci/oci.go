// Package oci defines the types of the OCI runtime drivers: the request to create a container, its
// exit, and the streams of an interactive session. The drivers are sub-packages: monitor (conmon
// with runc or crun) and shim (runtimes that speak containerd's shim protocol).
package oci

import (
	"io"
	"time"
)

// Create is a request to create a container without starting its process.
type Create struct {
	ID string
	// Bundle is a directory with the runtime spec, config.json. The driver puts files of its own
	// into it.
	Bundle string
	// Log is the file for the container's output in the CRI log format; empty discards the output.
	Log string
	// Terminal gives the process a pseudo-terminal, with a single stream of output. It must equal
	// the spec's process.terminal.
	Terminal bool
	// Stdin keeps the process's stdin open for Attach. StdinOnce closes it when the first attached
	// client disconnects.
	Stdin, StdinOnce bool
	// Handler is the runtime handler; empty for the default.
	Handler string
	// Restore is a directory of CRIU images to restore the process from; empty for a new process.
	// The spec's annotation CRIUOptions must then name CRIUFile in the bundle, which the driver
	// writes.
	Restore string
}

// CRIUOptions is the annotation of a spec that names a file with options for CRIU, and CRIUFile is
// the name of the file that the driver writes.
const (
	CRIUOptions = "org.criu.config"
	CRIUFile    = "criu.conf"
)

// Handler is a runtime handler that pods can name to choose a runtime.
type Handler struct {
	// Name is empty for the default handler.
	Name string
	// Runtime is the name that the program reports.
	Runtime, Version, Path string
	// UserNamespaces says that it can run containers in user namespaces.
	UserNamespaces bool
	// Missing is the reason if it can't be used.
	Missing error
}

// Process identifies a container's init process on the host. The start time distinguishes it from a
// later process with the same PID.
type Process struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat, in clock ticks since boot.
	Start uint64 `json:"start"`
}

// Exit describes how a container's init process exited.
type Exit struct {
	// Code is the exit status; 128+n if signal n killed the process.
	Code int       `json:"code"`
	At   time.Time `json:"at"`
	// OOMKilled says that the kernel OOM-killed a process of the container.
	OOMKilled bool `json:"oomKilled,omitempty"`
	// Lost says that the monitor was gone, so the exit code is unknown and Code is 255.
	Lost bool `json:"lost,omitempty"`
}

// Size is the size of a terminal in characters.
type Size struct{ Width, Height uint16 }

// Streams connect a client to a process. A nil stream is not connected. With TTY, Stderr is not
// used. Resize may be nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	Resize         <-chan Size
}

// Exec is a request to run another program in a running container. It runs with the user,
// environment, capabilities and directory of the container's process.
type Exec struct {
	ID   string // of the container
	Args []string
	Streams
	// Timeout is the time after which the program and all that it forked are killed; zero is no
	// limit.
	Timeout time.Duration
}
