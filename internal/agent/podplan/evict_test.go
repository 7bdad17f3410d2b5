package podplan

import (
	"testing"
	"time"
)

// TestEvicted checks that an evicted pod fails at once, whatever its containers do, and that their
// records are removed to free their disk space.
func TestEvicted(t *testing.T) {
	t.Parallel()
	evicted := func(s *Spec, _ *Observed) { s.Evicted = &Eviction{At: at(10), Message: "too much"} }
	for _, c := range []planCase{
		{name: "running", policy: "Never", containers: "a b", observed: "sb0 a.0:run b.0:exit=0@3", now: 10, change: evicted, actions: "stop:a.0/2s", status: "Running(Evicted) a=Running b=Terminated/Completed"},
		{name: "preempted, with its own grace period", policy: "Never", containers: "a", observed: "sb0 a.0:run", now: 10, change: func(s *Spec, _ *Observed) {
			s.Evicted = &Eviction{At: at(10), Reason: ReasonPreempting, Message: "critical"}
		}, actions: "stop:a.0/30s", status: "Running(Preempting) a=Running"},
		{name: "ended", policy: "Never", containers: "a", observed: "sb0 a.0:exit=137@12", now: 12, change: evicted, actions: "stop:sb0", status: "Failed(Evicted) a=Terminated/Error"},
		{name: "stopped", policy: "Never", containers: "a", observed: "sb0:stopped a.0:exit=137@12", now: 13, change: evicted, actions: "remove:a.0", status: "Failed(Evicted) a=Terminated/Error"},
		{name: "gone", policy: "Never", containers: "a", observed: "sb0:stopped", now: 14, change: evicted, status: "Failed(Evicted) a=Terminated/ContainerStatusUnknown"},
		{name: "decides again when it may be recreated", containers: "a", observed: "sb0:stopped", now: 14, change: evicted, next: 70, status: "Failed(Evicted) a=Terminated/ContainerStatusUnknown"},
		{name: "before it ran", policy: "Never", containers: "a", observed: "absent:a", now: 10, change: evicted, status: "Failed(Evicted) a=Terminated/ContainerStatusUnknown"},
		{name: "stopped by the user afterwards", policy: "Never", containers: "a", observed: "sb0:stopped", now: 30, change: func(s *Spec, o *Observed) {
			evicted(s, o)
			s.Want, s.Since = Stop, at(20)
		}, status: "Failed(Evicted) a=Terminated/ContainerStatusUnknown"},
		{name: "removed", policy: "Never", containers: "a", observed: "sb0:stopped", now: 30, change: func(s *Spec, o *Observed) {
			evicted(s, o)
			s.Want, s.Since = Remove, at(20)
		}, actions: "remove:sb0"},
	} {
		c.check(t)
	}
	s := makeSpec(t, "Never", "a")
	s.Evicted = &Eviction{At: at(10), Message: "too much"}
	if got := Plan(s, observe(t, s.Pod, "sb0:stopped"), at(20).Add(time.Second)).Status; got.Message != "too much" || got.Containers[0].ExitCode != 137 {
		t.Errorf("%+v", got)
	}
}
