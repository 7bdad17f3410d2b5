package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/stdioholder"
	"github.com/huskd/husk/internal/pidfd"
)

// lockFile is locked as long as conmon or the stdio holder runs: see conmon.Launch.
const lockFile = "lock"

// pidFile is the file that the stdio holder writes its PID to.
const pidFile = "holder.pid"

// startLog starts conmon, for the log and for attach, with the stdio holder as its child.
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
		Stdio: [3]int{conmon.None, conmon.None, conmon.None}, Held: held, Cgroup: c.driver.cfg.Monitors,
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
		if stderr := oci.OneLine(m.Stderr()); stderr != "" && ctx.Err() == nil {
			return errors.New(stderr)
		}
		return fmt.Errorf("conmon: %w", err)
	}
	c.Holder, err = pidfd.Identify(got.Value)
	return err
}

func (c *container) conmonArgs(program *os.File) []string {
	return append(c.ConmonArgs(c.path(pidFile)),
		"--runtime", fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), program.Fd()),
		"--runtime-arg", c.path(pidFile))
}

const (
	// leftoverLimit bounds the cleanup after a container's init process has exited.
	leftoverLimit = 30 * time.Second
	// flushLimit bounds the wait for output, whose pipes processes other than init may keep open.
	// The shim of runc waits for two seconds.
	flushLimit = 5 * time.Second
)

// killOnLogLoss kills the container if its conmon dies first, because nothing reads its output
// then.
func (c *container) killOnLogLoss(w *watch) {
	f, err := pidfd.Open(c.Monitor)
	if err == nil {
		err = pidfd.Wait(w.ctx, f)
		_ = f.Close()
	}
	if w.ctx.Err() != nil || err != nil && !errors.Is(err, pidfd.ErrGone) {
		return
	}
	w.logLost.Store(true)
	// If this fails, Delete finds what is left.
	_ = c.killAll(w.ctx, w)
}

// stopLog kills the stdio holder. conmon then writes what is left in its pipes and exits.
func (c *container) stopLog(ctx context.Context) error {
	if err := pidfd.End(ctx, c.Holder); err != nil {
		return err
	}
	f, err := pidfd.Open(c.Monitor)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	limited, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if pidfd.Wait(limited, f) == nil {
		return nil
	}
	return pidfd.End(ctx, c.Monitor)
}

// killLogProcesses kills conmon and the stdio holder, also if huskd was killed before they were
// recorded, and returns when both have exited.
func (c *container) killLogProcesses(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if p, ok := conmon.Find(c.dir); ok {
			if err := pidfd.End(ctx, p); err != nil {
				return err
			}
		}
		for _, p := range withArgument(c.path(pidFile)) {
			if err := pidfd.End(ctx, p); err != nil {
				return err
			}
		}
		held, err := conmon.Lock(c.path(lockFile))
		if err == nil {
			return held.Close()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}

// reopenLimit bounds the time until conmon has reopened its log.
const reopenLimit = 10 * time.Second

// ReopenLog redirects the container's output to a new file at the log's path and returns when the
// file exists. The caller moves the old file away before: otherwise it is replaced.
func (d *Driver) ReopenLog(ctx context.Context, id string) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	switch {
	case c.Log == "":
		err = errdefs.ErrFailedPrecondition.WithMessage("it has no log")
	case w.Exited():
		err = errEnded
	default:
		err = c.reopen(ctx, w)
	}
	return c.wrap("reopen the log of", err)
}

func (c *container) reopen(ctx context.Context, w *watch) error {
	ctx, cancel := context.WithTimeoutCause(ctx, reopenLimit, fmt.Errorf("conmon did not reopen the log in %v", reopenLimit))
	defer cancel()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() {
		if w.Wait(ctx) == nil {
			end(errEnded)
		}
	}()
	err := conmon.ReopenLog(ctx, c.Bundle, c.Log)
	if errors.Is(err, conmon.ErrGone) {
		return errEnded
	}
	return err
}
