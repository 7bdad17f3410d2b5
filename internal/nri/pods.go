package nri

import (
	"context"

	"github.com/containerd/nri/pkg/api"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/nri/adjust"
	"github.com/huskd/husk/internal/sandbox"
)

// Pods returns the hooks for sandboxes.
func (r *Relay) Pods() sandbox.Hooks { return pods{r} }

type pods struct{ *Relay }

// Update asks plugins whether a pod's limits may be changed.
func (p pods) Update(ctx context.Context, st sandbox.Status, limits, overhead *runtimeapi.LinuxContainerResources) error {
	defer p.blockSync()()
	if p.noPlugins() {
		return nil
	}
	_, err := p.plugins.UpdatePodSandbox(ctx, &api.UpdatePodSandboxRequest{
		Pod: p.objects.pod(st), LinuxResources: adjust.FromCRI(limits), OverheadLinuxResources: adjust.FromCRI(overhead),
	})
	return refusal(err)
}

// Tell notifies plugins of an event.
func (p pods) Tell(ctx context.Context, e sandbox.Event, st sandbox.Status) error {
	defer p.blockSync()()
	switch e {
	case sandbox.BeforeReady:
		p.announced.add(st.ID)
		if p.noPlugins() {
			return nil
		}
		return refusal(p.plugins.RunPodSandbox(ctx, &api.RunPodSandboxRequest{Pod: p.objects.pod(st)}))
	case sandbox.AfterUpdate:
		if !p.noPlugins() {
			p.logFailure(string(e), st.ID, p.plugins.PostUpdatePodSandbox(ctx, &api.PostUpdatePodSandboxRequest{Pod: p.objects.pod(st)}))
		}
	case sandbox.AfterKill:
		p.stop(ctx, st)
	case sandbox.BeforeRemove:
		p.stop(ctx, st) // after a reboot there was no AfterKill
		if p.announced.forget(st.ID) && !p.noPlugins() {
			p.logFailure(string(e), st.ID, p.plugins.RemovePodSandbox(ctx, &api.RemovePodSandboxRequest{Pod: p.objects.pod(st)}))
		}
	}
	return nil
}

func (p pods) stop(ctx context.Context, st sandbox.Status) {
	if p.announced.markStopped(st.ID) && !p.noPlugins() {
		p.logFailure(string(sandbox.AfterKill), st.ID, p.plugins.StopPodSandbox(ctx, &api.StopPodSandboxRequest{Pod: p.objects.pod(st)}))
	}
}
