package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// killLimit bounds the killing of an exec'd process tree.
const killLimit = 10 * time.Second

// Exec runs a further program in a running container, as the user and with the
// environment, capabilities and directory of its own, and returns its exit
// code. A program that can't be started is an *oci.StartError.
//
// The program gets our pipes, or a terminal of the container's, directly; conmon
// stands by as the parent that learns its exit code, so that Exec returns when
// the program ends and not when the last process that inherited its output
// does. What it wrote until then is delivered.
//
// When the timeout passes (context.DeadlineExceeded) or ctx ends, everything
// that the program forked is killed, see mark. A Read of req.Stdin may go on
// after Exec has returned, until the client's side is closed.
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
	w, err := c.watching()
	if err != nil || w.over() {
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
	e := &execution{container: c, files: dir, mark: newMark(), streams: req.Streams}
	code, err := e.run(ctx, req.Args)
	if err != nil {
		return fail(err)
	}
	return code, nil
}

// execution is one Exec in progress.
type execution struct {
	*container
	files   string // the directory for its own
	mark    mark
	streams oci.Streams
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
	stdio, err := newStdio(e.streams)
	if err != nil {
		return 0, err
	}
	defer stdio.close()
	if err := stdio.own(e.StdioOwner); err != nil {
		stdio.closeTheirs()
		return 0, err
	}
	m, err := conmon.Start(conmon.Launch{Path: e.Runtime.Conmon, Dir: e.files, Args: e.conmonArgs(), Stdio: stdio.theirs})
	stdio.closeTheirs()
	if err != nil {
		return 0, err
	}
	defer m.Close()
	code, err := e.follow(ctx, m, stdio, console)
	cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), killLimit)
	defer cancel()
	if err != nil {
		return 0, andThen(err, e.kill(cleanup, m))
	}
	return code, pidfd.Wait(cleanup, m.PIDFD) // it ends with its last report
}

// follow waits until the program runs, connects it, and waits until it ends.
func (e *execution) follow(ctx context.Context, m *conmon.Conmon, stdio *stdio, console *consoleSocket) (int, error) {
	_, err := m.Next(ctx)
	if errors.Is(err, io.EOF) {
		// The runtime wrote to what would have been the program's stderr.
		return 0, refusal(stdio.words())
	}
	if err != nil {
		return 0, err
	}
	if console != nil {
		if err := stdio.useTerminal(console); err != nil {
			return 0, err
		}
	}
	session, end := context.WithCancel(ctx)
	defer end()
	stdio.connect(session, e.streams)
	ended, err := m.Next(ctx)
	if errors.Is(err, io.EOF) {
		err = errors.New("its monitor was killed")
	}
	stdio.finish(ctx)
	return ended.Value, err
}

// kill ends the program with all that it forked, and conmon. Should the runtime
// be about to start the program, that dies with conmon, or is found then.
func (e *execution) kill(ctx context.Context, m *conmon.Conmon) error {
	if err := e.killMarked(ctx); err != nil {
		return err
	}
	if err := pidfd.End(ctx, m.Process); err != nil {
		return err
	}
	return e.killMarked(ctx)
}

func (e *execution) conmonArgs() []string {
	args := []string{
		"--cid", e.ID, "--cuuid", e.ID,
		"--exec", "--exec-process-spec", processFile,
		"--api-version", // reports when the program runs, not only when it ends
		"--container-pidfile", "pid",
		// The program's standard streams are those that conmon got.
		"--log-path", "passthrough",
	}
	args = append(args, e.runtimeArgs()...)
	if e.streams.TTY {
		args = append(args, "--runtime-opt", "--console-socket="+consoleFile)
	}
	return args
}

// writeProcess writes the process to run: the container's own but for the
// program.
func (e *execution) writeProcess(args []string) error {
	raw, err := os.ReadFile(filepath.Join(e.Bundle, specFile))
	if err != nil {
		return err
	}
	process, err := execProcess(raw, args, e.streams.TTY, e.mark)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(e.files, processFile), process, 0o600)
}

// execProcess takes the process from a spec and makes it that of an exec. What
// is not concerned is passed on as it is, known to us or not.
func execProcess(spec []byte, args []string, tty bool, m mark) ([]byte, error) {
	var s struct {
		Process map[string]json.RawMessage `json:"process"`
	}
	if err := json.Unmarshal(spec, &s); err != nil {
		return nil, err
	}
	if s.Process == nil {
		return nil, errors.New("its spec has no process")
	}
	var rlimits []rlimit
	var env []string
	for field, value := range map[string]any{"rlimits": &rlimits, "env": &env} {
		if raw, ok := s.Process[field]; ok {
			if err := json.Unmarshal(raw, value); err != nil {
				return nil, fmt.Errorf("its spec's process.%s: %w", field, err)
			}
		}
	}
	hasTerm := func(v string) bool { return strings.HasPrefix(v, "TERM=") }
	if tty && !slices.ContainsFunc(env, hasTerm) {
		env = append(env, "TERM=xterm")
	}
	delete(s.Process, "consoleSize")
	for field, value := range map[string]any{"args": args, "terminal": tty, "rlimits": m.add(rlimits), "env": env} {
		raw, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		s.Process[field] = raw
	}
	return json.Marshal(s.Process)
}
