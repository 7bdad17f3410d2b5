// Package process runs CNI plugins as processes: with a deadline after which
// the whole process group is gone, a bound on what it may answer, and its
// complaint as one line.
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
	// maxAnswer bounds a plugin's stdout in bytes. A result has some hundred.
	maxAnswer = 1 << 20
	// maxComplaint is how much of stderr is kept: its end.
	maxComplaint = 4 << 10
	// maxLine bounds what of a complaint is shown, in bytes.
	maxLine = 512
	// busyTime is how long a program that is being written is waited for.
	busyTime = 5 * time.Second
	// drainTime is how long a process outside of the group, that holds the
	// plugin's stdout or stderr open, is listened to after the plugin's end.
	drainTime = 100 * time.Millisecond
	// vanishTime is how long killed processes are waited for. The kernel takes
	// less than a millisecond, unless the host's init leaves them as zombies.
	vanishTime = time.Second
)

// Runner runs plugins.
type Runner struct {
	// Netns is the path of the namespace in which they run. Empty is the one
	// that this process is in.
	Netns string
	Log   *slog.Logger
}

// errTooMuch says that a plugin's answer is none.
var errTooMuch = fmt.Errorf("it wrote more than %d bytes and was killed", maxAnswer)

// Run runs the program at path, with stdin as its input, and returns what it
// wrote to stdout. When it has ended, or ctx has, what is left of its process
// group is killed. The error of a plugin that says what is wrong as CNI has it
// is a *types.Error.
func (r Runner) Run(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	for began := time.Now(); ; {
		out, err := r.once(ctx, path, stdin, env)
		// The program is open for writing: it is being installed.
		if !errors.Is(err, unix.ETXTBSY) || time.Since(began) > busyTime {
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
	stdout, err := newStream(maxAnswer, func() { cancel(errTooMuch) })
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
		WaitDelay:   drainTime, // for a stdin that nobody reads
	}
	if err := r.start(cmd); err != nil {
		return nil, err
	}
	stdout.begin()
	stderr.begin()
	ended := wait(ctx, fd)
	group := -cmd.Process.Pid
	if ended != nil {
		_ = unix.Kill(group, unix.SIGKILL)
	}
	status := cmd.Wait()
	if errors.Is(status, exec.ErrWaitDelay) {
		status = nil
	}
	// The kernel gives numbers out in turn: this one isn't another's yet.
	if unix.Kill(group, unix.SIGKILL) == nil {
		if ended == nil {
			r.Log.Warn("cni: a plugin left processes behind; they are killed", "plugin", path)
		}
		vanish(group)
	}
	answer, complaint := stdout.end(), stderr.end()
	if ended == nil {
		ended = context.Cause(ctx) // it ended by itself, after having written too much
	}
	if ended != nil {
		return nil, explain(ended)
	}
	if status != nil {
		return nil, failure(status, answer, complaint)
	}
	if line := Line(complaint); line != "" {
		r.Log.Debug("cni: a plugin says", "plugin", path, "line", line)
	}
	return answer, nil
}

// vanish waits for a killed process group to be gone. Until then a process of it
// may be in the middle of a system call, and complete that: an ADD could give an
// address after the DEL that follows it.
func vanish(group int) {
	for end := time.Now().Add(vanishTime); unix.Kill(group, 0) == nil && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
}

func (r Runner) start(cmd *exec.Cmd) error {
	if r.Netns == "" {
		return cmd.Start()
	}
	return netns.Do(r.Netns, cmd.Start)
}

// wait waits for the end of the process of a pidfd, which it closes, and
// doesn't reap it.
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

// failure says in one line why a plugin failed.
func failure(status error, answer, complaint []byte) error {
	var told types.Error
	if json.Unmarshal(answer, &told) == nil && (told.Msg != "" || told.Code != 0) {
		return &types.Error{Code: told.Code, Msg: Line([]byte(told.Msg)), Details: Line([]byte(told.Details))}
	}
	for _, text := range [][]byte{complaint, answer} {
		if line := Line(text); line != "" {
			return fmt.Errorf("%w: %s", status, line)
		}
	}
	return fmt.Errorf("%w, and says nothing", status)
}

// Line makes one printable line of a text. Of a long one it is the end, where
// programs say what went wrong.
func Line(text []byte) string {
	line := strings.Join(strings.FieldsFunc(strings.ToValidUTF8(string(text), "?"), func(r rune) bool {
		return unicode.IsSpace(r) || !unicode.IsPrint(r)
	}), " ")
	if cut := len(line) - maxLine; cut > 0 {
		line = "…" + strings.ToValidUTF8(line[cut:], "")
	}
	return line
}

// stream reads what a process writes. Bounded, it tells when that is too much;
// unbounded, it keeps the end.
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

// begin begins to read, once the process has its copy of the other end.
func (s *stream) begin() {
	_ = s.write.Close()
	s.done = make(chan struct{})
	go func() {
		defer close(s.done)
		buf := make([]byte, 16<<10)
		for {
			n, err := s.read.Read(buf)
			s.kept = append(s.kept, buf[:n]...)
			switch {
			case s.bound == 0 && len(s.kept) > maxComplaint:
				s.kept = append(s.kept[:0], s.kept[len(s.kept)-maxComplaint:]...)
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

// end returns what was written.
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
