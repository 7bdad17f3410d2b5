package sandbox

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/trace"
)

// Event is a moment in a sandbox's life of which Hooks are notified.
type Event string

// The events, in the order of a life. AfterKill and BeforeRemove also follow for a sandbox that
// never became ready.
const (
	BeforeReady  Event = "before-ready" // it is complete, but no client sees it yet
	AfterUpdate  Event = "after-update"
	AfterKill    Event = "after-kill" // its containers have ended; may be repeated
	BeforeRemove Event = "before-remove"
)

// Hooks are notified of what happens to sandboxes and can refuse some of it. They must not wait for
// a change of the sandbox in question.
type Hooks interface {
	// Update may refuse a change of a pod's limits.
	Update(ctx context.Context, st Status, limits, overhead *runtimeapi.LinuxContainerResources) error
	// Tell notifies of an event. Only BeforeReady can be refused; other events return no error.
	Tell(ctx context.Context, e Event, st Status) error
}

// notify notifies the hooks, if any, even if the caller whose ctx it is has gone.
func (e *entry) notify(ctx context.Context, ev Event) error {
	if e.s.cfg.Hooks == nil {
		return nil
	}
	return e.s.cfg.Hooks.Tell(trace.Follow(e.s.entries.Closing(), ctx), ev, e.View())
}

// Update changes the limits of a ready sandbox's cgroup. A field that is zero is left as it is, and
// so is a cgroup that isn't huskd's. The overhead, the share of the sandbox itself, is only passed
// to the hooks.
func (s *Service) Update(ctx context.Context, id string, limits, overhead *runtimeapi.LinuxContainerResources) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	return e.Change(ctx, "updated", func() error {
		e.Mu.Lock()
		defer e.Mu.Unlock()
		if e.Rec.State != sandboxstate.Ready {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s is %s: its limits can't be changed", e, e.Rec.State))
		}
		if hooks := s.cfg.Hooks; hooks != nil {
			if err := hooks.Update(trace.Follow(s.entries.Closing(), ctx), e.View(), limits, overhead); err != nil {
				return fmt.Errorf("pod %s: %w", e.ref(), err)
			}
		}
		if e.ownsCgroup() {
			if err := s.cfg.Cgroups.Create(s.Cgroup(e.Status()), limits); err != nil {
				return err
			}
		}
		return e.notify(ctx, AfterUpdate)
	})
}
