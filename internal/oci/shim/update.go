package shim

import (
	"context"
	"encoding/json"

	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"
)

// resourcesType is the type that a shim expects in an update request.
const resourcesType = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"

// Update changes the limits of a created or running container. Limits that are not set stay as they
// are.
func (d *Driver) Update(ctx context.Context, id string, limits *specs.LinuxResources) error {
	c, w, err := d.watched(id)
	if err != nil {
		return err
	}
	t, ok := w.task()
	if !ok {
		return c.wrap("update", errEnded)
	}
	content, err := json.Marshal(limits)
	if err == nil {
		err = t.update(ctx, id, &anypb.Any{TypeUrl: resourcesType, Value: content})
	}
	return c.wrap("update", asStartError(ctx, err))
}
