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

// Files about the end of a container in its directory. conmon writes the first
// two, we the third, when conmon couldn't.
const (
	exitFile = "exit"
	oomFile  = "oom"
	lostFile = "lost"
)

// leftoverLimit bounds the killing of what an ended container left running.
const leftoverLimit = 10 * time.Second

// watch starts waiting for the conmon behind fd, which it then owns.
func (c *container) watch(fd *os.File) *oci.ExitNotifier {
	d := c.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	if w, ok := d.watches[c.ID]; ok {
		_ = fd.Close()
		return w
	}
	w := oci.NewExitNotifier()
	d.watches[c.ID] = w
	go func() {
		_ = pidfd.Wait(context.Background(), fd)
		_ = fd.Close()
		w.Notify(c.collectExit())
	}()
	return w
}

// watching returns the watch of the container, or pidfd.ErrGone if its conmon
// is.
func (c *container) findWatch() (*oci.ExitNotifier, error) {
	c.driver.mu.Lock()
	w, ok := c.driver.watches[c.ID]
	c.driver.mu.Unlock()
	if ok {
		return w, nil
	}
	if c.rebooted() {
		return nil, pidfd.ErrGone
	}
	fd, err := pidfd.Open(c.Monitor)
	if err != nil {
		return nil, err
	}
	return c.watch(fd), nil
}

// alive returns a context that ends with pidfd.ErrGone when conmon does, or
// that error if it has.
func (c *container) whileRunning(ctx context.Context) (context.Context, func(), error) {
	w, err := c.findWatch()
	if err == nil && w.Exited() {
		err = pidfd.ErrGone
	}
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		if w.Wait(ctx) == nil {
			cancel(pidfd.ErrGone)
		}
	}()
	return ctx, func() { cancel(nil) }, nil
}

// forget drops the watch of a container that is deleted.
func (d *Driver) dropWatch(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.watches, id)
}

// Wait returns once the container has ended, also one that ended while no
// Driver was there. Every process that it left running is killed by then. It
// can be called any number of times until the container is deleted.
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

// Status says how a container stands, without waiting for anything.
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

// settle says how a container ended whose conmon is gone. If conmon was killed,
// the container goes too: nobody reads what it writes any more.
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
	// What can't be killed in this time is Delete's to report.
	_ = pidfd.Signal(c.Init, unix.SIGKILL)
	_ = tree.Kill(ctx, c.Cgroup)
	// conmon may be dead, or slow to hear of it. The cgroup itself is there until
	// the container is deleted, unless it is systemd's.
	exit.OOMKilled = exit.OOMKilled || tree.OOMKills(c.Cgroup) > 0
	if c.Systemd {
		exit.OOMKilled = c.attributeOOM(exit.OOMKilled)
	}
	return exit
}

// readExit reads what conmon left.
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
	if err != nil || code < 0 { // -1 is conmon's word for not knowing
		return oci.Exit{}, fmt.Errorf("%s has %q", file, raw)
	}
	return oci.Exit{Code: code, At: info.ModTime()}, nil
}

// lost leaves a mark, for a later call to give the same time.
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
