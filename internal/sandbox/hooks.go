package sandbox

import (
	"context"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/trace"
)

// Event is a moment in a sandbox's life of which Hooks are told.
type Event string

// The events, in the order of a life. A sandbox whose making was told of is told
// of as stopped and removed, also if it never became ready.
const (
	BeforeReady  Event = "before-ready" // all of it is there, and it is shown to nobody
	AfterUpdate  Event = "after-update"
	AfterKill    Event = "after-kill" // its containers have ended; it may be told of again
	BeforeRemove Event = "before-remove"
)

// Hooks are told what happens to sandboxes, and have a say in it. They must not
// wait for a change of the sandbox that they are told of.
type Hooks interface {
	// Update may refuse that a pod's limits are changed.
	Update(ctx context.Context, st Status, limits, overhead *runtimeapi.LinuxContainerResources) error
	// Tell may refuse that a sandbox becomes ready; other events have no error.
	Tell(ctx context.Context, e Event, st Status) error
}

// hooked is a sandbox of which the hooks are told.
type hooked struct{ *box }

// tell tells the hooks of an event, whatever becomes of who asked for it.
func (b hooked) tell(ctx context.Context, e Event) error {
	if b.s.cfg.Hooks == nil {
		return nil
	}
	return b.s.cfg.Hooks.Tell(trace.Follow(b.s.closing, ctx), e, b.view())
}
