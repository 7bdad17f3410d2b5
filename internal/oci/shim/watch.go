package shim

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

// watch waits for the exit of one container. It notifies when no process of the container runs any
// more.
type watch struct {
	*oci.ExitNotifier

	current atomic.Pointer[task]
	logLost atomic.Bool // conmon died before the container did

	// Held for reading by a Start in flight. The exit of a short-lived program can arrive before the
	// shim's answer to Start, which would be lost if the connection were closed at once.
	starting sync.RWMutex

	// Canceled when there is no exit to wait for. The container then counts as killed.
	ctx    context.Context
	cancel context.CancelFunc
}

// task returns the connection to the shim; not ok if the container has exited.
func (w *watch) task() (t *task, ok bool) {
	t = w.current.Load()
	return t, t != nil && !w.Exited()
}

// watch starts waiting for the container through t, which the watch then owns. A nil t means that
// the shim is gone.
func (c *container) watch(t *task) *watch {
	d := c.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	if w, ok := d.watches[c.ID]; ok {
		if t != nil {
			t.close()
		}
		return w
	}
	w := &watch{ExitNotifier: oci.NewExitNotifier()}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.current.Store(t)
	d.watches[c.ID] = w
	go func() {
		defer w.cancel()
		exit, known := readExit(c.path(exitFile))
		if !known {
			exit = c.awaitExit(w)
		}
		w.starting.Lock()
		w.starting.Unlock() //nolint:staticcheck // Lock waits for the Start in flight
		exit = c.cleanUpExited(w, exit)
		if t := w.current.Load(); t != nil {
			t.close()
		}
		w.Notify(exit)
	}()
	return w
}

// watched returns a container whose creation succeeded, and its watch.
func (d *Driver) watched(id string) (*container, *watch, error) {
	c, err := d.find(id)
	if err != nil {
		return nil, nil, err
	}
	d.mu.Lock()
	w, ok := d.watches[id]
	d.mu.Unlock()
	if ok {
		return c, w, nil
	}
	if c.rebooted() {
		w := &watch{ExitNotifier: oci.NewExitNotifier()}
		w.Notify(c.saveExit(oci.LostExit()))
		return c, w, nil
	}
	t, err := c.connectOrGone()
	if err != nil {
		return c, nil, c.wrap("find", err)
	}
	return c, c.watch(t), nil
}

// connectOrGone connects to the container's shim, or returns nil if the shim is gone. It retries
// while the shim's process runs, because a shim that is exiting refuses connections first.
func (c *container) connectOrGone() (*task, error) {
	for deadline := time.Now().Add(dialLimit); ; time.Sleep(20 * time.Millisecond) {
		t, err := connect(context.Background(), c.Endpoint)
		switch {
		case err == nil:
			return t, nil
		case !running(c.Shim):
			return nil, nil
		case time.Now().After(deadline):
			return nil, err
		}
	}
}

// running reports whether a process runs. A zombie doesn't.
func running(p oci.Process) bool {
	f, err := pidfd.Open(p)
	if err != nil {
		return !errors.Is(err, pidfd.ErrGone)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	return pidfd.Wait(ctx, f) != nil
}

// dropWatch removes the watch of a container that is deleted, and returns when the watch has
// finished.
func (d *Driver) dropWatch(ctx context.Context, id string) error {
	d.mu.Lock()
	w, ok := d.watches[id]
	delete(d.watches, id)
	d.mu.Unlock()
	if !ok {
		return nil
	}
	w.cancel()
	return w.Wait(ctx)
}

// awaitExit waits until the container's init process has exited. A failed call alone doesn't mean
// that: awaitExit reconnects for as long as the shim's process runs.
func (c *container) awaitExit(w *watch) oci.Exit {
	go c.killOnLogLoss(w)
	for pause := 10 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		if t, ok := w.task(); ok {
			exit, err := t.wait(w.ctx, c.ID, "")
			switch {
			case w.ctx.Err() != nil:
				return oci.Exit{Code: 128 + int(unix.SIGKILL), At: time.Now()}
			case err == nil && w.logLost.Load(), err != nil && errdefs.IsNotFound(err):
				return oci.LostExit()
			case err == nil:
				return exit
			}
			t.close()
		}
		if !running(c.Shim) {
			w.current.Store(nil)
			return oci.LostExit()
		}
		select {
		case <-time.After(pause):
		case <-w.ctx.Done():
		}
		if t, err := connect(w.ctx, c.Endpoint); err == nil {
			w.current.Store(t)
		}
	}
}
