package agent

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/sandbox"
)

// prober probes the containers of a pod and runs their hooks.
type prober struct {
	*podState
	hasProbes bool
	postStart map[string]string // why the postStart hook failed, by container ID
}

func hasProbes(pod *corev1.Pod) bool {
	for c := range podspec.Containers(&pod.Spec) {
		if probe.HasProbes(c) {
			return true
		}
	}
	return false
}

// watch probes the containers that should be running, but for those that skip names. stopping
// reports whether a container is being stopped. The caller holds mu.
func (p *prober) watch(seen snapshot, skip map[string]bool, stopping func(id string) bool) {
	if !p.hasProbes {
		return
	}
	var runs []probe.Run
	for _, st := range seen.containers {
		c := criconfig.FindContainer(p.manifest, st.Name())
		if c == nil || !probe.HasProbes(c) || st.Started.IsZero() || skip[st.Name()] {
			continue
		}
		i := slices.IndexFunc(seen.sandboxes, func(s sandbox.Status) bool { return s.ID == st.Sandbox })
		runs = append(runs, probe.Run{
			Target: p.target(c, st.ID, seen.sandboxes[i]), Started: st.Started,
			Stopping: p.spec().Want != podplan.Run || stopping(st.ID),
			Ended:    view.ContainerState(st) != podplan.ContainerRunning || view.SandboxState(seen.sandboxes[i]) != podplan.SandboxReady,
		})
	}
	p.a.probes.Watch(p.uid(), runs, probe.Watcher{Changed: p.nudge, Failed: func(t probe.Target, message string) {
		p.warningEvent(t.Container.Name, "Unhealthy", message)
	}, Warned: func(t probe.Target, message string) {
		p.warningEvent(t.Container.Name, "ProbeWarning", message)
	}})
}

// target returns where a container's probes and hooks reach it.
func (p *prober) target(c *corev1.Container, id string, st sandbox.Status) probe.Target {
	t := probe.Target{ID: id, Container: c, Address: "127.0.0.1"}
	if ips := p.a.addresses(st); len(ips) > 0 {
		t.Address = ips[0]
	}
	return t
}

// health returns the results of a container's probes and postStart hook. The caller holds mu.
func (p *prober) health(id string) podplan.Health {
	var h podplan.Health
	if p.hasProbes {
		h = p.a.probes.Health(p.uid(), id)
	}
	if message, failed := p.postStart[id]; failed {
		h.PostStart, h.Message = podplan.Failing, message
	}
	return h
}

// runPostStart runs the postStart hook of a container that has just started, if it has one.
func (p *prober) runPostStart(ctx context.Context, id string, c *corev1.Container) {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return
	}
	if err := p.runHook(ctx, id, c, c.Lifecycle.PostStart); err != nil {
		p.warningEvent(c.Name, "FailedPostStartHook", err.Error())
		p.a.cfg.Log.Warn("agent: a postStart hook failed", "pod", p.name(), "container", c.Name, "error", err)
		p.mu.Lock()
		p.postStart[id] = fmt.Sprintf("postStart hook failed: %v", err)
		p.mu.Unlock()
	}
}

// runHook runs a hook of a container. Cancellation or the container's end is not a failure.
func (p *prober) runHook(ctx context.Context, id string, c *corev1.Container, h *corev1.LifecycleHandler) error {
	st, err := p.a.cfg.Containers.Get(id)
	if err != nil {
		return nil //nolint:nilerr // the container has ended and was removed
	}
	sb, err := p.a.cfg.Sandboxes.Get(st.Sandbox)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if ended, err := p.a.cfg.Containers.Ended(id); err == nil {
		go func() {
			select {
			case <-ended:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	err = probe.NewExec(p.a.cfg.Containers.Exec).Hook(ctx, p.target(c, id, sb), h)
	if st, gone := p.a.cfg.Containers.Get(id); gone != nil || view.ContainerState(st) != podplan.ContainerRunning || ctx.Err() != nil {
		return nil
	}
	return err
}
