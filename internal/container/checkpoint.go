package container

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
)

// Checkpoints are kept of containers, and containers made of them.
type Checkpoints interface {
	// Write writes an archive of a running container, which goes on, to path.
	Write(ctx context.Context, of Checkpointed, path string) error
	// Unpack unpacks an archive into an empty directory.
	Unpack(ctx context.Context, path, into string) error
	// Open opens the checkpoint that a directory is, errdefs.ErrNotFound if it is
	// none.
	Open(dir string) (Checkpoint, error)
	// Trusted says whether whoever names an image may have a checkpoint restored:
	// its processes get the privileges that they had, whatever the pod's are.
	Trusted() bool
}

// Checkpointed is a container of which a checkpoint is to be made.
type Checkpointed struct {
	Status
	Spec  json.RawMessage
	Upper string // its writable layer
}

// Checkpoint is one that a container can be made of.
type Checkpoint struct {
	Images    []string // names of the image that the container ran, best first
	Processes string   // directory of CRIU's images
	// Files makes the files below a root what they were.
	Files func(ctx context.Context, root string) error
}

// WriteCheckpoint writes an archive of a running container, which goes on, to
// path. Within is what it may take; 0 is as long as an action.
func WriteCheckpoint(ctx context.Context, of *Service, id, path string, within time.Duration) error {
	b, err := of.get(id)
	if err != nil {
		return err
	}
	if !filepath.IsAbs(path) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container %q: a checkpoint can't be written to %.80q: name an absolute path", b.name(), path))
	}
	if within <= 0 {
		within = actionTimeout
	}
	return of.await(ctx, b, "checkpointed", func() error {
		ctx, cancel := context.WithTimeout(of.closing, within)
		defer cancel()
		if err := (checkpointer{b}).write(ctx, path); err != nil {
			return fmt.Errorf("container %q: %w", b.name(), err)
		}
		return nil
	})
}

// checkpointer makes checkpoints of a container, or makes it of one.
type checkpointer struct{ *box }

func (c checkpointer) write(ctx context.Context, path string) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	if c.rec.State != containerstate.Running || c.rec.Exit != nil {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("(%s) is not running: there is nothing to checkpoint", pod.Short(c.id)))
	}
	sandbox, err := c.s.cfg.Sandboxes.Sandbox(c.sandbox)
	if err == nil {
		err = notOfOthers(sandbox)
	}
	if err != nil {
		return err
	}
	return c.s.cfg.Checkpoints.Write(ctx, Checkpointed{c.status(), c.s.Spec(c.id), rootfs.Upper(c.layer())}, path)
}

// notOfOthers: CRIU would have to be told of a user namespace that it doesn't
// make, which runc can't.
func notOfOthers(s Sandbox) error {
	if s.owner() != nil {
		return errdefs.ErrNotImplemented.WithMessage("its pod has a user namespace: containers in one are not checkpointed or restored")
	}
	return nil
}

// image returns the image that the container is to run; and the checkpoint that
// it is to be made of, if that is what the config names: the path of an archive,
// or an image with the content of one.
func (c checkpointer) image(ctx context.Context, sandbox Sandbox) (Image, *Checkpoint, error) {
	name := c.config.GetImage().GetImage()
	if filepath.IsAbs(name) {
		if err := c.mayRestore(); err != nil {
			return Image{}, nil, err
		}
		into := filepath.Join(c.layer(), "checkpoint")
		if err := c.s.cfg.Checkpoints.Unpack(ctx, name, into); err != nil {
			return Image{}, nil, err
		}
		return c.open(ctx, sandbox, into)
	}
	image, err := c.s.cfg.Images.Image(ctx, name)
	if err != nil {
		return Image{}, nil, err
	}
	if err := c.hold(image.ID, c.holder(sandbox.Config)); err != nil {
		return Image{}, nil, err
	}
	if c.s.cfg.Checkpoints == nil || len(image.Lower) == 0 {
		return image, nil, nil
	}
	of, from, err := c.open(ctx, sandbox, image.Lower[0])
	if errdefs.IsNotFound(err) && from == nil {
		return image, nil, nil
	}
	return of, from, err
}

func (c checkpointer) mayRestore() error {
	if c.s.cfg.Checkpoints != nil && c.s.cfg.Checkpoints.Trusted() {
		return nil
	}
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%.300s is a checkpoint, whose processes would come back with the privileges that they had: "+
		"set restore-checkpoints = true in huskd's configuration if all that may be run here is trusted", c.config.GetImage().GetImage()))
}

// open returns a checkpoint, which is also returned with an error about it, and
// the image that its container ran.
func (c checkpointer) open(ctx context.Context, sandbox Sandbox, dir string) (Image, *Checkpoint, error) {
	from, err := c.s.cfg.Checkpoints.Open(dir)
	if err != nil {
		return Image{}, nil, err
	}
	if err := c.mayRestore(); err != nil {
		return Image{}, &from, err
	}
	if err := notOfOthers(sandbox); err != nil {
		return Image{}, &from, err
	}
	for _, name := range from.Images {
		image, err := c.s.cfg.Images.Image(ctx, name)
		if err != nil {
			continue
		}
		return image, &from, c.hold(image.ID, c.holder(sandbox.Config))
	}
	return Image{}, &from, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("the checkpoint is of a container of image %.300s, which isn't here: pull it first", from.Images))
}

// restore makes the files below root those of the checkpoint, and returns the
// annotations by which the spec has its processes restored.
func (c checkpointer) restore(ctx context.Context, from *Checkpoint, root string) (map[string]string, error) {
	if from == nil {
		return nil, nil
	}
	if err := from.Files(ctx, root); err != nil {
		return nil, fmt.Errorf("restore files: %w", err)
	}
	c.from = from.Processes
	return map[string]string{oci.CRIUOptions: filepath.Join(c.bundle(), oci.CRIUFile)}, nil
}
