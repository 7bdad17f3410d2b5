package container

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/trace"
)

// Event is a moment in a container's life of which Hooks are notified.
type Event string

// The events, in the order of a life. AfterStop and BeforeRemove follow for every container that
// was passed to Hooks.Create, even if it never started.
const (
	AfterCreate  Event = "after-create"
	BeforeStart  Event = "before-start"
	AfterStart   Event = "after-start"
	AfterUpdate  Event = "after-update"
	AfterStop    Event = "after-stop" // none of its processes is left; may be repeated
	BeforeRemove Event = "before-remove"
)

// Hooks are notified of what happens to containers and can change or refuse some of it. They must
// not wait for a change of the container in question.
type Hooks interface {
	// Create may change the spec of a container before it is created, or refuse it. It returns the new
	// limits of the container, or nil if it hasn't changed them.
	Create(ctx context.Context, st Status, spec *specs.Spec) (*runtimeapi.LinuxContainerResources, error)
	// Update may change the requested limits of a container, or refuse them.
	Update(ctx context.Context, st Status, asked *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, error)
	// Tell notifies of an event. Only BeforeStart can be refused; other events return no error.
	Tell(ctx context.Context, e Event, st Status) error
}

// adjust lets the hooks change the spec. Their changes are kept in the bundle and in the record.
func (e *entry) adjust(ctx context.Context, spec *specs.Spec) error {
	if e.s.cfg.Hooks == nil {
		return nil
	}
	cgroup := spec.Linux.CgroupsPath
	limits, err := e.s.cfg.Hooks.Create(trace.Follow(e.s.entries.Closing(), ctx), e.View(), spec)
	if err != nil {
		return err
	}
	if limits != nil {
		e.Rec.Resources = limits
	}
	if spec.Linux.CgroupsPath != cgroup {
		e.Rec.Cgroup = spec.Linux.CgroupsPath
	}
	return nil
}

// notify notifies the hooks, if any, even if the caller whose ctx it is has gone.
func (e *entry) notify(ctx context.Context, ev Event) error {
	if e.s.cfg.Hooks == nil {
		return nil
	}
	return e.s.cfg.Hooks.Tell(trace.Follow(e.s.entries.Closing(), ctx), ev, e.View())
}
