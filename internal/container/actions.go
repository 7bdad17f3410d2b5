package container

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci"
)

// perform performs one action. Those of the way down can be repeated and succeed on what doesn't
// exist.
func (e *entry) perform(ctx context.Context, do containerstate.Action) error {
	if do == containerstate.Create { // the time limit doesn't include the wait for a slot
		select {
		case e.s.creating <- struct{}{}:
			defer func() { <-e.s.creating }()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, owner.ActionTimeout)
	defer cancel()
	switch do {
	case containerstate.Mount:
		return e.mount(ctx)
	case containerstate.Create:
		process, err := e.s.cfg.Runtime.Create(ctx, e.request())
		e.Rec.Process = process
		if refusal, ok := errors.AsType[*oci.StartError](err); ok {
			e.Rec.Refusal = &oci.StartError{Code: refusal.Code, Message: err.Error()}
			return nil
		}
		return err
	case containerstate.Start:
		if e.Rec.Refusal != nil {
			return e.Rec.Refusal
		}
		if err := e.notify(ctx, BeforeStart); err != nil {
			return err
		}
		e.Rec.Started = time.Now()
		return e.s.cfg.Runtime.Start(ctx, e.ID)
	case containerstate.Release:
		return e.releaseAll(ctx)
	case containerstate.Clean:
		_ = e.notify(ctx, BeforeRemove)
		if e.release != nil {
			e.release()
			e.release = nil
		}
		return nil
	}
	return fmt.Errorf("unknown action %q", do)
}

func (e *entry) request() oci.Create {
	return oci.Create{
		ID:        e.ID,
		Bundle:    e.bundle(),
		Log:       e.Rec.Log,
		Terminal:  e.Config.GetTty(),
		Stdin:     e.Config.GetStdin(),
		StdinOnce: e.Config.GetStdinOnce(),
		Handler:   e.Rec.Handler,
		Restore:   e.from,
	}
}

// hold keeps an image from being removed until the container is. Users of the image see holder.
func (e *entry) hold(id, holder string) error {
	release, err := e.s.cfg.Images.Hold(id, holder)
	if err != nil {
		return err
	}
	others := e.release
	e.release = func() {
		release()
		if others != nil {
			others()
		}
	}
	return nil
}

// holdAgain holds the container's images after a restart of huskd.
func (e *entry) holdAgain() {
	if e.Rec.ImageID == "" || e.Rec.State == containerstate.Removing {
		return
	}
	for _, id := range append([]string{e.Rec.ImageID}, slices.Collect(maps.Values(e.Rec.Volumes))...) {
		_ = e.hold(id, "container "+e.name()) // an image that is gone can't be held
	}
}

// releaseAll ends what is left of the container and deletes its files.
func (e *entry) releaseAll(ctx context.Context) error {
	if err := e.s.cfg.Runtime.Delete(ctx, e.ID); err != nil {
		return err
	}
	_ = e.notify(ctx, AfterStop)
	if err := e.s.unmountAll(e.layer()); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(e.layer()), os.RemoveAll(e.bundle()))
}

// unmountAll unmounts the root file system and the volumes in a container's directory.
func (s *Service) unmountAll(dir string) error {
	mounted, _ := filepath.Glob(filepath.Join(dir, volumesDir, "*"))
	var errs []error
	for _, volume := range mounted {
		errs = append(errs, s.cfg.Mounts.Unmount(volume))
	}
	return errors.Join(append(errs, s.cfg.Mounts.Unmount(dir))...)
}
