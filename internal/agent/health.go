package agent

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sandbox"
)

// care is what a worker does for the containers that run: their probes and hooks.
type care struct{ *worker }

func probed(pod *corev1.Pod) bool {
	is := func(c corev1.Container) bool { return probe.HasProbes(&c) }
	return slices.ContainsFunc(pod.Spec.InitContainers, is) || slices.ContainsFunc(pod.Spec.Containers, is)
}

// watch has the containers probed that run and are to. The caller holds w.mu.
func (w care) watch(sandboxes []sandbox.Status, containers []container.Status) {
	if !w.probed {
		return
	}
	var runs []probe.Run
	for _, st := range containers {
		c := criconfig.FindContainer(w.manifest, st.Name())
		if c == nil || !probe.HasProbes(c) || st.Started.IsZero() || w.underWay.starting[st.Name()] || w.spec().Want != podplan.Run {
			continue
		}
		i := slices.IndexFunc(sandboxes, func(s sandbox.Status) bool { return s.ID == st.Sandbox })
		_, stopping := w.underWay.deadlines[st.ID]
		runs = append(runs, probe.Run{
			Target: w.target(c, st.ID, sandboxes[i]), Started: st.Started,
			Ended: stopping || view.Container(st) != podplan.ContainerRunning || view.Sandbox(sandboxes[i]) != podplan.SandboxReady,
		})
	}
	w.a.probes.Watch(string(w.manifest.UID), runs, probe.Watcher{Changed: w.nudge, Failed: func(t probe.Target, message string) {
		w.tell(true, t.Container.Name, "Unhealthy", message)
	}})
}

// target is where a run of a container is reached: in the node's network if it
// is there that its servers listen.
func (w care) target(c *corev1.Container, id string, st sandbox.Status) probe.Target {
	t := probe.Target{ID: id, Container: c, Address: "127.0.0.1"}
	if ips := w.a.addresses(st); len(ips) > 0 {
		t.Address = ips[0]
	}
	return t
}

// health is what is known of a run. The caller holds w.mu.
func (w care) health(id string) podplan.Health {
	var h podplan.Health
	if w.probed {
		h = w.a.probes.Health(string(w.manifest.UID), id)
	}
	if message, failed := w.seen.postStart[id]; failed {
		h.PostStart, h.Message = podplan.Failing, message
	}
	return h
}

// untilEnd returns a context that ends with the container too.
func (w care) untilEnd(ctx context.Context, id string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	if ended, err := w.a.cfg.Containers.Ended(id); err == nil {
		go func() {
			select {
			case <-ended:
				cancel()
			case <-ctx.Done():
			}
		}()
	}
	return ctx, cancel
}

// hook runs a hook of a run. One that ended because ctx or the run did has not
// failed.
func (w care) hook(ctx context.Context, id string, c *corev1.Container, h *corev1.LifecycleHandler) error {
	st, err := w.a.cfg.Containers.Get(id)
	if err != nil {
		return nil //nolint:nilerr // it has ended, and is gone
	}
	sb, err := w.a.cfg.Sandboxes.Get(st.Sandbox)
	if err != nil {
		return nil //nolint:nilerr // as above
	}
	ctx, cancel := w.untilEnd(ctx, id)
	defer cancel()
	err = probe.NewExec(w.a.cfg.Containers.Exec).Hook(ctx, w.target(c, id, sb), h)
	if st, gone := w.a.cfg.Containers.Get(id); gone != nil || view.Container(st) != podplan.ContainerRunning || ctx.Err() != nil {
		return nil
	}
	return err
}

// postStart runs the hook of a container that was just started.
func (w care) postStart(ctx context.Context, id string, c *corev1.Container) {
	if c.Lifecycle == nil || c.Lifecycle.PostStart == nil {
		return
	}
	if err := w.hook(ctx, id, c, c.Lifecycle.PostStart); err != nil {
		w.tell(true, c.Name, "FailedPostStartHook", err.Error())
		w.a.cfg.Log.Warn("agent: postStart hook", "pod", nameOf(w.manifest), "container", c.Name, "error", err)
		w.mu.Lock()
		w.seen.postStart[id] = fmt.Sprintf("postStart hook failed: %v", err)
		w.mu.Unlock()
	}
}
