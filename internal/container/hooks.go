package container

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/trace"
)

// Event is a moment in a container's life of which Hooks are told.
type Event string

// The events, in the order of a life. A container that was given to
// Hooks.Create is told of as stopped and removed, also if it never started.
const (
	AfterCreate  Event = "after-create"
	BeforeStart  Event = "before-start"
	AfterStart   Event = "after-start"
	AfterUpdate  Event = "after-update"
	AfterStop    Event = "after-stop" // none of its processes is left; it may be told of again
	BeforeRemove Event = "before-remove"
)

// Hooks are told what happens to containers, and have a say in it. They must
// not wait for a change of the container that they are told of.
type Hooks interface {
	// Create may change the spec of a container before it is created, or refuse
	// it. It returns what the container's limits have become, nil if it left them.
	Create(ctx context.Context, st Status, spec *specs.Spec) (*runtimeapi.LinuxContainerResources, error)
	// Update may change what is asked of a container's limits, or refuse it.
	Update(ctx context.Context, st Status, asked *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, error)
	// Tell may refuse the start of a container; other events have no error.
	Tell(ctx context.Context, e Event, st Status) error
}

// hooked is a container of which the hooks are told.
type hooked struct{ *box }

// adjust lets the hooks change the spec. What they change is in the bundle and
// in the record from then on: they are not asked again.
func (b hooked) adjust(ctx context.Context, spec *specs.Spec) error {
	if b.s.cfg.Hooks == nil {
		return nil
	}
	cgroup := spec.Linux.CgroupsPath
	limits, err := b.s.cfg.Hooks.Create(trace.Follow(b.s.closing, ctx), b.view(), spec)
	if err != nil {
		return err
	}
	if limits != nil {
		b.rec.Resources = limits
	}
	if spec.Linux.CgroupsPath != cgroup {
		b.rec.Cgroup = spec.Linux.CgroupsPath
	}
	return nil
}

// tell tells the hooks of an event, whatever becomes of who asked for it.
func (b hooked) tell(ctx context.Context, e Event) error {
	if b.s.cfg.Hooks == nil {
		return nil
	}
	return b.s.cfg.Hooks.Tell(trace.Follow(b.s.closing, ctx), e, b.view())
}
