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

	"github.com/huskd/husk/internal/container/lifecycle"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
)

// Update changes the limits of a created or running container. A field that is
// zero stays as it is.
func (s *Service) Update(ctx context.Context, id string, asked *runtimeapi.LinuxContainerResources) error {
	b, err := s.get(id)
	if err != nil {
		return err
	}
	return s.await(ctx, b, "updated", func() error { return b.update(asked) })
}

func (b *box) update(asked *runtimeapi.LinuxContainerResources) error {
	b.turn.Lock()
	defer b.turn.Unlock()
	if b.rec.State != lifecycle.Created && b.rec.State != lifecycle.Running || b.rec.Exit != nil {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %q (%s) is %s: its limits can't be changed", b.name(), pod.Short(b.id), b.rec.State))
	}
	want := changed(b.status().Resources(), asked)
	limits, notes, err := spec.Resources(b.name(), want, b.s.cfg.Host)
	if err != nil {
		return err
	}
	for _, note := range notes {
		b.s.cfg.Log.Info("container: "+note, "container", b.id, "name", b.name())
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

// changed returns has with what asked says. Lists are replaced as a whole.
func changed(has, asked *runtimeapi.LinuxContainerResources) *runtimeapi.LinuxContainerResources {
	out := &runtimeapi.LinuxContainerResources{}
	if has != nil {
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
