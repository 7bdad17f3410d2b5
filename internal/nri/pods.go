package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/nri/adjust"
	"github.com/huskd/husk/internal/sandbox"
)

// Pods are the hooks of sandboxes.
func (r *Relay) Pods() sandbox.Hooks { return pods{r} }

type pods struct{ *Relay }

// Update asks whether a pod's limits may be changed.
func (p pods) Update(ctx context.Context, st sandbox.Status, limits, overhead *runtimeapi.LinuxContainerResources) error {
	defer p.pass()()
	if p.none() {
		return nil
	}
	_, err := p.plugins.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
		Pod: p.pod(st), LinuxResources: adjust.FromCRI(limits), OverheadLinuxResources: adjust.FromCRI(overhead),
	})
	return refused(err)
}

// Tell tells of an event.
func (p pods) Tell(ctx context.Context, e sandbox.Event, st sandbox.Status) error {
	defer p.pass()()
	switch e {
	case sandbox.BeforeReady:
		p.meet(st.ID)
		if p.none() {
			return nil
		}
		return refused(p.plugins.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p.pod(st)}))
	case sandbox.AfterUpdate:
		if !p.none() {
			p.after(string(e), st.ID, p.plugins.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: p.pod(st)}))
		}
	case sandbox.AfterKill:
		p.stop(ctx, st)
	case sandbox.BeforeRemove:
		p.stop(ctx, st) // after a restart of the host it was not killed
		if p.leaving(st.ID) && !p.none() {
			p.after(string(e), st.ID, p.plugins.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: p.pod(st)}))
		}
	}
	return nil
}

func (p pods) stop(ctx context.Context, st sandbox.Status) {
	if p.stopping(st.ID) && !p.none() {
		p.after(string(sandbox.AfterKill), st.ID, p.plugins.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: p.pod(st)}))
	}
}
