package daemon

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const scheme = "unix://"

type listener = net.Listener

// lock makes the directories and keeps a second huskd out of them.
func (d *daemon) lock() error {
	for _, dir := range []struct{ path, flag string }{{d.cfg.Root, "--root"}, {d.cfg.State, "--state"}} {
		if err := os.MkdirAll(dir.path, 0o711); err != nil {
			return fmt.Errorf("%s: %w", dir.flag, err)
		}
		f, err := os.OpenFile(filepath.Join(dir.path, "huskd.lock"), os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return fmt.Errorf("%s: %w", dir.flag, err)
		}
		d.locks = append(d.locks, f)
		if owner, ok := acquire(f); !ok {
			return fmt.Errorf("another huskd (pid %s) has %s in use: stop that one, or give this one another %s", owner, dir.path, dir.flag)
		}
	}
	return nil
}

// A lock file has the PID of its owner, with a mark once that ends.
const (
	endMark = " ends"
	// endTime is how long a huskd that ends is waited for.
	endTime = answerTime + 2*closeTime + time.Second
)

// acquire locks f. A huskd that has it and ends, or was killed, is waited for;
// of another one it returns the PID.
func acquire(f *os.File) (owner string, ok bool) {
	for late := time.Now().Add(endTime); ; time.Sleep(10 * time.Millisecond) {
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			_ = f.Truncate(0)
			_, _ = fmt.Fprintln(f, os.Getpid())
			return "", true
		}
		content := make([]byte, 32)
		n, _ := f.ReadAt(content, 0)
		owner, ends := strings.CutSuffix(strings.TrimSpace(string(content[:n])), endMark)
		if !ends && !dead(owner) || time.Now().After(late) {
			return owner, false
		}
	}
}

// dead says whether there is no process of that number. A child that a killed
// huskd was about to make has its files, and so its lock, until it executes.
func dead(owner string) bool {
	pid, err := strconv.Atoi(owner)
	return err == nil && errors.Is(unix.Kill(pid, 0), unix.ESRCH)
}

// ends tells the next huskd that it may wait for this one.
func (d *daemon) ends() {
	for _, f := range d.locks {
		_, _ = f.WriteAt(fmt.Appendf(nil, "%d%s\n", os.Getpid(), endMark), 0)
	}
}

func (d *daemon) unlock() {
	for _, f := range d.locks {
		_ = f.Close()
	}
}

// listen serves the socket, which only root can use. One that somebody serves
// is left alone; one that nobody does any more is replaced.
func listen(address string) (listener, error) {
	path := strings.TrimPrefix(address, scheme)
	if conn, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = conn.Close()
		return nil, fmt.Errorf("--listen: somebody serves %s already: stop that, or choose another socket", path)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("--listen: %s is there and is no socket: remove it, or choose another path", path)
	} else if err == nil {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	// The mask is the process's, but nothing else runs yet.
	old := syscall.Umask(0o177)
	l, err := net.Listen("unix", path)
	syscall.Umask(old)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("--listen: %s is too long for a socket: at most 107 characters", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return l, nil
}
