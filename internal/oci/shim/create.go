package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/record"
	"github.com/huskd/husk/internal/oci/stdioholder"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

const (
	// createLimit bounds a creation, even if the caller doesn't.
	createLimit = 2 * time.Minute
	// cleanupLimit bounds the cleaning up after a creation that failed.
	cleanupLimit = 30 * time.Second
)

// Create has a shim create the container: that of its sandbox, or a new one. If
// it fails, nothing of the container is left; a refusal of the runtime is an
// *oci.StartError.
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

// shimLog is where a shim writes its own log. It is made for a FIFO that
// containerd reads; as a file it is there to be read by whoever looks for why a
// container doesn't work, and never full.
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

// findShim sets the shim that is to have the container.
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
	c.Endpoint, err = c.Handler.launch(ctx, c.bundleCopy, c.ID)
	return err
}

// createTask has the shim create the container. The shim's process is on disk
// before.
func (c *container) createTask(ctx context.Context, t *task) error {
	if c.Sandbox == "" {
		pid, err := t.shim(ctx, c.ID)
		if err == nil {
			c.Shim, err = pidfd.Identify(pid)
		}
		if err != nil {
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

// startLog starts conmon, for the log and for attach, and in it the holder of
// the container's pipes.
func (c *container) startLog(ctx context.Context) error {
	program, err := stdioholder.Open()
	if err != nil {
		return err
	}
	defer program.Close()
	held, err := conmon.Lock(c.path(lockFile))
	if err != nil {
		return err
	}
	defer held.Close()
	m, err := conmon.Start(conmon.Launch{
		Path: c.Handler.Conmon, Dir: c.Bundle, State: c.dir, Args: c.conmonArgs(program),
		Stdio: [3]int{conmon.None, conmon.None, conmon.None}, Held: held,
	})
	if err != nil {
		return err
	}
	defer m.Close()
	c.Monitor = m.Process
	got, err := m.Next(ctx)
	if err == nil && got.Value <= 0 {
		err = errors.New(got.Message)
	}
	if err != nil {
		if said := oci.OneLine(m.Stderr()); said != "" && ctx.Err() == nil {
			return errors.New(said)
		}
		return fmt.Errorf("conmon: %w", err)
	}
	c.Holder, err = pidfd.Identify(got.Value)
	return err
}

func (c *container) conmonArgs(program *os.File) []string {
	log := "none"
	if c.Log != "" {
		log = "k8s-file:" + c.Log
	}
	args := []string{
		"--cid", c.ID, "--cuuid", c.ID,
		"--bundle", c.Bundle,
		"--container-pidfile", c.path(pidFile),
		"--log-path", log,
		// The attach socket is bound through /proc/self/fd, at any length of path.
		"--full-attach",
		// An fsync of the log as each container ends stalls a slow disk.
		"--no-sync-log",
		"--runtime", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), program.Fd()),
		"--runtime-arg", c.path(pidFile),
	}
	if c.Stdin {
		args = append(args, "--stdin")
	}
	if !c.StdinOnce {
		args = append(args, "--leave-stdin-open")
	}
	return args
}

// pidFile is where the holder writes its number.
const pidFile = "holder.pid"
