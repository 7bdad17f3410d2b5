package monitor

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/pod"
)

// Signal sends sig to the container's init process, or returns errdefs.ErrNotFound if it has
// exited.
func (d *Driver) Signal(_ context.Context, id string, sig syscall.Signal) error {
	c, err := d.find(id)
	if err != nil {
		return err
	}
	err = pidfd.ErrGone
	if !c.rebooted() {
		err = pidfd.Signal(c.Init, sig)
	}
	if errors.Is(err, pidfd.ErrGone) {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("signal container %s: it has ended", pod.Short(id)))
	}
	if err != nil {
		return fmt.Errorf("signal container %s: %w", pod.Short(id), err)
	}
	return nil
}

// KillAll kills every process of the container, also those that have left its session or PID
// namespace, and returns when all have exited and conmon has recorded that.
func (d *Driver) KillAll(ctx context.Context, id string) error {
	c, err := d.find(id)
	if err != nil || c.rebooted() {
		return err
	}
	tree, err := c.tree()
	if err == nil {
		err = tree.Kill(ctx, c.Cgroup)
	}
	if err == nil {
		err = c.end(ctx)
	}
	if err != nil {
		return fmt.Errorf("kill container %s: %w", pod.Short(id), err)
	}
	return nil
}
