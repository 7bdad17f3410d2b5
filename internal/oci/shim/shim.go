// Package shim runs containers with runtimes that bring a sandbox or a monitor
// of their own and speak containerd's shim protocol, version 2: gVisor, Kata
// Containers, containerd's own shim of runc.
//
// A shim is a process that the runtime brings. "start" makes it and prints the
// address of its socket, where it serves the task service over ttrpc. A shim
// serves one container or, for a pod, the sandbox's first container and, on the
// same connection, all others: the spec's annotations say which.
//
// # What a shim is not asked for
//
// The log. A shim writes a container's output into FIFOs and leaves the rest to
// whoever runs it, which must not be this daemon: a container would stand still
// as long as that is away. So each container has a conmon too, which keeps the
// log in the CRI format and serves attach, as it does for the containers of
// package monitor. What it watches over is a process that does nothing but hold
// its pipes (package holder), and the shim is told the names of those in /proc.
//
// Events. A shim tells ends and kills for memory to containerd, by connecting to
// it. Here ends are learnt by waiting, which works after a restart too, and
// kills for memory from the cgroup. gVisor's shim panics if it was given an
// address for events and can't deliver one, so it is given none.
//
// As in package monitor everything is in one directory for each container, the
// record is written before anything is done, and a new Driver on the same
// directory carries on where the old one stopped.
package shim

import (
	"context"
	"fmt"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Config is what a driver needs to know.
type Config struct {
	// StateDir holds everything that the driver writes. It should be on a tmpfs.
	StateDir string
	// Instance names the cgroup of the container that Find tries.
	Instance pod.Instance
	Host     host.Facts
	// Conmon is its path; if empty it is looked for.
	Conmon string
}

// Driver creates, runs and deletes containers. Its methods are safe for
// concurrent use; those that change one container must not overlap.
type Driver struct {
	cfg      Config
	handlers Handlers

	mu      sync.Mutex
	watches map[string]*watch // by container ID
}

// New returns a driver for the handlers that were found.
func New(cfg Config, handlers Handlers) *Driver {
	return &Driver{cfg: cfg, handlers: handlers, watches: map[string]*watch{}}
}

// containers is the directory with one of ours for each container.
func (cfg Config) containers() string { return filepath.Join(cfg.StateDir, "containers") }

// Start runs the program of a created container. A refusal of the runtime is an
// *oci.StartError.
func (d *Driver) Start(ctx context.Context, id string) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	t, ok := w.task()
	if !ok {
		return c.wrap("start", &oci.StartError{Code: 128, Message: "it has ended"})
	}
	err = t.start(ctx, id, "")
	if err != nil && isGone(err) {
		err = &oci.StartError{Code: 128, Message: oci.OneLine(err.Error())}
	}
	return c.wrap("start", err)
}

// Signal sends sig to the container's first process. It is errdefs.ErrNotFound
// if that has ended.
func (d *Driver) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	t, ok := w.task()
	switch {
	case ok && sig == syscall.SIGKILL:
		err = c.kill(ctx, w)
	case ok:
		err = t.kill(ctx, id, "", sig)
	}
	if !ok || err != nil && isGone(err) {
		err = errdefs.ErrNotFound.WithMessage("it has ended")
	}
	return c.wrap("signal", err)
}

// KillAll kills every process of the container and returns when none is left.
func (d *Driver) KillAll(ctx context.Context, id string) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	if !w.Exited() {
		err = c.killAll(ctx, w)
	}
	if err == nil {
		// A process that is not in the cgroup is gone when the shim says so.
		err = w.Wait(ctx)
	}
	return c.wrap("kill", err)
}

// killAll kills what the shim knows of and what is in the cgroup.
func (c *container) killAll(ctx context.Context, w *watch) error {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.kill(limited, w)
	if err != nil && isGone(err) {
		err = nil
	}
	tree, treeErr := c.tree()
	if treeErr == nil {
		treeErr = tree.Kill(ctx, c.Cgroup)
	}
	if err == nil {
		err = treeErr
	}
	return err
}

// kill has the shim kill the container's first process. Where its program was
// never started, gVisor's shim has nothing to tell the end of: it is deleted, and
// nobody waits for it.
func (c *container) kill(ctx context.Context, w *watch) error {
	t, ok := w.task()
	if !ok {
		return nil
	}
	state, err := t.state(ctx, c.ID)
	unstarted := err == nil && state.GetStatus() == tasktypes.Status_CREATED
	err = t.kill(ctx, c.ID, "", syscall.SIGKILL)
	if !unstarted {
		return err
	}
	moment, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if w.Wait(moment) == nil {
		return nil
	}
	if err := c.deleteTask(ctx, t); err != nil {
		return err
	}
	w.cancel()
	return nil
}

// wrap says what was done to which container when err happened, which may be nil.
func (c *container) wrap(what string, err error) error {
	if err == nil || c == nil {
		return err
	}
	return fmt.Errorf("%s container %s: %w", what, pod.Short(c.ID), err)
}
