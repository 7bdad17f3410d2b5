package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/huskd/husk/internal/oci"
)

// runtime implements the library's interfaces of a runtime.
type runtime struct{ Config }

// ExecInContainer runs a program. Like a shell, it reports a program that can't be started by an
// exit code.
func (r runtime) ExecInContainer(ctx context.Context, _, _, id string, args []string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, timeout time.Duration) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := streamsOf(in, out, errs, tty)
	streams.Resize = sizes(ctx, resize)
	return r.exec(ctx, oci.Exec{ID: id, Args: args, Streams: streams, Timeout: timeout})
}

func (r runtime) exec(ctx context.Context, e oci.Exec) error {
	code, err := r.Containers.Exec(ctx, e)
	if refusal := (*oci.StartError)(nil); errors.As(err, &refusal) && (refusal.Code == 126 || refusal.Code == 127) {
		to := e.Stderr
		if to == nil {
			to = e.Stdout
		}
		if to != nil {
			_, _ = fmt.Fprintln(to, refusal.Message)
		}
		code, err = refusal.Code, nil
	}
	if err == nil && code != 0 {
		err = exitError{code}
	}
	return err
}

// AttachContainer connects a client to the streams of a container's first process.
func (r runtime) AttachContainer(ctx context.Context, _, _, id string, in io.Reader, out, errs io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	streams := streamsOf(in, out, errs, tty)
	streams.Resize = sizes(ctx, resize)
	return r.Containers.Attach(ctx, id, streams)
}

// exitError is an exit code other than 0. It implements the library's interface of one.
type exitError struct{ code int }

func (e exitError) Error() string   { return fmt.Sprintf("exit code %d", e.code) }
func (e exitError) String() string  { return e.Error() }
func (e exitError) Exited() bool    { return true }
func (e exitError) ExitStatus() int { return e.code }

// streamsOf converts the library's streams, of which those that the client doesn't use are nil.
func streamsOf(in io.Reader, out, errs io.Writer, tty bool) oci.Streams {
	s := oci.Streams{TTY: tty, Stdin: in, Stdout: out}
	if !tty {
		s.Stderr = errs
	}
	return s
}

// sizes converts the sizes of a terminal until ctx ends.
func sizes(ctx context.Context, from <-chan remotecommand.TerminalSize) <-chan oci.Size {
	if from == nil {
		return nil
	}
	to := make(chan oci.Size)
	go func() {
		for {
			select {
			case size, ok := <-from:
				if !ok {
					return
				}
				select {
				case to <- oci.Size{Width: size.Width, Height: size.Height}:
				case <-ctx.Done():
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return to
}
