package monitor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// monitorGrace is how long conmon has to write the rest of the log and the exit code once the
// container's init process is dead.
const monitorGrace = 5 * time.Second

var errGrace = errors.New("conmon did not exit")

// Delete kills what is left of a container and removes all traces of it: its processes, conmon, the
// cgroup, and the files of the runtime and the driver. It can be repeated, and also works at any
// point of an interrupted creation, after a reboot, and for a container that doesn't exist. If it
// fails, the record stays.
func (d *Driver) Delete(ctx context.Context, id string) error {
	if err := bundle.CheckID(id); err != nil {
		return err
	}
	c, err := d.load(id)
	if err != nil {
		// There is no record, or an unreadable one. What it had is found in other ways.
		c = d.newContainer(id)
	}
	if err := c.remove(ctx); err != nil {
		return fmt.Errorf("delete container %s: %w", pod.Short(id), err)
	}
	return nil
}

// remove implements Delete.
func (c *container) remove(ctx context.Context) error {
	if !c.rebooted() {
		if err := c.end(ctx); err != nil {
			return err
		}
	}
	if err := c.removeState(ctx); err != nil {
		return err
	}
	if c.Bundle != "" {
		conmon.RemoveFiles(c.Bundle)
	}
	c.driver.dropWatch(c.ID)
	err := os.RemoveAll(c.dir)
	// A concurrent Wait may create the lost file meanwhile.
	for tries := 0; errors.Is(err, unix.ENOTEMPTY) && tries < 3; tries++ {
		err = os.RemoveAll(c.dir)
	}
	return err
}

// end kills the container's init process and waits for conmon, which then records the exit and
// exits. What is left in the cgroup is killed with it. An interrupted creation is ended in another
// order: see endCreation.
func (c *container) end(ctx context.Context) error {
	if !c.Created() {
		return c.endCreation(ctx)
	}
	if err := pidfd.Signal(c.Init, unix.SIGKILL); err != nil && !errors.Is(err, pidfd.ErrGone) {
		return err
	}
	w, err := c.findWatch()
	if errors.Is(err, pidfd.ErrGone) || err == nil && w.Exited() {
		return nil
	}
	if err != nil {
		return err
	}
	limited, cancel := context.WithTimeoutCause(ctx, monitorGrace, errGrace)
	defer cancel()
	if err := w.Wait(limited); !errors.Is(err, errGrace) {
		return err
	}
	if err := pidfd.End(ctx, c.Monitor); err != nil {
		return err
	}
	return w.Wait(ctx)
}

// endCreation ends an interrupted creation, and returns when none of its processes is left. These
// are conmon, which may not be recorded, or still be huskd's fork before its exec; the runtime,
// which dies a little after conmon; and what the runtime has forked. conmon goes first, because its
// runtime may still be starting processes.
func (c *container) endCreation(ctx context.Context) error {
	if _, err := os.Stat(c.dir); errors.Is(err, fs.ErrNotExist) {
		return nil // it is created before conmon is started
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if err := c.killFound(ctx); err != nil {
			return err
		}
		held, err := conmon.Lock(c.path(lockFile))
		if err == nil {
			return held.Close()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		if c.Cgroup == "" {
			// The record is unreadable: only the runtime knows the container's processes.
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// killFound kills the processes of a creation that it can find.
func (c *container) killFound(ctx context.Context) error {
	p := c.Monitor
	if p.PID == 0 {
		p, _ = conmon.Find(c.dir)
	}
	if err := pidfd.End(ctx, p); err != nil || c.Cgroup == "" {
		return err
	}
	tree, err := c.tree()
	if err != nil {
		return err
	}
	return tree.Kill(ctx, c.Cgroup)
}

// removeState removes the cgroup and the runtime's directory of the container.
func (c *container) removeState(ctx context.Context) error {
	if c.Runtime.Name == "" {
		return c.removeUnrecorded(ctx)
	}
	if _, err := os.Stat(c.runtimeState()); err == nil && c.RuntimeDeletes {
		// An error doesn't matter: what the runtime leaves is removed below.
		_ = c.runRuntime(ctx, "delete", "--force", c.ID)
	}
	if !c.rebooted() {
		tree, err := c.tree()
		if err != nil {
			return err
		}
		if err := tree.Remove(ctx, c.Cgroup); err != nil {
			return err
		}
	}
	return removeMounted(c.runtimeState())
}

// removeMounted removes a directory that may have files as mount points. runc mounts its own
// program there for a moment, to have a copy that the container can't write to (nsexec's
// cloned_binary.c), and may have been killed then.
func removeMounted(dir string) error {
	err := os.RemoveAll(dir)
	if !errors.Is(err, unix.EBUSY) {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		_ = unix.Unmount(filepath.Join(dir, e.Name()), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	return os.RemoveAll(dir)
}

// removeUnrecorded deletes a container without a readable record by each runtime that has a
// directory of it. Only the runtime can tell then which processes and cgroups are the container's.
func (c *container) removeUnrecorded(ctx context.Context) error {
	roots, err := os.ReadDir(c.driver.cfg.runtimesDir())
	if err != nil {
		return ignoreMissing(err)
	}
	for _, root := range roots {
		c.Runtime = c.driver.handlers.byRuntimeName(root.Name())
		if _, err := os.Stat(c.runtimeState()); err != nil {
			continue
		}
		if err := c.runRuntime(ctx, "delete", "--force", c.ID); err != nil {
			return err
		}
		if err := removeMounted(c.runtimeState()); err != nil {
			return err
		}
	}
	return nil
}
