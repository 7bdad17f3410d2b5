package sandbox

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/lifecycle"
)

// Update changes the limits of a ready sandbox's cgroup; a field that is zero
// stays as it is. A cgroup that is somebody else's is left to them.
func (s *Service) Update(ctx context.Context, id string, limits *runtimeapi.LinuxContainerResources) error {
	if _, err := s.Get(id); err != nil {
		return err
	}
	return s.change(ctx, id, func(b *box) error {
		b.turn.Lock()
		defer b.turn.Unlock()
		if b.rec.State != lifecycle.Ready {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("sandbox %s of pod %s is %s: its limits can't be changed", pod.Short(b.id), b.ref(), b.rec.State))
		}
		if !b.ownsCgroup() {
			return nil
		}
		return s.cfg.CreateCgroup(s.Cgroup(b.status()), limits)
	})
}
