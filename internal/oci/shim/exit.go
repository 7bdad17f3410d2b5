package shim

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"sync/atomic"
	"time"

	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pidfd"
)

// exitFile has how the container ended. It is there before anything of the
// container is deleted, and after that the only one to know.
const exitFile = "exit.json"

const (
	// leftoverLimit bounds the ending of what an ended container left.
	leftoverLimit = 30 * time.Second
	// flushLimit bounds the wait for output that others than the container's
	// first process hold up. The shim of runc waits for two seconds.
	flushLimit = 5 * time.Second
)

// watch waits for one container.
type watch struct {
	*oci.ExitNotifier // it has come when nothing of the container runs any more

	current atomic.Pointer[task]
	logLost atomic.Bool // conmon died before the container did
	// given up: there is nobody to wait for. The container counts as killed.
	ctx    context.Context
	cancel context.CancelFunc
}

// task is the connection to the shim; not ok if the container has ended.
func (w *watch) task() (t *task, ok bool) {
	t = w.current.Load()
	return t, t != nil && !w.Exited()
}

// watch starts waiting for the container through t, which it then owns; nil if
// there is no shim any more.
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
		exit = c.cleanUpExited(w, exit)
		if t := w.current.Load(); t != nil {
			t.close()
		}
		w.Notify(exit)
	}()
	return w
}

// watched returns a container that Create went through for, with its watch.
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

// reach connects to the container's shim; nil if that is gone. One that is about
// to be refuses first.
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

// lives says whether a process runs: one that is dead and not reaped doesn't.
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

// forget drops the watch of a container that is deleted, once that does nothing
// more to it.
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

// await waits until the container's first process has ended. A call that fails
// says nothing about that: only the shim's own end does.
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

// killOnLogLoss kills the container should its conmon die first: nobody reads what
// it writes any more.
func (c *container) killOnLogLoss(w *watch) {
	f, err := pidfd.Open(c.Monitor)
	if err == nil {
		err = pidfd.Wait(w.ctx, f)
		_ = f.Close()
	}
	if w.ctx.Err() != nil || err != nil && !errors.Is(err, pidfd.ErrGone) {
		return
	}
	w.logLost.Store(true)
	// If it fails, what is left is found when the container is deleted.
	_ = c.killAll(w.ctx, w)
}

// settle ends what is left of a container whose first process has ended, and
// returns how that did.
func (c *container) cleanUpExited(w *watch, exit oci.Exit) oci.Exit {
	ctx, cancel := context.WithTimeout(context.Background(), leftoverLimit)
	defer cancel()
	// What can't be ended in this time is Delete's to report.
	if tree, err := c.tree(); err == nil {
		// The shim is about to delete the cgroup.
		exit.OOMKilled = exit.OOMKilled || tree.OOMKills(c.Cgroup) > 0
		exit = c.saveExit(exit)
		_ = tree.Kill(ctx, c.Cgroup)
	}
	if c.deleteTask(ctx, w.current.Load()) != nil && !running(c.Shim) {
		_ = c.Handler.deleteLeftovers(ctx, c.bundleCopy, c.ID)
	}
	_ = c.stopLog(ctx)
	return exit
}

// deleteTask has the shim delete the container, which passes on its last words.
func (c *container) deleteTask(ctx context.Context, t *task) error {
	if t == nil {
		return errClosed
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := t.delete(ctx, c.ID, "")
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// stopLog ends the holder, and with it conmon, once that has written down what
// is in its pipes.
func (c *container) stopLog(ctx context.Context) error {
	if err := pidfd.End(ctx, c.Holder); err != nil {
		return err
	}
	f, err := pidfd.Open(c.Monitor)
	if errors.Is(err, pidfd.ErrGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	limited, cancel := context.WithTimeout(ctx, flushLimit)
	defer cancel()
	if pidfd.Wait(limited, f) == nil {
		return nil
	}
	return pidfd.End(ctx, c.Monitor)
}

// saveExit writes down how the container ended. The first to do so is right:
// it returns that.
func (c *container) saveExit(exit oci.Exit) oci.Exit {
	tmp, err := os.CreateTemp(c.dir, exitFile+"-")
	if err != nil {
		return exit
	}
	defer os.Remove(tmp.Name())
	err = json.NewEncoder(tmp).Encode(exit)
	if closeErr := tmp.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = os.Link(tmp.Name(), c.path(exitFile))
	}
	if errors.Is(err, fs.ErrExist) {
		if first, ok := readExit(c.path(exitFile)); ok {
			return first
		}
	}
	return exit
}

func readExit(file string) (exit oci.Exit, ok bool) {
	raw, err := os.ReadFile(file)
	if err != nil || json.Unmarshal(raw, &exit) != nil {
		return oci.Exit{}, false
	}
	return exit, true
}

// Wait returns once the container has ended, also one that ended while no
// Driver was there. Every process that it left running is killed by then. It
// can be called any number of times until the container is deleted.
func (d *Driver) Wait(ctx context.Context, id string) (oci.Exit, error) {
	_, w, err := d.watched(id)
	if err == nil {
		err = w.Wait(ctx)
	}
	if err != nil {
		return oci.Exit{}, err
	}
	return w.Exit(), nil
}

// Status says how a container stands.
func (d *Driver) Status(ctx context.Context, id string) (oci.Status, error) {
	c, w, err := d.watched(id)
	if err != nil {
		return oci.Status{}, err
	}
	ended := func() (oci.Status, error) {
		if err := w.Wait(ctx); err != nil {
			return oci.Status{}, c.wrap("find", err)
		}
		return oci.Status{State: oci.Exited, Process: c.Init, Exit: w.Exit()}, nil
	}
	t, ok := w.task()
	if !ok {
		return ended()
	}
	limited, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	state, err := t.state(limited, id)
	switch {
	case err != nil && isGone(err):
		return ended()
	case err != nil:
		return oci.Status{}, c.wrap("find", err)
	case state.GetStatus() == tasktypes.Status_STOPPED:
		return ended()
	case state.GetStatus() == tasktypes.Status_CREATED:
		return oci.Status{State: oci.Created, Process: c.Init}, nil
	}
	return oci.Status{State: oci.Running, Process: c.Init}, nil
}

// lockFile is what conmon and the holder keep locked: see conmon.Launch.
const lockFile = "lock"

// killLogProcesses ends what of the log's keepers can be found, for the case that we
// were killed before they were recorded, and returns when none is left.
func (c *container) killLogProcesses(ctx context.Context) error {
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		if p, ok := conmon.Find(c.dir); ok {
			if err := pidfd.End(ctx, p); err != nil {
				return err
			}
		}
		for _, p := range withArgument(c.path(pidFile)) {
			if err := pidfd.End(ctx, p); err != nil {
				return err
			}
		}
		held, err := conmon.Lock(c.path(lockFile))
		if err == nil {
			return held.Close()
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(pause):
		}
	}
}
