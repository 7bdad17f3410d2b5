package container

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container/containerstate"
	"github.com/huskd/husk/internal/lifecycle/owner"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// Update changes the limits of a created or running container. The hooks can change the request. A
// field that is zero stays as it is.
func (s *Service) Update(ctx context.Context, id string, asked *runtimeapi.LinuxContainerResources) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	return e.Change(ctx, "updated", func() error { return e.update(ctx, asked) })
}

// Limit is Update for the hooks themselves, which it doesn't notify. It doesn't wait for a
// container that is being created.
func (s *Service) Limit(ctx context.Context, id string, limits *runtimeapi.LinuxContainerResources) error {
	e, err := s.find(id)
	if err != nil {
		return err
	}
	if state := e.Status().State; !state.Live() {
		return e.refuseUpdate(state)
	}
	return e.Change(ctx, "updated", func() error { return e.setLimits(limits) })
}

func (e *entry) refuseUpdate(in containerstate.State) error {
	return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s (%s) is %s: its limits can't be changed", e, pod.Short(e.ID), in))
}

// update asks the hooks without holding e.Mu, so that they can change other limits meanwhile.
func (e *entry) update(ctx context.Context, asked *runtimeapi.LinuxContainerResources) error {
	hooks := e.s.cfg.Hooks
	if hooks == nil {
		return e.setLimits(asked)
	}
	if state := e.Status().State; !state.Live() {
		return e.refuseUpdate(state)
	}
	e.updating.Lock()
	defer e.updating.Unlock()
	ctx = trace.Follow(e.s.entries.Closing(), ctx)
	want, err := hooks.Update(ctx, e.Status(), asked)
	if err != nil {
		return fmt.Errorf("%s: %w", e, err)
	}
	if err := e.setLimits(want); err != nil {
		return err
	}
	return hooks.Tell(ctx, AfterUpdate, e.Status())
}

func (e *entry) setLimits(asked *runtimeapi.LinuxContainerResources) error {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if e.Rec.State != containerstate.Created && e.Rec.State != containerstate.Running || e.Rec.Exit != nil {
		return e.refuseUpdate(e.Rec.State)
	}
	want := e.Status().ResourcesWith(asked)
	limits, notes, err := spec.Resources(e.name(), want, e.s.cfg.Host)
	if err != nil {
		return fmt.Errorf("%s: %w", e, err)
	}
	for _, note := range notes {
		e.Log().Info("container: " + note)
	}
	if limits.Memory != nil {
		// With cgroup v1 the kernel refuses a limit below the usage. With v2 it takes it, and
		// kills processes of the container until the rest fits.
		refuse := true
		limits.Memory.CheckBeforeUpdate = &refuse
	}
	ctx, cancel := context.WithTimeout(e.s.entries.Closing(), owner.ActionTimeout)
	defer cancel()
	if err := e.s.cfg.Sessions.Update(ctx, e.ID, limits); err != nil {
		return fmt.Errorf("%s: change limits: %w", e, err)
	}
	e.Rec.Resources = want
	return e.Save()
}

// ResourcesWith returns the container's limits, changed as asked says. Lists are replaced as a
// whole.
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

// Resources returns the container's current limits.
func (s Status) Resources() *runtimeapi.LinuxContainerResources {
	if s.record.Resources != nil {
		return s.record.Resources
	}
	return s.Config.GetLinux().GetResources()
}

// Cgroup returns the path of the container's cgroup. It is below that of its sandbox, unless the
// hooks have chosen another.
func (s Status) Cgroup(sandbox string) string {
	if s.record.Cgroup != "" {
		return s.record.Cgroup
	}
	return pod.ContainerCgroup(sandbox, s.ID)
}

// Mounts returns the mounts of the config, with the IDs of the images that were found for them.
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
			// By image, the kubelet recognizes the images that its garbage collection must keep.
			out[i].Image.Image, out[i].Image.ImageRef = id, id
		}
	}
	return out
}

// Signal returns the stop signal in CRI's terms.
func (s Status) Signal() runtimeapi.Signal {
	return criSignalOf(stopSignal(s.Config, s.record.StopSignal))
}

// Layer returns the directory of a container's writable layer.
func (s *Service) Layer(id string) string { return filepath.Join(s.cfg.Root, "containers", id) }

// Spec returns the runtime spec of a container that hasn't ended, with its current limits, or nil.
func (s *Service) Spec(id string) json.RawMessage {
	content, err := os.ReadFile(filepath.Join(s.cfg.State, "containers", id, "config.json"))
	if err != nil || !pod.ValidID(id) {
		return nil
	}
	st, err := s.Get(id)
	if err != nil || st.record.Resources == nil {
		return content
	}
	limits, _, err := spec.Resources(st.Name(), st.record.Resources, s.cfg.Host)
	if err != nil {
		return content
	}
	return withLimits(content, limits)
}

// withLimits returns a runtime spec with the limits in place of those that the container was
// created with. Those that can't be changed stay.
func withLimits(content json.RawMessage, limits *specs.LinuxResources) json.RawMessage {
	var out specs.Spec
	if err := json.Unmarshal(content, &out); err != nil || out.Linux == nil || out.Linux.Resources == nil {
		return content
	}
	r := out.Linux.Resources
	r.CPU, r.Memory = cmp.Or(limits.CPU, r.CPU), cmp.Or(limits.Memory, r.Memory)
	if limits.HugepageLimits != nil {
		r.HugepageLimits = limits.HugepageLimits
	}
	if r.Unified == nil {
		r.Unified = limits.Unified
	} else {
		maps.Copy(r.Unified, limits.Unified)
	}
	updated, err := json.Marshal(out)
	if err != nil {
		return content
	}
	return updated
}
