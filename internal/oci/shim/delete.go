package shim

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pidfd"
)

// killGrace is how long a shim has to report that a killed container has exited.
const killGrace = 10 * time.Second

// Delete kills what is left of a container and removes all traces of it: its processes, conmon, the
// cgroup and the driver's files, and the shim if it has no other container. It can be repeated, and
// also works at any point of an interrupted creation, after a reboot, and for a container that
// doesn't exist. If it fails, the record stays.
func (d *Driver) Delete(ctx context.Context, id string) error {
	if err := bundle.CheckID(id); err != nil {
		return err
	}
	if !d.Has(id) {
		return nil
	}
	c, err := d.load(id)
	if err != nil {
		c = d.reconstruct(id)
	}
	return c.wrap("delete", c.remove(ctx))
}

// reconstruct returns what it can find out about a container whose record is unreadable. Its source
// is the spec, which is written before any process is started.
func (d *Driver) reconstruct(id string) *container {
	c := d.newContainer(id)
	var spec bundle.Bundle
	raw, err := os.ReadFile(c.spec())
	if err != nil || json.Unmarshal(raw, &spec) != nil {
		return c
	}
	c.Cgroup = spec.Cgroup()
	if spec.Annotations[annotationType] == typeContainer {
		c.Sandbox = spec.Annotations[annotationSandbox]
		if s, err := d.find(c.Sandbox); err == nil {
			c.Handler, c.Endpoint, c.Shim = s.Handler, s.Endpoint, s.Shim
		}
	}
	return c
}

// remove implements Delete.
func (c *container) remove(ctx context.Context) error {
	if !c.rebooted() {
		if err := c.end(ctx); err != nil {
			return err
		}
	}
	if err := c.driver.dropWatch(ctx, c.ID); err != nil {
		return err
	}
	if c.Bundle != "" {
		conmon.RemoveFiles(c.Bundle)
	}
	err := os.RemoveAll(c.bundleCopy)
	// A concurrent Wait may create the exit file meanwhile.
	for tries := 0; err == nil || errors.Is(err, unix.ENOTEMPTY) && tries < 3; tries++ {
		if err = os.RemoveAll(c.dir); err == nil {
			return nil
		}
	}
	return err
}

// end ends every process of the container.
func (c *container) end(ctx context.Context) error {
	var err error
	if c.Created() {
		err = c.endContainer(ctx)
	} else {
		err = c.endCreation(ctx)
	}
	if err == nil && c.Sandbox == "" {
		err = c.ownShim().end(ctx)
	}
	if err == nil {
		err = c.killLogProcesses(ctx)
	}
	if err != nil || c.Cgroup == "" {
		return err
	}
	tree, err := c.tree()
	if err != nil {
		return err
	}
	return tree.Remove(ctx, c.Cgroup)
}

// endContainer kills a container and waits until it is cleaned up. If the shim doesn't answer, it
// is killed too, with everything that it serves.
func (c *container) endContainer(ctx context.Context) error {
	_, w, err := c.driver.watched(c.ID)
	if err != nil {
		if err := pidfd.End(ctx, c.Shim); err != nil {
			return err
		}
		_, w, err = c.driver.watched(c.ID)
	}
	if err != nil || w.Exited() {
		return err
	}
	limited, cancel := context.WithTimeout(ctx, killGrace)
	defer cancel()
	_ = c.killAll(limited, w) // the watch shows whether it worked
	if w.Wait(limited) == nil {
		return nil
	}
	if err := pidfd.End(ctx, c.Shim); err != nil {
		return err
	}
	return w.Wait(ctx)
}

// endCreation ends a creation that failed or was interrupted. A shim of the container's own goes
// first, because it may still be starting processes.
func (c *container) endCreation(ctx context.Context) error {
	if c.Sandbox != "" {
		t, err := connect(ctx, c.Endpoint)
		if err != nil {
			return nil //nolint:nilerr // without the shim there is no container
		}
		defer t.close()
		limited, cancel := context.WithTimeout(ctx, killGrace)
		defer cancel()
		_ = t.kill(limited, c.ID, "", unix.SIGKILL)
		_ = c.deleteTask(limited, t)
		return nil
	}
	if err := c.ownShim().kill(ctx); err != nil {
		return err
	}
	if c.Handler.Path != "" && c.Endpoint.Address != "" {
		// Fails if the shim had created nothing. What it leaves is in the cgroup.
		_ = c.Handler.deleteLeftovers(ctx, c.bundleCopy, c.ID)
	}
	if tree, err := c.tree(); err == nil && c.Cgroup != "" {
		return tree.Kill(ctx, c.Cgroup)
	}
	return nil
}
