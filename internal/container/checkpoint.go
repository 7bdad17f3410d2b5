package container

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/checkpoint"
	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Checkpoint writes an archive of a running container to path. The container goes on running. It
// takes at most timeout, or owner.ActionTimeout if that is 0.
func (s *Service) Checkpoint(ctx context.Context, id, path string, timeout time.Duration) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(path) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s: a checkpoint can't be written to %.80q: name an absolute path", e, path))
	}
	if timeout <= 0 {
		timeout = owner.ActionTimeout
	}
	return e.Change(ctx, "checkpointed", func() error {
		ctx, cancel := context.WithTimeout(s.entries.Closing(), timeout)
		defer cancel()
		if err := e.writeCheckpoint(ctx, path); err != nil {
			return fmt.Errorf("%s: %w", e, err)
		}
		return nil
	})
}

func (e *entry) writeCheckpoint(ctx context.Context, path string) error {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.Rec.State != containerstate.Running || e.Rec.Exit != nil {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("(%s) is not running: there is nothing to checkpoint", pod.Short(e.ID)))
	}
	sandbox, err := e.s.cfg.Sandboxes.Sandbox(e.Rec.Sandbox)
	if err == nil {
		err = refuseUserNamespace(sandbox)
	}
	if err != nil {
		return err
	}
	image := e.Config.GetImage()
	return checkpoint.Write(ctx, checkpoint.Request{
		Info: checkpoint.Info{
			ID: e.ID, Name: e.name(), Created: e.Rec.Created,
			ImageName: image.GetUserSpecifiedImage(), Image: image.GetImage(), ImageRef: e.Rec.ImageID,
		},
		Spec: e.s.Spec(e.ID), Upper: rootfs.Upper(e.layer()),
		Dump: func(ctx context.Context, into string, whileStopped func() error) error {
			return e.s.cfg.Checkpointer.Checkpoint(ctx, e.ID, into, whileStopped)
		},
	}, path)
}

// refuseUserNamespace returns an error if the sandbox has a user namespace. CRIU would have to join
// it, and runc can't make CRIU do that.
func refuseUserNamespace(s Sandbox) error {
	if s.owner() != nil {
		return errdefs.ErrNotImplemented.WithMessage("its pod has a user namespace: containers in one are not checkpointed or restored")
	}
	return nil
}

// findImage finds and holds the image that the container runs. If the config names a checkpoint,
// which is the path of an archive or an image with the content of one, findImage also returns that.
func (p *setup) findImage(ctx context.Context) (from checkpoint.Dir, err error) {
	name := p.e.Config.GetImage().GetImage()
	if filepath.IsAbs(name) {
		if err := p.mayRestore(); err != nil {
			return "", err
		}
		into := checkpoint.Dir(filepath.Join(p.e.layer(), "checkpoint"))
		if err := checkpoint.Unpack(ctx, name, string(into)); err != nil {
			return "", err
		}
		return into, p.findImageOf(ctx, into)
	}
	if p.image, err = p.e.s.cfg.Images.Image(ctx, name); err != nil {
		return "", err
	}
	if err := p.e.hold(p.image.ID, p.holder()); err != nil {
		return "", err
	}
	if len(p.image.Lower) == 0 || !checkpoint.Dir(p.image.Lower[0]).Is() {
		return "", nil
	}
	from = checkpoint.Dir(p.image.Lower[0])
	return from, p.findImageOf(ctx, from)
}

func (p *setup) mayRestore() error {
	if p.e.s.cfg.RestoreCheckpoints {
		return nil
	}
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%.300s is a checkpoint, whose processes would come back with the privileges that they had: "+
		"set restore-checkpoints = true in huskd's configuration if all that may be run here is trusted", p.e.Config.GetImage().GetImage()))
}

// findImageOf finds and holds the image that the container of a checkpoint ran.
func (p *setup) findImageOf(ctx context.Context, from checkpoint.Dir) error {
	info, err := from.Info()
	if err != nil {
		return err
	}
	if err := p.mayRestore(); err != nil {
		return err
	}
	if err := refuseUserNamespace(p.sandbox); err != nil {
		return err
	}
	for _, name := range info.Names() {
		if p.image, err = p.e.s.cfg.Images.Image(ctx, name); err == nil {
			return p.e.hold(p.image.ID, p.holder())
		}
	}
	return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("the checkpoint is of a container of image %.300s, which isn't here: pull it first", info.Names()))
}

// restore restores the files of a checkpoint, if any, in the root file system. It returns the
// annotations of the spec that make the runtime restore the processes.
func (p *setup) restore(ctx context.Context, from checkpoint.Dir) (map[string]string, error) {
	if from == "" {
		return nil, nil
	}
	if err := from.Restore(ctx, p.root); err != nil {
		return nil, fmt.Errorf("restore files: %w", err)
	}
	p.e.from = from.Processes()
	return map[string]string{oci.CRIUOptions: filepath.Join(p.e.bundle(), oci.CRIUFile)}, nil
}
