package monitor

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/stdio"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// Attach connects the streams to a container's init process until it exits, writing to the client
// fails or ctx ends. Any number of clients can attach at once. They get no earlier output. The end
// of s.Stdin closes the process's stdin if the container was created with StdinOnce, and ends the
// session if not.
//
// conmon waits for each client to read its output, so a slow client slows the container down.
//
// A Read of s.Stdin may still be blocked when Attach returns, until the client closes its side.
func (d *Driver) Attach(ctx context.Context, id string, s oci.Streams) error {
	c, err := d.find(id)
	if err != nil {
		return err
	}
	client, err := conmon.Attach(ctx, c.Bundle)
	if errors.Is(err, conmon.ErrGone) {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("attach to container %s: it has ended", pod.Short(id)))
	}
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", pod.Short(id), err)
	}
	session, end := context.WithCancel(ctx)
	defer end()
	if c.Terminal && s.Resize != nil {
		// An error means that the container has exited, which ends the session.
		go stdio.ForwardSizes(session, s.Resize, func(size oci.Size) { _ = conmon.Resize(c.Bundle, size) })
	}
	err = client.Serve(s, conmon.Input{Open: c.Stdin, Once: c.StdinOnce})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("attach to container %s: %w", pod.Short(id), err)
	}
	return nil
}

// reopenLimit bounds the time until conmon has reopened its log.
const reopenLimit = 10 * time.Second

// ReopenLog redirects the container's output to a new file at the log's path and returns when the
// file exists. The caller moves the old file away before: otherwise it is replaced.
func (d *Driver) ReopenLog(ctx context.Context, id string) error {
	c, err := d.find(id)
	if err != nil {
		return err
	}
	if c.Log == "" {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s has no log", pod.Short(id)))
	}
	limited, cancel := context.WithTimeoutCause(ctx, reopenLimit, fmt.Errorf("conmon did not reopen the log in %v", reopenLimit))
	defer cancel()
	alive, done, err := c.whileRunning(limited)
	if err == nil {
		err = conmon.ReopenLog(alive, c.Bundle, c.Log)
		done()
	}
	if errors.Is(err, pidfd.ErrGone) || errors.Is(err, conmon.ErrGone) {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("reopen the log of container %s: it has ended", pod.Short(id)))
	}
	if err != nil {
		return fmt.Errorf("reopen the log of container %s: %w", pod.Short(id), err)
	}
	return nil
}
