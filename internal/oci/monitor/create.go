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
	// createLimit bounds a creation, even if the caller doesn't. A runtime that
	// was killed can leave conmon waiting for ever for its standard error.
	createLimit = 2 * time.Minute
	// cleanupLimit bounds the cleaning up after a creation that failed.
	cleanupLimit = 30 * time.Second
)

// Create starts conmon and has the runtime create the container. If it fails,
// nothing of the container is left; a refusal of the runtime is an
// *oci.StartError.
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
		Stdio: [3]int{conmon.None, conmon.None, conmon.None}, Held: held,
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
		// As long as conmon lives, its runtime makes what is to be removed.
		c.Init = oci.Process{}
		return err
	}
	c.watch(m.PIDFD)
	m.PIDFD = nil // the watch's now
	return nil
}

// chownStdio gives conmon's pipes to the user of the process, so that it can open
// /dev/stdout anew. In a user namespace the runtime, which does that otherwise,
// may not: the node's root owns them.
func (c *container) chownStdio() error {
	if c.StdioOwner == nil {
		return nil
	}
	for fd := range 3 {
		path := fmt.Sprintf("/proc/%d/fd/%d", c.Init.PID, fd)
		info, err := os.Stat(path)
		if err != nil || info.Mode().Type() != fs.ModeNamedPipe {
			continue // closed, the node's /dev/null, or a terminal of the container's
		}
		if err := os.Chown(path, *c.StdioOwner, -1); err != nil {
			return err
		}
	}
	return nil
}

const lockFile = "lock"

// createArgs are conmon's arguments for creating a container.
func (c *container) createArgs() []string {
	log := "none"
	if c.Log != "" {
		log = "k8s-file:" + c.Log
	}
	args := []string{
		"--cid", c.ID, "--cuuid", c.ID,
		"--bundle", c.Bundle,
		"--container-pidfile", c.path("pid"),
		"--log-path", log,
		// The attach socket is bound through /proc/self/fd, at any length of path.
		"--full-attach",
		// An fsync of the log as each container ends stalls a slow disk.
		"--no-sync-log",
	}
	args = append(args, c.runtimeArgs()...)
	if c.Terminal {
		args = append(args, "--terminal")
	}
	if c.Restore != "" {
		args = append(args, "--restore", c.Restore)
	}
	if c.Stdin {
		args = append(args, "--stdin")
	}
	if !c.StdinOnce {
		args = append(args, "--leave-stdin-open")
	}
	return args
}

// globalArgs are the runtime's own. With a log file the runtimes write their
// errors plainly to standard error, and their warnings not into the container's
// log.
func (c *container) globalArgs() []string {
	args := []string{"--root=" + c.runtimeRoot(), "--log=" + c.path("runtime.log")}
	if c.Systemd {
		args = append(args, "--systemd-cgroup")
	}
	return args
}

// runtimeArgs tell conmon which runtime to run and how.
func (c *container) runtimeArgs() []string {
	args := []string{"--runtime", c.Runtime.Path}
	for _, arg := range c.globalArgs() {
		args = append(args, "--runtime-arg", arg)
	}
	return args
}

// await waits for conmon's word that the container is there.
func (c *container) awaitCreated(ctx context.Context, m *conmon.Conmon) error {
	got, err := m.Next(ctx)
	switch {
	case errors.Is(err, io.EOF):
		if said := oci.OneLine(m.Stderr()); said != "" {
			return errors.New(said)
		}
		return fmt.Errorf("%s or conmon died without a word", c.Runtime.Name)
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

// withCleanupError adds to an error what went wrong in cleaning up after it.
func withCleanupError(err, then error) error {
	if then == nil {
		return err
	}
	return fmt.Errorf("%w (and then: %w)", err, then)
}
