package monitor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/exectag"
	"github.com/huskd/husk/internal/oci/stdio"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// killLimit bounds the killing of an exec and all that it forked.
const killLimit = 10 * time.Second

// reapLimit bounds the wait for conmon to reap a killed program.
const reapLimit = 5 * time.Second

// Exec runs another program in a running container and returns its exit code. It runs with the
// user, environment, capabilities and directory of the container's process. If the program can't be
// started, the error is an *oci.StartError.
//
// The program uses our pipes, or a terminal of the container, directly. conmon is its parent and
// reports its exit code. So Exec returns when the program exits, and not only when the last process
// that inherited its output does. It delivers what was written until then.
//
// When the timeout passes (context.DeadlineExceeded) or ctx ends, everything that the program
// forked is killed: see package exectag. A Read of req.Stdin may still be blocked when Exec
// returns, until the client closes its side.
func (d *Driver) Exec(ctx context.Context, req oci.Exec) (int, error) {
	fail := func(err error) (int, error) {
		return -1, fmt.Errorf("exec in container %s: %w", pod.Short(req.ID), err)
	}
	c, err := d.find(req.ID)
	if err != nil {
		return -1, err
	}
	if len(req.Args) == 0 {
		return fail(errdefs.ErrInvalidArgument.WithMessage("no command given"))
	}
	w, err := c.findWatch()
	if err != nil || w.Exited() {
		return fail(errdefs.ErrFailedPrecondition.WithMessage("it has ended"))
	}
	if req.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, req.Timeout, fmt.Errorf("timed out after %v: %w", req.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	dir, err := os.MkdirTemp(c.dir, "exec-")
	if err != nil {
		return fail(err)
	}
	defer os.RemoveAll(dir)
	e := &execution{c: c, files: dir, tag: exectag.New(), streams: req.Streams}
	code, err := e.run(ctx, req.Args)
	if err != nil {
		return fail(err)
	}
	return code, nil
}

// execution is one Exec in progress.
type execution struct {
	c       *container
	files   string // directory of its files
	tag     exectag.Tag
	streams oci.Streams
	started bool // the program runs or has run
}

const processFile = "process.json"

func (e *execution) run(ctx context.Context, args []string) (int, error) {
	if err := e.writeProcess(args); err != nil {
		return 0, err
	}
	var console *consoleSocket
	if e.streams.TTY {
		var err error
		if console, err = listenConsole(e.files); err != nil {
			return 0, err
		}
		defer console.close()
	}
	// There is always a pipe for stderr: the runtime's errors go there too.
	s := e.streams
	pipes, err := stdio.New([3]bool{s.Stdin != nil && !s.TTY, s.Stdout != nil && !s.TTY, true})
	if err != nil {
		return 0, err
	}
	defer pipes.Close()
	if err := pipes.Chown(e.c.StdioOwner); err != nil {
		return 0, err
	}
	m, err := conmon.Start(conmon.Launch{Path: e.c.Runtime.Conmon, Dir: e.files, Args: e.conmonArgs(), Stdio: pipes.ProgramEnds(), Cgroup: e.c.driver.cfg.Monitors})
	pipes.CloseProgramEnds(0, 1, 2)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	code, err := e.follow(ctx, m, pipes, console)
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	if err != nil {
		return 0, withCleanupError(err, e.kill(cleanup, m))
	}
	return code, pidfd.Wait(cleanup, m.PIDFD) // conmon exits after its last report
}

// follow waits until the program runs, connects the streams, and waits until it exits.
func (e *execution) follow(ctx context.Context, m *conmon.Conmon, pipes *stdio.Pipes, console *consoleSocket) (int, error) {
	_, err := m.Next(ctx)
	if errors.Is(err, io.EOF) {
		// The runtime failed, and wrote its error to the program's stderr.
		return 0, oci.NewStartError(pipes.ReadStderr())
	}
	if err != nil {
		return 0, err
	}
	e.started = true
	session, end := context.WithCancel(ctx)
	defer end()
	if console != nil {
		terminal, err := console.terminal()
		if err != nil {
			return 0, err
		}
		pipes.UseTerminal(terminal)
		if e.streams.Resize != nil {
			go stdio.ForwardSizes(session, e.streams.Resize, func(size oci.Size) { resize(terminal, size) })
		}
	}
	pipes.Connect(e.streams, func() {})
	ended, err := m.Next(ctx)
	if errors.Is(err, io.EOF) {
		err = errors.New("conmon was killed")
	}
	pipes.Finish(ctx)
	return ended.Value, err
}

// kill kills the program, everything that it forked, and conmon. If the runtime is about to start
// the program, it dies with conmon, or the second round kills the program.
func (e *execution) kill(ctx context.Context, m *conmon.Conmon) error {
	tree, err := e.c.tree()
	if err != nil {
		return err
	}
	if err := e.tag.Kill(ctx, tree, e.c.Cgroup); err != nil {
		return err
	}
	if e.started {
		// Without its parent the program would be a zombie, which the container's processes see,
		// until the node's init reaps it.
		reaped, cancel := context.WithTimeout(ctx, reapLimit)
		defer cancel()
		_ = pidfd.Wait(reaped, m.PIDFD)
	}
	if err := pidfd.End(ctx, m.Process); err != nil {
		return err
	}
	return e.tag.Kill(ctx, tree, e.c.Cgroup)
}

func (e *execution) conmonArgs() []string {
	args := []string{
		"--cid", e.c.ID, "--cuuid", e.c.ID,
		"--exec", "--exec-process-spec", processFile,
		"--api-version", // reports when the program runs, not only when it exits
		"--container-pidfile", "pid",
		// The program gets conmon's stdio.
		"--log-path", "passthrough",
	}
	args = append(args, e.c.runtimeArgs()...)
	if e.streams.TTY {
		args = append(args, "--runtime-opt", "--console-socket="+consoleFile)
	}
	return args
}

// writeProcess writes the process to run: the container's, with the program and the streams of the
// exec.
func (e *execution) writeProcess(args []string) error {
	raw, err := os.ReadFile(filepath.Join(e.c.Bundle, bundle.SpecFile))
	if err != nil {
		return err
	}
	process, err := bundle.ExecProcess(raw, args, e.streams.TTY, e.tag)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.files, processFile), process, 0o600)
}
