package nri

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/nri/adjust"
)

// Hooks returns the hooks for containers.
func (r *Relay) Hooks() container.Hooks { return containers{r} }

type containers struct{ *Relay }

// Create asks plugins for adjustments of a new container and applies them to spec.
func (c containers) Create(ctx context.Context, st container.Status, spec *specs.Spec) (*runtimeapi.LinuxContainerResources, error) {
	answer, err := c.create(ctx, st, spec)
	if answer == nil || err != nil {
		return nil, refusal(err)
	}
	// Change the others before creating this one: it may get what they give up. This is
	// after create has released the sync lock, as the others may be waiting for that.
	c.apply(ctx, answer.GetUpdate())
	result, err := adjust.Apply(c.cfg.Node, adjust.Subject{Name: st.Name(), Handler: st.Handler, With: st.ResourcesWith}, answer.GetAdjust(), spec)
	for _, note := range result.Notes {
		c.cfg.Log.Info("NRI: "+note, "container", st.ID, "name", st.Name())
	}
	if err != nil {
		return nil, fmt.Errorf("NRI: %w", err)
	}
	return result.Limits, nil
}

func (c containers) create(ctx context.Context, st container.Status, spec *specs.Spec) (*api.CreateContainerResponse, error) {
	defer c.blockSync()()
	c.announced.add(st.ID)
	if len(c.cfg.Required) > 0 && c.failed.Load() {
		return nil, fmt.Errorf("required plugins %q can't register: see huskd's log", c.cfg.Required)
	}
	if c.noPlugins() {
		return nil, nil
	}
	request := &api.CreateContainerRequest{Pod: c.objects.podOf(st), Container: fromSpec(st, spec)}
	answer, err := c.plugins.CreateContainer(ctx, request)
	if err == nil {
		markRemoved(answer.GetAdjust(), spec, request.GetContainer())
	}
	return answer, err
}

// markRemoved adds the removal of variables and devices to an adjustment. The adaptation
// (v0.12.5) drops removals that no plugin replaces by something else: they are visible only
// in is, the container that it passes to later plugins.
func markRemoved(a *api.ContainerAdjustment, was *specs.Spec, is *api.Container) {
	for _, variable := range was.Process.Env {
		name, _, _ := strings.Cut(variable, "=")
		if !slices.ContainsFunc(is.GetEnv(), func(has string) bool { return strings.HasPrefix(has, name+"=") }) {
			a.RemoveEnv(name)
		}
	}
	for _, device := range was.Linux.Devices {
		if !slices.ContainsFunc(is.GetLinux().GetDevices(), func(has *api.LinuxDevice) bool { return has.GetPath() == device.Path }) {
			a.RemoveDevice(device.Path)
		}
	}
}

// Update asks plugins to review a change of a container's limits, and returns the limits to
// set.
func (c containers) Update(ctx context.Context, st container.Status, requested *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, error) {
	answer, err := c.update(ctx, st, requested)
	if err != nil {
		return nil, refusal(err)
	}
	updates := answer.GetUpdate()
	if len(updates) == 0 {
		return requested, nil
	}
	own := updates[len(updates)-1] // nil if no plugin changes it
	c.apply(ctx, updates[:len(updates)-1])
	if own == nil {
		return requested, nil
	}
	limits, err := adjust.ToCRI(own.GetLinux().GetResources())
	if err != nil {
		return nil, fmt.Errorf("NRI: %w", err)
	}
	limits.OomScoreAdj = requested.GetOomScoreAdj()
	return limits, nil
}

func (c containers) update(ctx context.Context, st container.Status, requested *runtimeapi.LinuxContainerResources) (*api.UpdateContainerResponse, error) {
	defer c.blockSync()()
	if c.noPlugins() {
		return nil, nil
	}
	return c.plugins.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: c.objects.podOf(st), Container: c.objects.container(st), LinuxResources: adjust.FromCRI(requested)})
}

// Tell notifies plugins of an event.
func (c containers) Tell(ctx context.Context, e container.Event, st container.Status) error {
	defer c.blockSync()()
	switch e {
	case container.AfterStop:
		c.stop(ctx, st)
		return nil
	case container.BeforeRemove:
		c.stop(ctx, st)
		if c.announced.forget(st.ID) && !c.noPlugins() {
			c.logFailure(string(e), st.ID, c.plugins.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: c.objects.podOf(st), Container: c.objects.container(st)}))
		}
		return nil
	}
	if c.noPlugins() {
		return nil
	}
	pod, subject := c.objects.podOf(st), c.objects.container(st)
	switch e {
	case container.BeforeStart:
		return refusal(c.plugins.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: subject}))
	case container.AfterCreate:
		c.logFailure(string(e), st.ID, c.plugins.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: subject}))
	case container.AfterStart:
		c.logFailure(string(e), st.ID, c.plugins.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: subject}))
	case container.AfterUpdate:
		c.logFailure(string(e), st.ID, c.plugins.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: subject}))
	}
	return nil
}

func (c containers) stop(ctx context.Context, st container.Status) {
	if !c.announced.markStopped(st.ID) || c.noPlugins() {
		return
	}
	answer, err := c.plugins.StopContainer(ctx, &api.StopContainerRequest{Pod: c.objects.podOf(st), Container: c.objects.container(st)})
	c.logFailure(string(container.AfterStop), st.ID, err)
	c.start(answer.GetUpdate())
}
