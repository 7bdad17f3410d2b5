// Package process runs CNI plugins as processes. It kills a plugin's process group when
// the plugin ends or a deadline passes, bounds its output, and turns its error output
// into one line.
package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/poll"
)

const (
	// maxStdout bounds a plugin's stdout in bytes. A result has some hundred.
	maxStdout = 1 << 20
	// maxStderr is how many bytes at the end of stderr are kept.
	maxStderr = 4 << 10
	// maxLine bounds the length of an error message in bytes.
	maxLine = 512
	// busyTimeout is how long to wait for a program that is being written.
	busyTimeout = 5 * time.Second
	// drainTime is how long stdout and stderr are read after the plugin's end, if a
	// process outside of its group holds them open.
	drainTime = 100 * time.Millisecond
	// killTimeout is how long to wait for killed processes. The kernel takes less than a
	// millisecond, unless the host's init doesn't reap them.
	killTimeout = time.Second
)

// Runner runs plugins.
type Runner struct {
	// Netns is the path of the network namespace in which plugins run. If it is empty,
	// that is the one of this process.
	Netns string
	Log   *slog.Logger
}

// errTooMuch means that a plugin's output exceeds maxStdout.
var errTooMuch = fmt.Errorf("it wrote more than %d bytes and was killed", maxStdout)

// Run runs the program at path with the given stdin and returns its stdout. When the
// program or ctx ends, it kills what is left of the process group. If the plugin
// reports an error in CNI's format, the error is a *types.Error.
func (r Runner) Run(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	for start := time.Now(); ; {
		out, err := r.once(ctx, path, stdin, env)
		// ETXTBSY: the program is open for writing, as it is being installed.
		if !errors.Is(err, unix.ETXTBSY) || time.Since(start) > busyTimeout {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (r Runner) once(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	if err := ctx.Err(); err != nil {
		return nil, explain(err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stdout, err := newStream(maxStdout, func() { cancel(errTooMuch) })
	if err != nil {
		return nil, err
	}
	defer stdout.close()
	stderr, err := newStream(0, nil)
	if err != nil {
		return nil, err
	}
	defer stderr.close()
	fd := -1
	cmd := &exec.Cmd{
		Path: path, Args: []string{path}, Env: env, Stdin: bytes.NewReader(stdin), Stdout: stdout.write, Stderr: stderr.write,
		SysProcAttr: &syscall.SysProcAttr{Setpgid: true, PidFD: &fd},
		WaitDelay:   drainTime, // if the plugin doesn't read its stdin
	}
	if err := r.start(cmd); err != nil {
		return nil, err
	}
	stdout.start()
	stderr.start()
	ended := wait(ctx, fd)
	group := -cmd.Process.Pid
	if ended != nil {
		_ = unix.Kill(group, unix.SIGKILL)
	}
	status := cmd.Wait()
	if errors.Is(status, exec.ErrWaitDelay) {
		status = nil
	}
	// The kernel allocates PIDs cyclically, so the group's ID isn't reused yet.
	if unix.Kill(group, unix.SIGKILL) == nil {
		if ended == nil {
			r.Log.Warn("cni: a plugin left processes behind; they were killed", "plugin", path)
		}
		awaitGone(group)
	}
	output, message := stdout.end(), stderr.end()
	if ended == nil {
		ended = context.Cause(ctx) // the plugin ended by itself, but wrote too much
	}
	if ended != nil {
		return nil, explain(ended)
	}
	if status != nil {
		return nil, failure(status, output, message)
	}
	if line := Line(message); line != "" {
		r.Log.Debug("cni: a plugin wrote to stderr", "plugin", path, "line", line)
	}
	return output, nil
}

// awaitGone waits until a killed process group is gone. Until then one of its processes
// may complete a system call: an ADD could allocate an address after the DEL that
// follows it.
func awaitGone(group int) {
	for end := time.Now().Add(killTimeout); unix.Kill(group, 0) == nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (r Runner) start(cmd *exec.Cmd) error {
	if r.Netns == "" {
		return cmd.Start()
	}
	return netns.Do(r.Netns, cmd.Start)
}

// wait waits for the process of a pidfd to end, without reaping it. It closes the pidfd.
func wait(ctx context.Context, fd int) error {
	f, err := poll.New(fd, "pidfd")
	if err != nil {
		return err
	}
	defer f.Close()
	return poll.Until(ctx, f, func(fd int) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		return err == nil && n > 0
	})
}

func explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("it took too long and was killed: %w", err)
	}
	return err
}

// failure explains in one line why a plugin failed.
func failure(status error, stdout, stderr []byte) error {
	var cniErr types.Error
	if json.Unmarshal(stdout, &cniErr) == nil && (cniErr.Msg != "" || cniErr.Code != 0) {
		return &types.Error{Code: cniErr.Code, Msg: Line([]byte(cniErr.Msg)), Details: Line([]byte(cniErr.Details))}
	}
	for _, text := range [][]byte{stderr, stdout} {
		if line := Line(text); line != "" {
			return fmt.Errorf("%w: %s", status, line)
		}
	}
	return fmt.Errorf("%w, without an error message", status)
}

// Line turns a text into one printable line. It keeps the end of a long text, where
// programs report what went wrong.
func Line(text []byte) string {
	line := strings.Join(strings.FieldsFunc(strings.ToValidUTF8(string(text), "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if cut := len(line) - maxLine; cut > 0 {
		line = "…" + strings.ToValidUTF8(line[cut:], "")
	}
	return line
}

// stream reads what a process writes. With a bound, it calls over when that is exceeded.
// Without one, it keeps the last maxStderr bytes.
type stream struct {
	read, write *os.File
	bound       int
	over        func()
	kept        []byte
	done        chan struct{}
}

func newStream(bound int, over func()) (*stream, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	return &stream{read: read, write: write, bound: bound, over: over}, nil
}

// start starts reading. The process must have its copy of the other end.
func (s *stream) start() {
	_ = s.write.Close()
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		buf := make([]byte, 16<<10)
		for {
			n, err := s.read.Read(buf)
			s.kept = append(s.kept, buf[:n]...)
			switch {
			case s.bound == 0 && len(s.kept) > maxStderr:
				s.kept = append(s.kept[:0], s.kept[len(s.kept)-maxStderr:]...)
			case s.bound > 0 && len(s.kept) > s.bound:
				s.over()
				_, _ = io.Copy(io.Discard, s.read)
				return
			}
			if err != nil {
				return
			}
		}
	}()
}

// end stops reading and returns what was read.
func (s *stream) end() []byte {
	_ = s.read.SetReadDeadline(time.Now().Add(drainTime))
	<-s.done
	return s.kept
}

func (s *stream) close() {
	_ = s.write.Close()
	_ = s.read.Close()
	if s.done != nil {
		<-s.done
	}
}
