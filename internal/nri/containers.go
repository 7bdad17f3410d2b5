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

// Hooks are those of containers.
func (r *Relay) Hooks() container.Hooks { return containers{r} }

type containers struct{ *Relay }

// Create asks for adjustments of a new container.
func (c containers) Create(ctx context.Context, st container.Status, spec *specs.Spec) (*runtimeapi.LinuxContainerResources, error) {
	answer, err := c.create(ctx, st, spec)
	if answer == nil || err != nil {
		return nil, refused(err)
	}
	// The others are changed before this one is created: it may get what they
	// give up. The door is open by then, as they may be waiting for it.
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
	defer c.pass()()
	c.meet(st.ID)
	if len(c.cfg.Required) > 0 && c.failed.Load() {
		return nil, fmt.Errorf("required plugins %q can't register: see huskd's log", c.cfg.Required)
	}
	if c.none() {
		return nil, nil
	}
	request := &api.CreateContainerRequest{Pod: c.podOf(st), Container: c.container(st, spec)}
	answer, err := c.plugins.CreateContainer(ctx, request)
	if err == nil {
		markRemoved(answer.GetAdjust(), spec, request.GetContainer())
	}
	return answer, err
}

// markRemoved adds to an adjustment what plugins want removed and nobody put
// something else in the place of: of variables and devices the adaptation
// (v0.12.5) tells the later plugins, in the container that it showed them, and
// not us.
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

// Update asks for another change of limits than the one that was asked for.
func (c containers) Update(ctx context.Context, st container.Status, asked *runtimeapi.LinuxContainerResources) (*runtimeapi.LinuxContainerResources, error) {
	answer, err := c.update(ctx, st, asked)
	if err != nil {
		return nil, refused(err)
	}
	updates := answer.GetUpdate()
	if len(updates) == 0 {
		return asked, nil
	}
	own := updates[len(updates)-1] // nil if the plugins had nothing to say on it
	c.apply(ctx, updates[:len(updates)-1])
	if own == nil {
		return asked, nil
	}
	limits, err := adjust.ToCRI(own.GetLinux().GetResources())
	if err != nil {
		return nil, fmt.Errorf("NRI: %w", err)
	}
	limits.OomScoreAdj = asked.GetOomScoreAdj()
	return limits, nil
}

func (c containers) update(ctx context.Context, st container.Status, asked *runtimeapi.LinuxContainerResources) (*api.UpdateContainerResponse, error) {
	defer c.pass()()
	if c.none() {
		return nil, nil
	}
	return c.plugins.UpdateContainer(ctx, &api.UpdateContainerRequest{Pod: c.podOf(st), Container: c.running(st), LinuxResources: adjust.FromCRI(asked)})
}

// Tell tells of an event.
func (c containers) Tell(ctx context.Context, e container.Event, st container.Status) error {
	defer c.pass()()
	switch e {
	case container.AfterStop:
		c.stop(ctx, st)
		return nil
	case container.BeforeRemove:
		c.stop(ctx, st)
		if c.leaving(st.ID) && !c.none() {
			c.after(string(e), st.ID, c.plugins.RemoveContainer(ctx, &api.RemoveContainerRequest{Pod: c.podOf(st), Container: c.running(st)}))
		}
		return nil
	}
	if c.none() {
		return nil
	}
	pod, subject := c.podOf(st), c.running(st)
	switch e {
	case container.BeforeStart:
		return refused(c.plugins.StartContainer(ctx, &api.StartContainerRequest{Pod: pod, Container: subject}))
	case container.AfterCreate:
		c.after(string(e), st.ID, c.plugins.PostCreateContainer(ctx, &api.PostCreateContainerRequest{Pod: pod, Container: subject}))
	case container.AfterStart:
		c.after(string(e), st.ID, c.plugins.PostStartContainer(ctx, &api.PostStartContainerRequest{Pod: pod, Container: subject}))
	case container.AfterUpdate:
		c.after(string(e), st.ID, c.plugins.PostUpdateContainer(ctx, &api.PostUpdateContainerRequest{Pod: pod, Container: subject}))
	}
	return nil
}

func (c containers) stop(ctx context.Context, st container.Status) {
	if !c.stopping(st.ID) || c.none() {
		return
	}
	answer, err := c.plugins.StopContainer(ctx, &api.StopContainerRequest{Pod: c.podOf(st), Container: c.running(st)})
	c.after(string(container.AfterStop), st.ID, err)
	c.begin(answer.GetUpdate())
}
