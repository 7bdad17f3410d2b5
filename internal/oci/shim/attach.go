package shim

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/stdio"
)

// Attach connects the streams to a container's init process until it exits, writing to the client
// fails or ctx ends. Any number of clients can attach at once. They get no earlier output. The end
// of s.Stdin closes the process's stdin if the container was created with StdinOnce, and ends the
// session if not.
//
// A Read of s.Stdin may still be blocked when Attach returns, until the client closes its side.
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
		// The shim keeps the pipe open too. In the background, because a shim may copy the rest of
		// the input before it answers.
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

// input calls ended when Read fails, also at the end.
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
