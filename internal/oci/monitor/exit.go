package monitor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// Files in the container's directory about its exit. conmon creates the first two, and the driver
// the third if conmon couldn't.
const (
	exitFile = "exit"
	oomFile  = "oom"
	lostFile = "lost"
)

// leftoverLimit bounds the killing of what an exited container left running.
const leftoverLimit = 10 * time.Second

// Wait returns the container's exit once it has exited, also if it did while no Driver ran. By then
// every process that it left is killed. Wait can be repeated until the container is deleted.
func (d *Driver) Wait(ctx context.Context, id string) (oci.Exit, error) {
	c, err := d.find(id)
	if err != nil {
		return oci.Exit{}, err
	}
	w, err := c.findWatch()
	if errors.Is(err, pidfd.ErrGone) {
		return c.collectExit(), nil
	}
	if err != nil {
		return oci.Exit{}, fmt.Errorf("wait for container %s: %w", pod.Short(id), err)
	}
	if err := w.Wait(ctx); err != nil {
		return oci.Exit{}, err
	}
	return w.Exit(), nil
}

// Status returns the state of a container. It doesn't wait for anything.
func (d *Driver) Status(_ context.Context, id string) (oci.Status, error) {
	c, err := d.find(id)
	if err != nil {
		return oci.Status{}, err
	}
	w, err := c.findWatch()
	switch {
	case errors.Is(err, pidfd.ErrGone):
		return oci.Status{State: oci.Exited, Process: c.Init, Exit: c.collectExit()}, nil
	case err != nil:
		return oci.Status{}, fmt.Errorf("container %s: %w", pod.Short(id), err)
	case w.Exited():
		return oci.Status{State: oci.Exited, Process: c.Init, Exit: w.Exit()}, nil
	}
	// Both runtimes remove the FIFO when they start the program.
	if _, err := os.Stat(c.fifo()); err == nil {
		return oci.Status{State: oci.Created, Process: c.Init}, nil
	}
	return oci.Status{State: oci.Running, Process: c.Init}, nil
}

// collectExit returns the exit of a container whose conmon is gone, and kills what is left of it.
// If conmon was killed, this includes the init process, because nothing reads its output any more.
func (c *container) collectExit() oci.Exit {
	exit, err := readExit(c.path(exitFile))
	if err != nil {
		exit = markLost(c.path(lostFile))
	}
	_, err = os.Stat(c.path(oomFile))
	exit.OOMKilled = err == nil
	tree, err := c.tree()
	if err != nil || c.rebooted() {
		return exit
	}
	ctx, cancel := context.WithTimeout(context.Background(), leftoverLimit)
	defer cancel()
	// Errors are ignored: Delete tries again and reports them.
	_ = pidfd.Signal(c.Init, unix.SIGKILL)
	_ = tree.Kill(ctx, c.Cgroup)
	// conmon may have died before it noticed an OOM kill. The cgroup exists until the container is
	// deleted, unless it is a systemd scope.
	exit.OOMKilled = exit.OOMKilled || tree.OOMKills(c.Cgroup) > 0
	if c.Systemd {
		exit.OOMKilled = c.attributeOOM(exit.OOMKilled)
	}
	return exit
}

// readExit reads the exit code that conmon has written.
func readExit(file string) (oci.Exit, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return oci.Exit{}, err
	}
	info, err := os.Stat(file)
	if err != nil {
		return oci.Exit{}, err
	}
	code, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil || code < 0 { // conmon writes -1 for unknown
		return oci.Exit{}, fmt.Errorf("%s has %q", file, raw)
	}
	return oci.Exit{Code: code, At: info.ModTime()}, nil
}

// markLost returns an exit of unknown code. It creates a file, so that a later call returns the
// same time.
func markLost(file string) oci.Exit {
	exit := oci.LostExit()
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return exit
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil {
		exit.At = info.ModTime()
	}
	return exit
}
