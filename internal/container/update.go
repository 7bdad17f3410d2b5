package container

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// Update changes the limits of a created or running container, as the hooks
// have them. A field that is zero stays as it is.
func (s *Service) Update(ctx context.Context, id string, asked *runtimeapi.LinuxContainerResources) error {
	b, err := s.get(id)
	if err != nil {
		return err
	}
	return s.await(ctx, b, "updated", func() error { return limited{b}.update(ctx, asked) })
}

// Limit is Update for hooks, which are not asked and not told. It doesn't wait
// for a container that is being created.
func (s *Service) Limit(ctx context.Context, id string, limits *runtimeapi.LinuxContainerResources) error {
	b, err := s.get(id)
	if err != nil {
		return err
	}
	if !b.status().State.Live() {
		return limited{b}.fixed(b.status().State)
	}
	return s.await(ctx, b, "updated", func() error { return limited{b}.set(limits) })
}

// limited is a container whose limits are to be changed.
type limited struct{ *box }

func (b limited) fixed(in containerstate.State) error {
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q (%s) is %s: its limits can't be changed", b.name(), pod.Short(b.id), in))
}

// update asks the hooks while nobody waits for the container's turn, so that
// they can change others meanwhile.
func (b limited) update(ctx context.Context, asked *runtimeapi.LinuxContainerResources) error {
	hooks := b.s.cfg.Hooks
	if hooks == nil {
		return b.set(asked)
	}
	if !b.status().State.Live() {
		return b.fixed(b.status().State)
	}
	b.updating.Lock()
	defer b.updating.Unlock()
	ctx = trace.Follow(b.s.closing, ctx)
	want, err := hooks.Update(ctx, b.status(), asked)
	if err != nil {
		return fmt.Errorf("container %q: %w", b.name(), err)
	}
	if err := b.set(want); err != nil {
		return err
	}
	return hooks.Tell(ctx, AfterUpdate, b.status())
}

func (b limited) set(asked *runtimeapi.LinuxContainerResources) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.rec.State != containerstate.Created && b.rec.State != containerstate.Running || b.rec.Exit != nil {
		return b.fixed(b.rec.State)
	}
	want := b.status().ResourcesWith(asked)
	limits, notes, err := spec.Resources(b.name(), want, b.s.cfg.Host)
	if err != nil {
		return err
	}
	for _, note := range notes {
		teller(b).log().Info("container: " + note)
	}
	ctx, cancel := context.WithTimeout(b.s.closing, actionTimeout)
	defer cancel()
	if err := b.s.cfg.Limiter.Update(ctx, b.id, limits); err != nil {
		return fmt.Errorf("container %q: change limits: %w", b.name(), err)
	}
	b.rec.Resources = want
	err = b.s.records.Put(b.id, b.rec)
	b.publish()
	return err
}

// ResourcesWith are the container's limits with what asked says. Lists are
// replaced as a whole.
func (s Status) ResourcesWith(asked *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if has := s.Resources(); has != nil {
		out = proto.CloneOf(has)
	}
	if len(asked.GetHugepageLimits()) > 0 {
		out.HugepageLimits = nil
	}
	proto.Merge(out, asked)
	return out
}

// Resources are the container's limits as they are now.
func (s Status) Resources() *runtimeapi.LinuxContainerResources {
	if s.record.Resources != nil {
		return s.record.Resources
	}
	return s.Config.GetLinux().GetResources()
}

// Cgroup is the container's own, below the one of its sandbox unless it was
// created elsewhere.
func (s Status) Cgroup(sandbox string) string {
	if s.record.Cgroup != "" {
		return s.record.Cgroup
	}
	return pod.ContainerCgroup(sandbox, s.ID)
}

// Mounts are those of its config, with the images that were found for theirs.
func (s Status) Mounts() []*runtimeapi.Mount {
	mounts := s.Config.GetMounts()
	if len(s.record.Volumes) == 0 {
		return mounts
	}
	out := make([]*runtimeapi.Mount, len(mounts))
	for i, m := range mounts {
		out[i] = m
		if id := s.record.Volumes[m.GetContainerPath()]; id != "" && m.GetImage() != nil {
			out[i] = proto.CloneOf(m)
			out[i].Image.ImageRef = id
		}
	}
	return out
}

// Signal is the one that asks it to end, as CRI has it.
func (s Status) Signal() runtimeapi.Signal {
	return criSignalOf(stopSignal(s.Config, s.record.StopSignal))
}

// Layer is the directory of a container's writable layer.
func (s *Service) Layer(id string) string { return filepath.Join(s.cfg.Root, "containers", id) }

// Spec is the runtime spec of a container that hasn't ended, nil of another.
func (s *Service) Spec(id string) json.RawMessage {
	content, err := os.ReadFile(filepath.Join(s.cfg.State, "containers", id, "config.json"))
	if err != nil || !pod.ValidID(id) {
		return nil
	}
	return content
}
