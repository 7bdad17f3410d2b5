package shim

import (
	"context"
	"slices"
	"syscall"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/cgroup"
)

// Signal sends sig to the container's init process, or returns errdefs.ErrNotFound if it has
// exited.
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

// KillAll kills every process of the container and returns when all have exited.
func (d *Driver) KillAll(ctx context.Context, id string) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	if !w.Exited() {
		err = c.killAll(ctx, w)
	}
	if err == nil {
		// Processes outside of the cgroup have exited once the shim reports it.
		err = w.Wait(ctx)
	}
	return c.wrap("kill", err)
}

// killAll kills the init process through the shim, and everything in the cgroup.
func (c *container) killAll(ctx context.Context, w *watch) error {
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := c.kill(limited, w)
	if err != nil && isGone(err) {
		err = nil
	}
	tree, treeErr := c.tree()
	if treeErr == nil {
		treeErr = c.killCgroup(ctx, tree)
	}
	if err == nil {
		err = treeErr
	}
	return err
}

// killCgroup kills what is in the container's cgroup. If the shim is, as Kata's with
// sandbox_cgroup_only, so is the virtual machine, and both are needed until the shim has deleted
// the container. Then nothing is killed.
func (c *container) killCgroup(ctx context.Context, tree *cgroup.Tree) error {
	pids, err := tree.PIDs(c.Cgroup)
	if err != nil {
		return err
	}
	if slices.Contains(pids, c.Shim.PID) && running(c.Shim) {
		return nil
	}
	return tree.Kill(ctx, c.Cgroup)
}

// kill kills the container's init process through the shim. gVisor's shim doesn't report the exit
// of a container that was never started. kill deletes such a container and cancels its watch.
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
