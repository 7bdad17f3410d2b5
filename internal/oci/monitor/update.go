package monitor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/pod"
)

// Update changes the limits of a created or running container. Limits that are not set stay as they
// are.
func (d *Driver) Update(ctx context.Context, id string, limits *specs.LinuxResources) error {
	fail := func(err error) error { return fmt.Errorf("update container %s: %w", pod.Short(id), err) }
	c, err := d.find(id)
	if err != nil {
		return err
	}
	if c.rebooted() {
		return fail(errdefs.ErrFailedPrecondition.WithMessage("it has ended"))
	}
	content, err := json.Marshal(limits)
	if err != nil {
		return fail(err)
	}
	file, err := os.CreateTemp(c.dir, "update-")
	if err != nil {
		return fail(err)
	}
	defer os.Remove(file.Name())
	_, err = file.Write(content)
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = c.runRuntime(ctx, "update", "--resources", file.Name(), id)
	}
	if err != nil {
		return fail(err)
	}
	return nil
}
