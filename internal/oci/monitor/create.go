package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/record"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

const (
	// createLimit bounds a Create whose caller sets no limit. A killed runtime can leave conmon
	// waiting forever for the end of its stderr.
	createLimit = 2 * time.Minute
	// cleanupLimit bounds the cleanup after a failed creation.
	cleanupLimit = 30 * time.Second
)

// Create starts conmon, whose runtime creates the container. If the runtime refuses, the error is
// an *oci.StartError. After an error nothing of the container is left.
func (d *Driver) Create(ctx context.Context, req oci.Create) (oci.Process, error) {
	runtime, err := d.handlers.Get(req.Handler)
	if err != nil {
		return oci.Process{}, fmt.Errorf("create container %s: %w", pod.Short(req.ID), err)
	}
	c, err := d.prepare(req, runtime)
	if err != nil {
		return oci.Process{}, err
	}
	if err := record.Reserve(d.cfg.containers(), c.ID); err != nil {
		return oci.Process{}, err
	}
	if err := c.create(ctx); err != nil {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		return oci.Process{}, fmt.Errorf("create container %s: %w", pod.Short(req.ID), withCleanupError(err, c.remove(cleanup)))
	}
	return c.Init, nil
}

func (c *container) create(ctx context.Context) error {
	if err := c.save(); err != nil {
		return err
	}
	if err := os.MkdirAll(c.runtimeRoot(), 0o700); err != nil {
		return err
	}
	if c.Restore != "" {
		if err := os.WriteFile(filepath.Join(c.Bundle, oci.CRIUFile), []byte(criuOptions), 0o600); err != nil {
			return err
		}
	}
	held, err := conmon.Lock(c.path(lockFile))
	if err != nil {
		return err
	}
	defer held.Close()
	m, err := conmon.Start(conmon.Launch{
		Path: c.Runtime.Conmon, Dir: c.Bundle, State: c.dir, Args: c.createArgs(),
		Stdio: [3]int{conmon.None, conmon.None, conmon.None}, Held: held, Cgroup: c.driver.cfg.Monitors,
	})
	if err != nil {
		return err
	}
	defer m.Close()
	c.Monitor = m.Process
	limited, cancel := context.WithTimeoutCause(ctx, createLimit, fmt.Errorf("%s took longer than %v", c.Runtime.Name, createLimit))
	defer cancel()
	err = c.awaitCreated(limited, m)
	if err == nil {
		err = c.chownStdio()
	}
	if err == nil {
		err = c.saveCreated()
	}
	if err != nil {
		// Makes remove kill conmon first, because its runtime may still be starting processes.
		c.Init = oci.Process{}
		return err
	}
	c.watch(m.PIDFD)
	m.PIDFD = nil // owned by the watch
	return nil
}

// chownStdio gives conmon's pipes to the user of the process, so that it can open /dev/stdout
// again. The runtime does that, but not in a user namespace, which doesn't map the pipes' owner.
func (c *container) chownStdio() error {
	if c.StdioOwner == nil {
		return nil
	}
	for fd := range 3 {
		path := fmt.Sprintf("/proc/%d/fd/%d", c.Init.PID, fd)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Type() != fs.ModeNamedPipe {
			continue // closed, the node's /dev/null, or the container's terminal
		}
		if err := os.Chown(path, *c.StdioOwner, -1); err != nil {
			return err
		}
	}
	return nil
}

const lockFile = "lock"

// createArgs returns conmon's arguments to create a container.
func (c *container) createArgs() []string {
	args := append(c.ConmonArgs(c.path("pid")), c.runtimeArgs()...)
	if c.Terminal {
		args = append(args, "--terminal")
	}
	if c.Restore != "" {
		args = append(args, "--restore", c.Restore)
	}
	return args
}

// awaitCreated waits for conmon's report that the container is created.
func (c *container) awaitCreated(ctx context.Context, m *conmon.Conmon) error {
	got, err := m.Next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		if stderr := oci.OneLine(m.Stderr()); stderr != "" {
			return errors.New(stderr)
		}
		return fmt.Errorf("%s or conmon died without an error message", c.Runtime.Name)
	case err != nil:
		return err
	case got.Value <= 0 && c.Restore != "":
		return withReason(oci.NewStartError(got.Message), filepath.Join(c.Bundle, "restore.log"))
	case got.Value <= 0:
		return oci.NewStartError(got.Message)
	}
	c.Init, err = pidfd.Identify(got.Value)
	return err
}

// withCleanupError adds the error of a cleanup to the error that caused it.
func withCleanupError(err, then error) error {
	if then == nil {
		return err
	}
	return fmt.Errorf("%w (and then: %w)", err, then)
}
