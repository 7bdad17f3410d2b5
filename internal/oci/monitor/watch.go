package monitor

import (
	"context"
	"os"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

// watch starts waiting for the conmon behind fd, which the watch then owns.
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

// findWatch returns the watch of the container, or pidfd.ErrGone if its conmon has exited.
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

// whileRunning returns a context that ends with pidfd.ErrGone when conmon exits. If it has exited,
// the error is pidfd.ErrGone.
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

// dropWatch removes the watch of a container that is deleted.
func (d *Driver) dropWatch(id string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.watches, id)
}
