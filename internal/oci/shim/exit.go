package shim

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
)

// exitFile records the container's exit. It is written before the shim's task is deleted, after
// which the shim doesn't know the exit any more.
const exitFile = "exit.json"

// Wait returns the container's exit once it has exited, also if it did while no Driver ran. By then
// every process that it left is killed. Wait can be repeated until the container is deleted.
func (d *Driver) Wait(ctx context.Context, id string) (oci.Exit, error) {
	_, w, err := d.watched(id)
	if err == nil {
		err = w.Wait(ctx)
	}
	if err != nil {
		return oci.Exit{}, err
	}
	return w.Exit(), nil
}

// Status returns the state of a container.
func (d *Driver) Status(ctx context.Context, id string) (oci.Status, error) {
	c, w, err := d.watched(id)
	if err != nil {
		return oci.Status{}, err
	}
	ended := func() (oci.Status, error) {
		if err := w.Wait(ctx); err != nil {
			return oci.Status{}, c.wrap("find", err)
		}
		return oci.Status{State: oci.Exited, Process: c.Init, Exit: w.Exit()}, nil
	}
	t, ok := w.task()
	if !ok {
		return ended()
	}
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	state, err := t.state(limited, id)
	switch {
	case err != nil && isGone(err):
		return ended()
	case err != nil:
		return oci.Status{}, c.wrap("find", err)
	case state.GetStatus() == tasktypes.Status_STOPPED:
		return ended()
	case state.GetStatus() == tasktypes.Status_CREATED:
		return oci.Status{State: oci.Created, Process: c.Init}, nil
	}
	return oci.Status{State: oci.Running, Process: c.Init}, nil
}

// cleanUpExited ends what is left of a container whose init process has exited, and returns its
// exit.
func (c *container) cleanUpExited(w *watch, exit oci.Exit) oci.Exit {
	ctx, cancel := context.WithTimeout(context.Background(), leftoverLimit)
	defer cancel()
	// Errors are ignored: Delete tries again and reports them.
	if tree, err := c.tree(); err == nil {
		// Read now: deleteTask removes the cgroup.
		exit.OOMKilled = exit.OOMKilled || tree.OOMKills(c.Cgroup) > 0
		exit = c.saveExit(exit)
		_ = c.killCgroup(ctx, tree)
	}
	if c.deleteTask(ctx, w.current.Load()) != nil && !running(c.Shim) {
		_ = c.Handler.deleteLeftovers(ctx, c.bundleCopy, c.ID)
	}
	_ = c.stopLog(ctx)
	return exit
}

// deleteTask deletes the container in the shim, which first copies the rest of its output.
func (c *container) deleteTask(ctx context.Context, t *task) error {
	if t == nil {
		return errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := t.delete(ctx, c.ID, "")
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// saveExit records the container's exit, unless one is recorded already, and returns the recorded
// one.
func (c *container) saveExit(exit oci.Exit) oci.Exit {
	tmp, err := os.CreateTemp(c.dir, exitFile+"-")
	if err != nil {
		return exit
	}
	defer os.Remove(tmp.Name())
	err = json.NewEncoder(tmp).Encode(exit)
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Link(tmp.Name(), c.path(exitFile))
	}
	if errors.Is(err, fs.ErrExist) {
		if first, ok := readExit(c.path(exitFile)); ok {
			return first
		}
	}
	return exit
}

func readExit(file string) (exit oci.Exit, ok bool) {
	raw, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(raw, &exit) != nil {
		return oci.Exit{}, false
	}
	return exit, true
}
