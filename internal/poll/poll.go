// Package poll waits for file descriptors such as pidfds, FIFOs and inotify in Go's network poller,
// so that a wait blocks a goroutine but no thread.
package poll

import (
	"context"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// New registers fd with the poller. If that fails it closes fd.
func New(fd int, name string) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, os.NewSyscallError("fcntl", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Until calls ready at once, and again each time that f becomes readable, until it returns true or
// ctx ends. After ctx has ended f can't be read or waited for any more.
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

// Interrupt makes blocked and all later reads of f return os.ErrDeadlineExceeded.
func Interrupt(f *os.File) { _ = f.SetReadDeadline(time.Unix(1, 0)) }
