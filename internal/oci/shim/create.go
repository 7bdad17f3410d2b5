package shim

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/record"
	"github.com/huskd/husk/internal/oci/stdioholder"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

const (
	// createLimit bounds a Create, and a Start, whose caller sets no limit.
	createLimit = 2 * time.Minute
	// cleanupLimit bounds the cleanup after a failed creation.
	cleanupLimit = 30 * time.Second
)

// Create creates the container in the shim of its sandbox, or in a new shim. If the runtime
// refuses, the error is an *oci.StartError. After an error nothing of the container is left.
func (d *Driver) Create(ctx context.Context, req oci.Create) (oci.Process, error) {
	h, err := d.handlers.Get(req.Handler)
	if err != nil {
		return oci.Process{}, fmt.Errorf("create container %s: %w", pod.Short(req.ID), err)
	}
	c, spec, err := d.prepare(req, h)
	if err != nil {
		return oci.Process{}, err
	}
	if err := record.Reserve(d.cfg.containers(), c.ID); err != nil {
		return oci.Process{}, err
	}
	limited, cancel := context.WithTimeoutCause(ctx, createLimit, fmt.Errorf("%s took longer than %v", h.Path, createLimit))
	defer cancel()
	if err := c.create(limited, spec); err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		if removeErr := c.remove(cleanup); removeErr != nil {
			err = fmt.Errorf("%w (and then: %w)", err, removeErr)
		}
		return oci.Process{}, c.wrap("create", err)
	}
	return c.Init, nil
}

// Start starts the program of a created container. If the runtime refuses, the error is an
// *oci.StartError.
func (d *Driver) Start(ctx context.Context, id string) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	w.starting.RLock()
	defer w.starting.RUnlock()
	t, ok := w.task()
	if !ok {
		return c.wrap("start", &oci.StartError{Code: 128, Message: "it has ended"})
	}
	limited, cancel := context.WithTimeoutCause(ctx, createLimit, fmt.Errorf("%s took longer than %v", c.Handler.Path, createLimit))
	defer cancel()
	err = t.start(limited, id, "")
	if err != nil && isGone(err) {
		err = &oci.StartError{Code: 128, Message: oci.OneLine(err.Error())}
	}
	return c.wrap("start", err)
}

// shimLog is the file in the bundle that a shim writes its own log to. containerd creates a FIFO
// there. Husk creates a plain file, which needs no reader and never blocks the shim.
const shimLog = "log"

func (c *container) create(ctx context.Context, spec []byte) error {
	if err := c.save(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.bundleCopy, 0o700); err != nil {
		return err
	}
	for file, content := range map[string][]byte{c.spec(): spec, filepath.Join(c.bundleCopy, shimLog): nil} {
		if err := os.WriteFile(file, content, 0o600); err != nil {
			return err
		}
	}
	if err := c.startLog(ctx); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	if err := c.findShim(ctx); err != nil {
		return err
	}
	t, err := connect(ctx, c.Endpoint)
	if err != nil {
		return err
	}
	if err := c.createTask(ctx, t); err != nil {
		t.close()
		return err
	}
	c.watch(t)
	return nil
}

// findShim sets the container's shim: that of its sandbox, or one that it launches.
func (c *container) findShim(ctx context.Context) error {
	if c.Sandbox != "" {
		s, err := c.driver.find(c.Sandbox)
		if err != nil {
			return fmt.Errorf("its sandbox: %w", err)
		}
		c.Endpoint, c.Shim = s.Endpoint, s.Shim
		return nil
	}
	var err error
	c.Endpoint, err = c.Handler.launch(ctx, place{c.bundleCopy, c.driver.cfg.Monitors}, c.ID)
	if err != nil && ctx.Err() == nil {
		return oci.NewStartError(err.Error())
	}
	return err
}

// createTask creates the container in the shim. It records the shim's process first.
func (c *container) createTask(ctx context.Context, t *task) error {
	if c.Sandbox == "" {
		var err error
		if c.Shim, err = c.ownShim().identify(ctx, t); err != nil {
			return fmt.Errorf("the shim's process: %w", err)
		}
	}
	if err := c.save(); err != nil {
		return err
	}
	options, err := c.Handler.options()
	if err != nil {
		return err
	}
	req := &taskapi.CreateTaskRequest{
		ID: c.ID, Bundle: c.bundleCopy, Terminal: c.Terminal, Options: options,
		Stdout: stdioholder.Stream(c.Holder.PID, 1),
	}
	if !c.Terminal {
		req.Stderr = stdioholder.Stream(c.Holder.PID, 2)
	}
	if c.Stdin {
		req.Stdin = stdioholder.Stream(c.Holder.PID, 0)
	}
	pid, err := t.create(ctx, req)
	if err != nil {
		return err
	}
	if c.Init, err = pidfd.Identify(pid); err != nil {
		return fmt.Errorf("its process %d: %w", pid, err)
	}
	return c.save()
}
