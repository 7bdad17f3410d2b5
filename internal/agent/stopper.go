package agent

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// stopper stops the containers of a pod, after their preStop hooks.
type stopper struct {
	*podState
	prober    *prober
	tasks     *retrier
	deadlines map[string]time.Time // when each container being stopped is killed, by ID
	hooks     map[string]*preStop  // of containers being stopped, by ID
}

// preStop is the hook of a container that is being stopped.
type preStop struct {
	timer *time.Timer // cancels the hook when the grace is over
	done  bool
	kill  bool // the container gets no grace after the hook
}

func (s *stopper) stopping(id string) bool {
	_, ok := s.deadlines[id]
	return ok
}

// stop starts to stop a container, or shortens the grace of a stop that is under way. The caller
// holds mu.
func (s *stopper) stop(do podplan.StopContainer) {
	st, _ := s.a.cfg.Containers.Get(do.ID) // the zero value if it is gone
	h := s.prober.health(do.ID)
	if !s.stopping(do.ID) && st.ID != "" {
		s.normalEvent(st.Name(), "Killing", s.killingText(st, h))
	}
	if h.MustStop() && !s.stopping(do.ID) {
		s.a.cfg.Log.Warn("agent: stopping a container", "pod", s.name(), "id", do.ID, "reason", h.Message)
	}
	s.deadlines[do.ID] = time.Now().Add(do.Grace)
	hook := s.hooks[do.ID]
	c, handler := s.preStopOf(st)
	switch {
	case hook != nil && !hook.done:
		hook.kill = do.Grace == 0
		hook.timer.Reset(do.Grace)
	case hook == nil && handler != nil && do.Grace > 0:
		ctx, cancel := context.WithCancel(s.a.closing)
		hook = &preStop{timer: time.AfterFunc(do.Grace, cancel)}
		s.hooks[do.ID] = hook
		s.a.background.Go(func() {
			defer cancel()
			if err := s.prober.runHook(ctx, do.ID, c, handler); err != nil {
				s.warningEvent(c.Name, "FailedPreStopHook", err.Error())
				s.a.cfg.Log.Warn("agent: a preStop hook failed", "pod", s.name(), "container", c.Name, "error", err)
			}
			s.terminate(do.ID, s.graceAfter(hook, do.ID))
		})
	default:
		s.a.background.Go(func() { s.terminate(do.ID, do.Grace) })
	}
}

// killingText returns the message of the event of a stop. The caller holds mu.
func (s *stopper) killingText(st container.Status, h podplan.Health) string {
	why := ""
	switch {
	case s.spec().Want != podplan.Run:
	case h.PostStart == podplan.Failing:
		why = "failed its postStart hook"
	case h.Liveness == podplan.Failing:
		why = "failed liveness probe"
	case h.Startup == podplan.Failing:
		why = "failed startup probe"
	case outdated(s.rec.Pod, st):
		why = "definition changed"
	}
	switch {
	case why == "":
		return "Stopping container " + st.Name()
	case s.rec.Pod.Spec.RestartPolicy == corev1.RestartPolicyNever:
		return "Container " + st.Name() + " " + why
	}
	return "Container " + st.Name() + " " + why + ", will be restarted"
}

// preStopOf returns the preStop hook of a running container, or nil.
func (s *stopper) preStopOf(st container.Status) (*corev1.Container, *corev1.LifecycleHandler) {
	c := criconfig.FindContainer(s.manifest, st.Name())
	if c == nil || c.Lifecycle == nil || view.ContainerState(st) != podplan.ContainerRunning {
		return nil, nil
	}
	return c, c.Lifecycle.PreStop
}

// graceAfter returns what a hook has left of the grace, but at least podplan.MinGrace: the hook may
// have used up all of it.
func (s *stopper) graceAfter(hook *preStop, id string) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	hook.timer.Stop()
	hook.done = true
	if hook.kill {
		return 0
	}
	grace := max(time.Until(s.deadlines[id]), podplan.MinGrace)
	s.deadlines[id] = time.Now().Add(grace)
	return grace
}

func (s *stopper) terminate(id string, grace time.Duration) {
	err := s.a.cfg.Containers.Stop(s.a.closing, id, grace)
	s.tasks.finish(id, err, func() {
		delete(s.deadlines, id)
		delete(s.hooks, id)
	})
}
