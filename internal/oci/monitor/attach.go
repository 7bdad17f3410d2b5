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

// Attach connects the streams to a container's first process until it ends,
// the client's output fails or ctx ends; any number of clients at once. What
// was written before is in the log only. The end of s.Stdin closes the
// process's standard input if the container was created with StdinOnce.
//
// conmon waits for each client to take its output. A slow one slows the
// container down.
//
// A Read of s.Stdin may go on after Attach has returned, until the client's
// side is closed.
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
		// A container that ends meanwhile ends the session by itself.
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

// reopenLimit bounds the time until conmon has a new log file.
const reopenLimit = 10 * time.Second

// ReopenLog has the container's output go to a new file at the log's path and
// returns when that is there. The caller has moved the old one away before; if
// not, it is replaced.
func (d *Driver) ReopenLog(ctx context.Context, id string) error {
	c, err := d.find(id)
	if err != nil {
		return err
	}
	if c.Log == "" {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s has no log", pod.Short(id)))
	}
	limited, cancel := context.WithTimeoutCause(ctx, reopenLimit, fmt.Errorf("conmon did nothing for %v", reopenLimit))
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
