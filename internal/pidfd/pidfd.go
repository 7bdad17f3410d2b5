// Package pidfd identifies, signals and waits for processes that this process didn't start, or that
// it started before a restart. A process is identified by its PID and start time and only ever
// signalled through a pidfd, so another process that got the same PID later is never hit.
package pidfd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/poll"
)

// ErrGone says that a process has exited. Its PID may be another's.
var ErrGone = errors.New("the process is gone")

// Identify returns the identity of the process that has the PID now, or ErrGone.
func Identify(pid int) (oci.Process, error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return oci.Process{}, ErrGone
	}
	start, err := startTime(raw)
	if err != nil {
		return oci.Process{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return oci.Process{PID: pid, Start: start}, nil
}

// startTime returns field 22 of a process's stat. The second field is the program's name in
// parentheses, which can contain anything.
func startTime(stat []byte) (uint64, error) {
	const field = 22 - 3 // the fields after the name begin with the third
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) <= field {
		return 0, fmt.Errorf("unknown format %q", stat)
	}
	return strconv.ParseUint(string(fields[field]), 10, 64)
}

// Open returns a pidfd of p, or ErrGone.
func Open(p oci.Process) (*os.File, error) {
	if p.PID <= 0 {
		return nil, ErrGone
	}
	fd, err := unix.PidfdOpen(p.PID, 0)
	switch {
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT):
		// A PID may outlive its process as the ID of a session or process group that others are in:
		// EINVAL on Linux 6.1, ESRCH on 6.18. Or it is a thread's by now: EINVAL or ENOENT.
		return nil, ErrGone
	case err != nil:
		return nil, fmt.Errorf("open process %d: %w", p.PID, err)
	}
	f, err := poll.New(fd, "pidfd")
	if err != nil {
		return nil, err
	}
	// If p has the PID now, it had it when the pidfd was opened.
	now, err := Identify(p.PID)
	if err == nil && now != p {
		err = ErrGone
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// Wait returns once the process of a pidfd has exited, or with ctx's cause. It reaps a child of
// this process.
func Wait(ctx context.Context, pidfd *os.File) error {
	return poll.Until(ctx, pidfd, func(fd int) bool {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, 0); err != nil || n == 0 {
			return false
		}
		_ = unix.Waitid(unix.P_PIDFD, fd, nil, unix.WEXITED|unix.WNOHANG, nil)
		return true
	})
}

// Send sends a signal to the process of a pidfd, or returns ErrGone if it was reaped.
func Send(pidfd *os.File, sig unix.Signal) error {
	raw, err := pidfd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), sig, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return ErrGone
	}
	return sent
}

// Signal sends a signal to p, or returns ErrGone.
func Signal(p oci.Process, sig unix.Signal) error {
	f, err := Open(p)
	if err != nil {
		return err
	}
	defer f.Close()
	return Send(f, sig)
}

// Children returns the PIDs of the children of a process with one thread.
func Children(pid int) []int {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	var out []int
	for field := range strings.FieldsSeq(string(raw)) {
		if child, err := strconv.Atoi(field); err == nil {
			out = append(out, child)
		}
	}
	return out
}

// End kills p and its children, and returns when all of them have exited.
func End(ctx context.Context, p oci.Process) error {
	parent, err := Open(p)
	if errors.Is(err, ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	files := []*os.File{parent}
	defer func() {
		for _, f := range files {
			_ = f.Close()
		}
	}()
	for _, pid := range Children(p.PID) {
		if child, err := Identify(pid); err == nil {
			if f, err := Open(child); err == nil {
				files = append(files, f)
			}
		}
	}
	for _, f := range files {
		if err := Send(f, unix.SIGKILL); err != nil && !errors.Is(err, ErrGone) {
			return err
		}
	}
	for _, f := range files {
		if err := Wait(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// Find returns the processes whose command line matches.
func Find(match func(args []string) bool) []oci.Process { return find("cmdline", match) }

// FindByEnv returns the processes that were started with a variable, such as NAME=value.
func FindByEnv(variable string) []oci.Process {
	return find("environ", func(env []string) bool { return slices.Contains(env, variable) })
}

// find returns the processes for which match accepts the strings of a file in /proc.
func find(file string, match func(list []string) bool) []oci.Process {
	entries, _ := os.ReadDir("/proc")
	var out []oci.Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		p, err := Identify(pid)
		if err != nil {
			continue
		}
		// If the PID was reused since Identify, the start time of p no longer matches.
		raw, _ := os.ReadFile(filepath.Join("/proc", e.Name(), file))
		if match(strings.Split(string(raw), "\x00")) {
			out = append(out, p)
		}
	}
	return out
}
