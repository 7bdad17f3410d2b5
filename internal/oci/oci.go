// Package oci holds the words of the OCI runtime drivers: what is asked of one
// to create a container, how it says that one ended, and the streams of an
// interactive session. The drivers are its sub-packages: monitor (conmon with
// runc or crun) and, for runtimes with a sandbox of their own, shim.
package oci

import (
	"io"
	"time"
)

// Create asks for a container, its process not yet started.
type Create struct {
	ID string
	// Bundle is a directory with the config.json of the runtime spec. The
	// driver keeps its own files about the container in it too.
	Bundle string
	// Log is the file that gets the container's output in the CRI log format;
	// empty discards it.
	Log string
	// Terminal gives the process a pseudo-terminal; its output is then one
	// stream. It must agree with the spec's process.terminal.
	Terminal bool
	// Stdin keeps the process's standard input open for Attach. StdinOnce
	// closes it when the first attached client leaves.
	Stdin, StdinOnce bool
	// Handler is the runtime handler to create it with; empty for the default.
	Handler string
	// Restore is a directory of CRIU's images, of which the process is made; empty
	// for a new one. The spec's annotation CRIUOptions must then name the file
	// CRIUFile in the bundle, which the driver writes.
	Restore string
}

// CRIUOptions is the annotation by which a spec names a file of options for
// CRIU.
const (
	CRIUOptions = "org.criu.config"
	CRIUFile    = "criu.conf"
)

// Handler is what a pod can ask for by name to run its containers.
type Handler struct {
	// Name is empty for the one of pods that name none.
	Name string
	// Runtime is what the program calls itself.
	Runtime, Version, Path string
	// UserNamespaces says that it can run containers in one.
	UserNamespaces bool
	// Missing says why it can't be used.
	Missing error
}

// Process identifies a container's first process on the host. The start time
// tells it from a later process that got the same number.
type Process struct {
	PID int `json:"pid"`
	// Start is field 22 of /proc/PID/stat, in clock ticks since boot.
	Start uint64 `json:"start"`
}

// Exit says how a container's first process ended.
type Exit struct {
	// Code is the exit status; 128+n if signal n killed the process.
	Code int       `json:"code"`
	At   time.Time `json:"at"`
	// OOMKilled says that the kernel killed a process of the container for
	// its memory limit.
	OOMKilled bool `json:"oomKilled,omitempty"`
	// Lost says that the monitor was gone, so that the code is not known; Code
	// is then 255.
	Lost bool `json:"lost,omitempty"`
}

// Size of a terminal, in characters.
type Size struct{ Width, Height uint16 }

// Streams connect a client to a process. A nil stream is not connected. With
// TTY, Stderr is not used. Resize may be nil.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	TTY            bool
	Resize         <-chan Size
}

// Exec asks for a further process in a running container. It runs with the
// user, environment, capabilities and directory of the container's own.
type Exec struct {
	ID   string // of the container
	Args []string
	Streams
	// Timeout ends the whole process tree of the exec'd program; zero is none.
	Timeout time.Duration
}
