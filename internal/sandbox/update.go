package sandbox

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/trace"
)

// Update changes the limits of a ready sandbox's cgroup; a field that is zero
// stays as it is. A cgroup that is somebody else's is left to them. The overhead,
// what of it is for the sandbox itself, only the hooks are told.
func (s *Service) Update(ctx context.Context, id string, limits, overhead *runtimeapi.LinuxContainerResources) error {
	if _, err := s.Get(id); err != nil {
		return err
	}
	return s.change(ctx, id, func(b *box) error {
		b.turn.Lock()
		defer b.turn.Unlock()
		if b.rec.State != sandboxstate.Ready {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("sandbox %s of pod %s is %s: its limits can't be changed", pod.Short(b.id), b.ref(), b.rec.State))
		}
		return hooked{b}.update(ctx, limits, overhead)
	})
}

func (b hooked) update(ctx context.Context, limits, overhead *runtimeapi.LinuxContainerResources) error {
	hooks := b.s.cfg.Hooks
	if hooks != nil {
		if err := hooks.Update(trace.Follow(b.s.closing, ctx), b.view(), limits, overhead); err != nil {
			return fmt.Errorf("pod %s: %w", b.ref(), err)
		}
	}
	if b.ownsCgroup() {
		if err := b.s.cfg.CreateCgroup(b.s.Cgroup(b.status()), limits); err != nil {
			return err
		}
	}
	return b.tell(ctx, AfterUpdate)
}
