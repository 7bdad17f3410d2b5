package monitor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/poll"
)

// Start runs the program of a created container. A refusal of the runtime, for
// a container that runs or has ended, is an *oci.StartError.
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

// release lets the container's init go on, which waits at a FIFO. False says
// that this is not how it stands, and that the runtime should have a look.
func (c *container) startInit(ctx context.Context) (bool, error) {
	switch c.Runtime.Name {
	case "runc":
		return c.startRunc(ctx)
	case "crun":
		return startCrun(c.fifo())
	}
	return false, nil
}

// startRunc takes the byte that runc's init writes. A FIFO without a
// writer reads as empty, so a death of init must be learnt from conmon.
func (c *container) startRunc(ctx context.Context) (bool, error) {
	alive, cancel, err := c.whileRunning(ctx)
	if err != nil {
		return false, nil
	}
	defer cancel()
	// From here on the program may run, and be over at any time.
	f, err := os.OpenFile(c.fifo(), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
	if err != nil {
		return false, ignoreMissing(err)
	}
	defer f.Close()
	written := false
	take := func(fd int) bool {
		n, _ := unix.Read(fd, make([]byte, 1))
		written = n == 1
		return written
	}
	err = poll.Until(alive, f, take)
	if errors.Is(err, pidfd.ErrGone) {
		// It was, before its start was noticed, or it was killed before.
		err = control(f, take)
		if err == nil && !written {
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

// startCrun gives crun's init the byte that it waits for. The name goes
// first, as crun has it: a FIFO that is there is a container not yet started.
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

// runRuntime runs a command of the container's runtime. What it says when it
// fails is the error.
func (c *container) runRuntime(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, c.Runtime.Path, append(c.globalArgs(), args...)...)
	cmd.Env = []string{"PATH=" + conmon.Path}
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.As(err, &failed):
		return oci.NewStartError(string(out))
	}
	return err
}
