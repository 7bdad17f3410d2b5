// Package poll waits for file descriptors in Go's network poller, so that a
// wait costs a goroutine and no thread: pidfds, FIFOs, inotify.
package poll

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// New hands fd to the poller. It is closed if that fails.
func New(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Until calls ready at once and then each time that f has become readable,
// until it says true or ctx ends. After that f is of no more use for waiting.
func Until(ctx context.Context, f *os.File, ready func(fd int) bool) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { Interrupt(f) })
	defer stop()
	err = raw.Read(func(fd uintptr) bool { return ready(int(fd)) })
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// Interrupt ends the reads of f that wait, and all later ones, with
// os.ErrDeadlineExceeded.
func Interrupt(f *os.File) { _ = f.SetReadDeadline(time.Unix(1, 0)) }
