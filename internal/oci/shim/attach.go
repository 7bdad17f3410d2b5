package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/stdio"
)

// Attach connects the streams to a container's first process until it ends,
// the client's output fails or ctx ends; any number of clients at once. What
// was written before is in the log only. The end of s.Stdin closes the
// process's standard input if the container was created with StdinOnce.
//
// A Read of s.Stdin may go on after Attach has returned, until the client's
// side is closed.
func (d *Driver) Attach(ctx context.Context, id string, s oci.Streams) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	t, ok := w.task()
	if !ok {
		return c.wrap("attach to", errEnded)
	}
	client, err := conmon.Attach(ctx, c.Bundle)
	if errors.Is(err, conmon.ErrGone) {
		err = errEnded
	}
	if err != nil {
		return c.wrap("attach to", err)
	}
	session, end := context.WithCancel(ctx)
	defer end()
	if c.Terminal && s.Resize != nil {
		go stdio.ForwardSizes(session, s.Resize, c.resizer(session, t, ""))
	}
	ended := func() {}
	if c.StdinOnce && s.Stdin != nil {
		// The shim holds the pipe open too. One that first passes on what is in it
		// takes its time.
		ended = sync.OnceFunc(func() {
			go func() {
				limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
				defer cancel()
				_ = t.closeInput(limited, id, "")
			}()
		})
		s.Stdin = input{s.Stdin, ended}
	}
	err = client.Serve(s, conmon.Input{Open: c.Stdin, Once: c.StdinOnce})
	ended()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return c.wrap("attach to", err)
}

// reopenLimit bounds the time until conmon has a new log file.
const reopenLimit = 10 * time.Second

// ReopenLog has the container's output go to a new file at the log's path and
// returns when that is there. The caller has moved the old one away before; if
// not, it is replaced.
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
	ctx, cancel := context.WithTimeoutCause(ctx, reopenLimit, fmt.Errorf("conmon did nothing for %v", reopenLimit))
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

// resourcesType is what a shim expects to find in an update's message.
const resourcesType = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"

// Update changes the limits of a created or running container. What limits
// doesn't name stays as it is.
func (d *Driver) Update(ctx context.Context, id string, limits *specs.LinuxResources) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	t, ok := w.task()
	if !ok {
		return c.wrap("update", errEnded)
	}
	content, err := json.Marshal(limits)
	if err == nil {
		err = t.update(ctx, id, &anypb.Any{TypeUrl: resourcesType, Value: content})
	}
	return c.wrap("update", asStartError(ctx, err))
}

// input tells when it has ended.
type input struct {
	io.Reader
	ended func()
}

func (in input) Read(p []byte) (int, error) {
	n, err := in.Reader.Read(p)
	if err != nil {
		in.ended()
	}
	return n, err
}
