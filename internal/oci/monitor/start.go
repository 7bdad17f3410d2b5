package monitor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/poll"
)

// Start starts the program of a created container. If the runtime refuses, because the container
// runs or has exited, the error is an *oci.StartError.
func (d *Driver) Start(ctx context.Context, id string) error {
	c, err := d.find(id)
	if err != nil {
		return err
	}
	started := false
	switch {
	case c.Restore != "":
		err = c.resumeRestored()
		started = true
	case !c.RuntimeStarts:
		started, err = c.startInit(ctx)
	}
	if err == nil && !started {
		err = c.runRuntime(ctx, "start", id)
	}
	if err != nil {
		return fmt.Errorf("start container %s: %w", pod.Short(id), err)
	}
	return nil
}

// startInit lets the container's init, which waits at a FIFO, execute the program. It returns false
// if init isn't waiting there. Then the runtime should be asked to start.
func (c *container) startInit(ctx context.Context) (bool, error) {
	switch c.Runtime.Name {
	case "runc":
		return c.startRunc(ctx)
	case "crun":
		return startCrun(c.fifo())
	}
	return false, nil
}

// startRunc reads the byte that runc's init writes. A FIFO without a writer reads as empty, so
// startRunc learns from conmon that init has died.
func (c *container) startRunc(ctx context.Context) (bool, error) {
	alive, cancel, err := c.whileRunning(ctx)
	if err != nil {
		return false, nil
	}
	defer cancel()
	// From here on the program may run, and exit at any time.
	f, err := os.OpenFile(c.fifo(), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, ignoreMissing(err)
	}
	defer f.Close()
	read := false
	readByte := func(fd int) bool {
		n, _ := unix.Read(fd, make([]byte, 1))
		read = n == 1
		return read
	}
	err = poll.Until(alive, f, readByte)
	if errors.Is(err, pidfd.ErrGone) {
		// conmon has exited. Either init wrote the byte before that, or it was killed.
		err = control(f, readByte)
		if err == nil && !read {
			return false, nil
		}
	}
	if err != nil {
		return false, err
	}
	return true, ignoreMissing(os.Remove(c.fifo()))
}

// control calls f once with the descriptor of file.
func control(file *os.File, f func(fd int) bool) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { f(int(fd)) })
}

// startCrun writes the byte that crun's init waits for. It removes the FIFO first, as crun does: if
// the FIFO exists, the container hasn't been started.
func startCrun(fifo string) (bool, error) {
	f, err := os.OpenFile(fifo, os.O_WRONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if errors.Is(err, unix.ENXIO) { // no reader: init is dead
		return false, nil
	}
	if err != nil {
		return false, ignoreMissing(err)
	}
	defer f.Close()
	if err := os.Remove(fifo); err != nil {
		return false, ignoreMissing(err)
	}
	_, err = f.Write([]byte{0})
	return err == nil, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
