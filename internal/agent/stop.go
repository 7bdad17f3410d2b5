package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// preStop is a hook before a container's stop.
type preStop struct {
	// cut ends it when the grace is over.
	cut *time.Timer
	// done says that it has ended, kill that the container then gets no grace.
	done, kill bool
}

// stopContainer begins to stop a container, or hurries the stop. The caller
// holds w.mu.
func (w care) stopContainer(do podplan.StopContainer) {
	if h := w.health(do.ID); h.MustStop() && w.underWay.deadlines[do.ID].IsZero() {
		w.tell(true, w.nameOf(do.ID), "Killing", h.Message+": it is stopped")
		w.a.cfg.Log.Warn("agent: stopping a container", "pod", nameOf(w.manifest), "id", do.ID, "because", h.Message)
	}
	w.underWay.deadlines[do.ID] = time.Now().Add(do.Grace)
	hook := w.underWay.preStops[do.ID]
	c, handler := w.preStopOf(do.ID)
	switch {
	case hook != nil && !hook.done:
		hook.kill = do.Grace == 0
		hook.cut.Reset(do.Grace)
	case hook == nil && handler != nil && do.Grace > 0:
		ctx, cancel := context.WithCancel(w.a.closing)
		hook = &preStop{cut: time.AfterFunc(do.Grace, cancel)}
		w.underWay.preStops[do.ID] = hook
		w.a.background.Go(func() {
			defer cancel()
			if err := w.hook(ctx, do.ID, c, handler); err != nil {
				w.tell(true, c.Name, "FailedPreStopHook", err.Error())
				w.a.cfg.Log.Warn("agent: preStop hook", "pod", nameOf(w.manifest), "container", c.Name, "error", err)
			}
			w.terminate(do.ID, w.afterHook(do.ID, hook))
		})
	default:
		w.a.background.Go(func() { w.terminate(do.ID, do.Grace) })
	}
}

// nameOf is the name of the container that a run is of.
func (w care) nameOf(id string) string {
	st, err := w.a.cfg.Containers.Get(id)
	if err != nil {
		return ""
	}
	return st.Name()
}

// preStopOf returns the hook of the container that a run is of, or nil.
func (w care) preStopOf(id string) (*corev1.Container, *corev1.LifecycleHandler) {
	st, err := w.a.cfg.Containers.Get(id)
	if err != nil || view.Container(st) != podplan.ContainerRunning {
		return nil, nil
	}
	if c := criconfig.FindContainer(w.manifest, st.Name()); c != nil && c.Lifecycle != nil {
		return c, c.Lifecycle.PreStop
	}
	return nil, nil
}

// afterHook returns what is left of the grace, which is never less than the
// floor: the hook may have used up all of it.
func (w care) afterHook(id string, hook *preStop) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	hook.cut.Stop()
	hook.done = true
	if hook.kill {
		return 0
	}
	grace := max(time.Until(w.underWay.deadlines[id]), podplan.MinGrace)
	w.underWay.deadlines[id] = time.Now().Add(grace)
	return grace
}

// terminate has a container end within the grace.
func (w care) terminate(id string, grace time.Duration) {
	err := w.a.cfg.Containers.Stop(w.a.closing, id, grace)
	w.ended(id, err, func() {
		delete(w.underWay.deadlines, id)
		delete(w.underWay.preStops, id)
	})
}
