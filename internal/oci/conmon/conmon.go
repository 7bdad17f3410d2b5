// Package conmon starts and controls conmon by its command line, its report pipe, its control FIFOs
// and its attach socket. These are documented only by conmon's source; the package follows version
// 2.1.6.
package conmon

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/poll"
)

// Path is the PATH of conmon and the runtimes, regardless of huskd's environment.
const Path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// stateFlag is conmon's flag for the directory of its files "exit" and "oom". Find looks for it.
const stateFlag = "--persist-dir"

// None means no file descriptor.
const None = -1

// Launch describes how to start conmon.
type Launch struct {
	Path string
	// Dir is its working directory. It creates the console socket of a terminal there, by its name
	// alone, because a whole path could overflow a socket address.
	Dir string
	// State is the directory for its files about the container; empty for none.
	State string
	Args  []string
	// Stdio are the file descriptors for its stdin, stdout and stderr. None means /dev/null, or for
	// stderr a file that Stderr reads.
	Stdio [3]int
	// Held, which may be nil, is a locked file that conmon and the runtime keep open, until the
	// container's program is executed. So the lock lasts as long as any of them exists. It does so
	// from the moment of the fork, when neither a name nor a record identifies the process.
	Held *os.File
	// Cgroup, which may be nil, is the directory of the cgroup to start conmon in, on cgroup v2.
	Cgroup *os.File
}

// Lock locks a file for Launch.Held. It returns unix.EWOULDBLOCK while a process holds the lock.
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

// Conmon is a running conmon, a child of this process.
type Conmon struct {
	oci.Process
	PIDFD   *os.File
	reports *os.File
	lines   *bufio.Reader
	stderr  int // a file in memory, or None
}

// Start starts conmon. With --sync it doesn't fork, so it stays our child, which provides its
// pidfd. When huskd exits, conmon is reparented like any orphan.
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
	if c.reports, err = poll.New(pipe[0], "conmon reports"); err != nil {
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
	sys := &syscall.SysProcAttr{Setsid: true, PidFD: &fd}
	if l.Cgroup != nil {
		sys.UseCgroupFD, sys.CgroupFD = true, int(l.Cgroup.Fd())
	}
	pid, err := syscall.ForkExec(l.Path, append(args, l.Args...), &syscall.ProcAttr{
		Dir: l.Dir,
		// TMPDIR is the directory of the console socket, relative to Dir. Without a locale conmon
		// refuses arguments that aren't ASCII.
		Env:   []string{"PATH=" + Path, "TMPDIR=.", "LC_ALL=C.UTF-8", fmt.Sprintf("_OCI_SYNCPIPE=%d", report)},
		Files: files,
		Sys:   sys,
	})
	if err != nil {
		return err
	}
	if c.PIDFD, err = poll.New(fd, "pidfd"); err != nil {
		return err
	}
	// At worst a zombie: only this process can reap it.
	c.Process, err = pidfd.Identify(pid)
	return err
}

// Close releases our resources of conmon, which goes on running.
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

// Report is a line that conmon reports: a PID, an exit code, or -1 with the runtime's error.
type Report struct {
	Value   int
	Message string
}

// Next returns conmon's next report, or io.EOF after the last one.
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
	// conmon doesn't escape all control characters, which are invalid in JSON.
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
	return Report{}, fmt.Errorf("conmon reports %q: unknown format", line)
}

// Stderr returns what conmon wrote to its stderr before it closed it.
func (c *Conmon) Stderr() string {
	if c.stderr == None {
		return ""
	}
	buf := make([]byte, 4096)
	n, _ := unix.Pread(c.stderr, buf, 0)
	return string(buf[:max(n, 0)])
}

// Find searches all processes for the conmon with the given state directory, in case huskd was
// killed after it started conmon and before it recorded it.
func Find(state string) (oci.Process, bool) {
	found := pidfd.Find(func(args []string) bool {
		i := slices.Index(args, stateFlag)
		return i >= 0 && i+1 < len(args) && args[i+1] == state
	})
	if len(found) == 0 {
		return oci.Process{}, false
	}
	return found[0], true
}
