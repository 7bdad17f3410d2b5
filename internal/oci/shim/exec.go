package shim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/exectag"
	"github.com/huskd/husk/internal/oci/stdio"
	"github.com/huskd/husk/internal/pod"
)

// execLimit bounds the start of an exec, and the killing of one that timed out.
const execLimit = 30 * time.Second

// processType is the type that a shim expects in an exec request: the process in JSON of the
// runtime spec.
const processType = "types.containerd.io/opencontainers/runtime-spec/1/Process"

// Exec runs another program in a running container and returns its exit code. It runs with the
// user, environment, capabilities and directory of the container's process. If the program can't be
// started, the error is an *oci.StartError.
//
// The shim copies between the program and our pipes, which it opens by their names in /proc.
//
// When the timeout passes (context.DeadlineExceeded) or ctx ends, everything that the program
// forked is killed if its processes are the host's: see package exectag. In a runtime's own sandbox
// only the program itself is killed. A Read of req.Stdin may still be blocked when Exec returns,
// until the client closes its side.
func (d *Driver) Exec(ctx context.Context, req oci.Exec) (int, error) {
	c, w, err := d.watched(req.ID)
	if err != nil {
		return -1, err
	}
	fail := func(err error) (int, error) { return -1, c.wrap("exec in", err) }
	if len(req.Args) == 0 {
		return fail(errdefs.ErrInvalidArgument.WithMessage("no command given"))
	}
	t, ok := w.task()
	if !ok {
		return fail(errEnded)
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, req.Timeout, fmt.Errorf("timed out after %v: %w", req.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	e := &execution{c: c, task: t, id: "exec-" + pod.Short(pod.NewID()), tag: exectag.New(), streams: req.Streams}
	code, err := e.run(ctx, req.Args)
	if err != nil {
		return fail(err)
	}
	return code, nil
}

var errEnded = errdefs.ErrFailedPrecondition.WithMessage("it has ended")

// execution is one Exec in progress.
type execution struct {
	c       *container
	task    *task
	id      string
	tag     exectag.Tag
	streams oci.Streams
}

func (e *execution) run(ctx context.Context, args []string) (int, error) {
	spec, err := os.ReadFile(e.c.spec())
	if err != nil {
		return 0, err
	}
	process, err := bundle.ExecProcess(spec, args, e.streams.TTY, e.tag)
	if err != nil {
		return 0, err
	}
	// The program gets pipes for both outputs, even for one that the client doesn't read: a shim
	// takes all or none.
	pipes, err := stdio.New([3]bool{e.streams.Stdin != nil, true, !e.streams.TTY})
	if err != nil {
		return 0, err
	}
	defer pipes.Close()
	if err := e.start(ctx, process, pipes); err != nil {
		return 0, err
	}
	code, err := e.follow(ctx, pipes)
	if _, limited := ctx.Deadline(); limited && errors.Is(err, context.DeadlineExceeded) {
		<-ctx.Done() // the deadline is sent to the shim, which may notice it before ctx does
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), execLimit)
	defer cancel()
	if err != nil {
		err = e.kill(cleanup, err)
	}
	// The shim copies the rest of the output, and waits a while for other processes that hold the
	// pipes.
	flush, cancel := context.WithTimeout(cleanup, flushLimit)
	defer cancel()
	_ = e.task.delete(flush, e.c.ID, e.id)
	pipes.Finish(ctx)
	return code, err
}

// start starts the program. ctx can't cancel that: the shim would start it all the same, and huskd
// wouldn't know.
func (e *execution) start(ctx context.Context, process []byte, pipes *stdio.Pipes) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), execLimit)
	defer cancel()
	var names [3]string
	for n, fd := range pipes.ProgramEnds() {
		if fd != stdio.None {
			names[n] = fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), fd)
		}
	}
	err := e.task.exec(ctx, &taskapi.ExecProcessRequest{
		ID: e.c.ID, ExecID: e.id, Terminal: e.streams.TTY, Stdin: names[0], Stdout: names[1], Stderr: names[2],
		Spec: &anypb.Any{TypeUrl: processType, Value: process},
	})
	if err != nil {
		return e.orEnded(err)
	}
	if err := e.task.start(ctx, e.c.ID, e.id); err != nil {
		_ = e.task.delete(ctx, e.c.ID, e.id)
		return e.orEnded(err)
	}
	// The program's end of stdin stays open: a shim may open the pipe after it has answered, and
	// until then a write would fail with EPIPE.
	pipes.CloseProgramEnds(1, 2)
	return nil
}

// orEnded returns errEnded if the container's exit caused err, and err otherwise.
func (e *execution) orEnded(err error) error {
	if _, w, findErr := e.c.driver.watched(e.c.ID); findErr == nil && w.Exited() || errors.Is(err, errClosed) {
		return errEnded
	}
	return err
}

// follow connects the streams and waits until the program exits.
func (e *execution) follow(ctx context.Context, pipes *stdio.Pipes) (int, error) {
	session, end := context.WithCancel(ctx)
	defer end()
	if e.streams.TTY && e.streams.Resize != nil {
		go stdio.ForwardSizes(session, e.streams.Resize, e.c.resizer(session, e.task, e.id))
	}
	pipes.Connect(e.streams, func() {
		limited, cancel := context.WithTimeout(session, callLimit)
		defer cancel()
		_ = e.task.closeInput(limited, e.c.ID, e.id)
	})
	exit, err := e.task.wait(ctx, e.c.ID, e.id)
	if errors.Is(err, errClosed) {
		err = errors.New("the shim was killed")
	}
	return exit.Code, err
}

// kill kills the program and everything that it forked.
func (e *execution) kill(ctx context.Context, cause error) error {
	err := e.task.kill(ctx, e.c.ID, e.id, syscall.SIGKILL)
	if err != nil && isGone(err) {
		err = nil
	}
	tree, treeErr := e.c.tree()
	if treeErr == nil {
		treeErr = e.tag.Kill(ctx, tree, e.c.Cgroup)
	}
	if err == nil {
		err = treeErr
	}
	if err == nil {
		_, err = e.task.wait(ctx, e.c.ID, e.id)
		if err != nil && isGone(err) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("%w (and then: %w)", cause, err)
	}
	return cause
}

// resizeGrace is how long a new size waits until the shim has set the one before.
const resizeGrace = 100 * time.Millisecond

// resizer returns a function that sets the size of a terminal. It doesn't wait for a shim that
// doesn't answer. If sizes arrive faster than the shim sets them, the last one wins.
func (c *container) resizer(ctx context.Context, t *task, exec string) func(oci.Size) {
	latest, set := make(chan oci.Size, 1), make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case size := <-latest:
				_ = t.resize(ctx, c.ID, exec, size)
				select {
				case set <- struct{}{}:
				default:
				}
			}
		}
	}()
	return func(size oci.Size) {
		drop(latest)
		drop(set)
		latest <- size // has room: only this function sends
		select {
		case <-set:
		case <-time.After(resizeGrace):
		}
	}
}

// drop discards the element of a channel, if there is one.
func drop[T any](from chan T) {
	select {
	case <-from:
	default:
	}
}
