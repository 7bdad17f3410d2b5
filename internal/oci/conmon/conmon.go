// Package conmon starts conmon and speaks with it: through its command line,
// the pipe that it reports by, the FIFOs that it is controlled with and the
// socket that it serves attach on. What conmon does is told by its source, of
// version 2.1.6; it has no other documentation of these.
package conmon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/poll"
)

// Path is what conmon, and the runtime below it, get for a PATH. Our own
// environment decides nothing.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// stateFlag names the directory in which conmon leaves the files "exit" and
// "oom", and by which Find knows it.
const stateFlag = "--persist-dir"

// None stands for no file descriptor.
const None = -1

// Launch says how conmon is to be started.
type Launch struct {
	Path string
	// Dir is its working directory. It puts the console socket of a terminal
	// there: a path of its own could overflow a socket address.
	Dir string
	// State is where it leaves its files about the container; none if empty.
	State string
	Args  []string
	// Stdio are the file descriptors that it gets as its own. None is
	// /dev/null, and for standard error what Complaint reads.
	Stdio [3]int
	// Held is a file that it keeps open, as does the runtime that it runs, up
	// to where the container's program is executed; may be nil. Our flock of it
	// thus lasts until none of them is left, from the moment of the fork on,
	// when neither a name nor a record tells what the process is.
	Held *os.File
}

// Lock takes the lock of a file that is to be Launch.Held, or returns
// unix.EWOULDBLOCK as long as one of its holders is left.
func Lock(file string) (*os.File, error) {
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, &os.PathError{Op: "lock", Path: file, Err: err}
	}
	return f, nil
}

// Conmon is a running conmon that is a child of ours.
type Conmon struct {
	oci.Process
	PIDFD   *os.File
	reports *os.File
	lines   *bufio.Reader
	stderr  int // a memory file, or None
}

// Start runs conmon. It stays our child (--sync), which saves a fork and gives
// us its pidfd; when we end, it is adopted like any orphan.
func Start(l Launch) (*Conmon, error) {
	c := &Conmon{stderr: None}
	err := c.start(l)
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("start %s: %w", l.Path, err)
	}
	return c, nil
}

func (c *Conmon) start(l Launch) error {
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	defer unix.Close(pipe[1])
	var err error
	if c.reports, err = poll.New(pipe[0], "conmon's reports"); err != nil {
		return err
	}
	c.lines = bufio.NewReader(c.reports)
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	if l.Stdio[2] == None {
		if c.stderr, err = unix.MemfdCreate("conmon-stderr", unix.MFD_CLOEXEC); err != nil {
			return os.NewSyscallError("memfd_create", err)
		}
		l.Stdio[2] = c.stderr
	}
	files := make([]uintptr, 0, len(l.Stdio)+2)
	for _, fd := range l.Stdio {
		if fd == None {
			fd = int(null.Fd())
		}
		files = append(files, uintptr(fd))
	}
	report := len(files)
	files = append(files, uintptr(pipe[1]))
	if l.Held != nil {
		files = append(files, l.Held.Fd())
	}
	args := []string{l.Path, "--sync"}
	if l.State != "" {
		args = append(args, stateFlag, l.State)
	}
	fd := None
	pid, err := syscall.ForkExec(l.Path, append(args, l.Args...), &syscall.ProcAttr{
		Dir: l.Dir,
		// TMPDIR is where conmon puts the console socket, relative to Dir. Without
		// a locale it refuses arguments that aren't ASCII.
		Env:   []string{"PATH=" + Path, "TMPDIR=.", "LC_ALL=C.UTF-8", fmt.Sprintf("_OCI_SYNCPIPE=%d", report)},
		Files: files,
		Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &fd},
	})
	if err != nil {
		return err
	}
	if c.PIDFD, err = poll.New(fd, "pidfd"); err != nil {
		return err
	}
	// A zombie at worst, for nobody but us can reap it.
	c.Process, err = pidfd.Identify(pid)
	return err
}

// Close lets go of what is ours of conmon, which lives on.
func (c *Conmon) Close() {
	for _, f := range []*os.File{c.reports, c.PIDFD} {
		if f != nil {
			_ = f.Close()
		}
	}
	if c.stderr != None {
		_ = unix.Close(c.stderr)
	}
}

// Report is a line that conmon writes: a process ID, or an exit code, or -1
// with the runtime's words.
type Report struct {
	Value   int
	Message string
}

// Next returns conmon's next report. io.EOF says that it had no more to say.
func (c *Conmon) Next(ctx context.Context) (Report, error) {
	stop := context.AfterFunc(ctx, func() { poll.Interrupt(c.reports) })
	defer stop()
	line, err := c.lines.ReadBytes('\n')
	if ctx.Err() != nil {
		return Report{}, context.Cause(ctx)
	}
	if err != nil {
		return Report{}, err
	}
	return parseReport(line)
}

// parseReport reads {"pid": 7}, {"data": 7} or {"exit_code": -1, "message": "…"}.
func parseReport(line []byte) (Report, error) {
	var r struct {
		PID     *int   `json:"pid"`
		Data    *int   `json:"data"`
		Exit    *int   `json:"exit_code"`
		Message string `json:"message"`
	}
	// conmon escapes most control characters, not all: they are of no use here.
	clean := bytes.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, line)
	if err := json.Unmarshal(clean, &r); err != nil {
		return Report{}, fmt.Errorf("conmon reports %q: %w", line, err)
	}
	for _, value := range []*int{r.PID, r.Data, r.Exit} {
		if value != nil {
			return Report{*value, r.Message}, nil
		}
	}
	return Report{}, fmt.Errorf("conmon reports %q, which says nothing", line)
}

// Complaint returns what conmon wrote to its standard error before it let go
// of that.
func (c *Conmon) Stderr() string {
	if c.stderr == None {
		return ""
	}
	buf := make([]byte, 4096)
	n, _ := unix.Pread(c.stderr, buf, 0)
	return string(buf[:max(n, 0)])
}

// Find looks through all processes for the conmon with the given state
// directory, for the case that we were killed between starting and recording
// it.
func Find(state string) (oci.Process, bool) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := pidfd.Identify(pid)
		if err != nil {
			continue
		}
		// Should the number change hands now, the start time no longer fits.
		raw, _ := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		args := strings.Split(string(raw), "\x00")
		if i := slices.Index(args, stateFlag); i >= 0 && i+1 < len(args) && args[i+1] == state {
			return p, true
		}
	}
	return oci.Process{}, false
}
