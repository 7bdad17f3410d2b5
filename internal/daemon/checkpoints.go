package daemon

import (
	"context"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/checkpoint"
	"github.com/huskd/husk/internal/container"
)

// checkpoints implements container.Checkpoints.
type checkpoints struct {
	drivers drivers
	trusted bool
}

// Trusted reports whether the configuration allows restores.
func (c checkpoints) Trusted() bool { return c.trusted }

// Unpack unpacks an archive.
func (c checkpoints) Unpack(ctx context.Context, path, into string) error {
	return checkpoint.Unpack(ctx, path, into)
}

// Open opens dir as a checkpoint.
func (c checkpoints) Open(dir string) (container.Checkpoint, error) {
	d := checkpoint.Dir(dir)
	if !d.Is() {
		return container.Checkpoint{}, errdefs.ErrNotFound
	}
	info, err := d.Info()
	return container.Checkpoint{Images: info.Names(), Processes: d.Processes(), Files: d.Restore}, err
}

// Write writes a checkpoint of a container by the driver that runs it.
func (c checkpoints) Write(ctx context.Context, of container.Checkpointed, path string) error {
	image := of.Config.GetImage()
	return checkpoint.Write(ctx, checkpoint.Request{
		Info: checkpoint.Info{
			ID: of.ID, Name: of.Name(), Created: of.Created,
			ImageName: image.GetUserSpecifiedImage(), Image: image.GetImage(), ImageRef: of.ImageID,
		},
		Spec: of.Spec, Upper: of.Upper,
		Take: func(ctx context.Context, to string, meanwhile func() error) error {
			return c.drivers.Checkpoint(ctx, of.ID, to, meanwhile)
		},
	}, path)
}
