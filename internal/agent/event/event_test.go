package event

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/agent/plan"
)

func show(events []Event) string {
	var out []string
	for _, e := range events {
		kind := "-"
		if e.Warning {
			kind = "!"
		}
		out = append(out, fmt.Sprintf("%s%s %s: %s", kind, e.Container, e.Reason, e.Message))
	}
	return strings.Join(out, "\n")
}

func TestBetween(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	of := func(phase plan.Phase, c ...plan.ContainerStatus) plan.Status {
		return plan.Status{Phase: phase, Containers: c}
	}
	waiting := plan.ContainerStatus{Name: "a", State: plan.Waiting, Reason: "ContainerCreating"}
	running := plan.ContainerStatus{Name: "a", ID: "1", State: plan.Running, Ready: true}
	unready := plan.ContainerStatus{Name: "a", ID: "1", State: plan.Running}
	again := plan.ContainerStatus{Name: "a", ID: "2", State: plan.Running, Restarts: 1, Finished: at, ExitCode: 3}
	crash := plan.ContainerStatus{Name: "a", ID: "1", State: plan.Waiting, Reason: "CrashLoopBackOff", Message: "back-off 10s", Finished: at, ExitCode: 3}
	ended := plan.ContainerStatus{Name: "a", ID: "1", State: plan.Terminated, Reason: "Completed", Finished: at}
	lost := plan.Status{Phase: plan.PhasePending, Reason: "CreatePodSandboxError", Message: "no address", Containers: []plan.ContainerStatus{waiting}}
	up := of(plan.PhaseRunning, running)
	up.IPs = []string{"10.0.0.1", "fd00::1"}
	for _, c := range []struct {
		before, after plan.Status
		want          string
	}{
		{plan.Status{}, of(plan.PhasePending, waiting), ""},
		{of(plan.PhasePending, waiting), lost, "! CreatePodSandboxError: no address"},
		{lost, lost, ""},
		{of(plan.PhasePending, waiting), up, "- SandboxReady: its addresses are 10.0.0.1, fd00::1\n-a Started: run 1 has started"},
		{up, up, ""},
		{up, of(plan.PhaseRunning, unready), "!a Unready: is not ready any more"},
		{of(plan.PhaseRunning, unready), up, "- SandboxReady: its addresses are 10.0.0.1, fd00::1\n-a Ready: is ready"},
		{of(plan.PhaseRunning, running), of(plan.PhaseRunning, again), "!a Ended: ended with exit code 3\n-a Started: run 2 has started"},
		{of(plan.PhaseRunning, running), of(plan.PhaseRunning, crash), "!a Ended: ended with exit code 3\n!a CrashLoopBackOff: back-off 10s"},
		{of(plan.PhaseRunning, crash), of(plan.PhaseRunning, crash), ""},
		{of(plan.PhaseRunning, running), of(plan.PhaseSucceeded, ended), "-a Ended: ended with exit code 0\n- Succeeded: the pod has ended"},
		{of(plan.PhaseRunning, ended), of(plan.PhaseStopped, ended), "- Stopped: the pod is stopped"},
	} {
		if got := show(Between("default/p", c.before, c.after)); got != c.want {
			t.Errorf("from %+v\nto %+v\ngot\n%s\nwant\n%s", c.before, c.after, got, c.want)
		}
	}
}

func TestLog(t *testing.T) {
	t.Parallel()
	l := NewLog()
	_, _, newer := l.After(0)
	l.Add(Event{Pod: "default/p", Reason: "A"})
	<-newer
	l.Add(Event{Pod: "default/p", Reason: "B"})
	events, mark, newer := l.After(0)
	if show(events) != "- A: \n- B: " {
		t.Errorf("%s", show(events))
	}
	l.Add(Event{Pod: "default/p", Reason: "A"})
	<-newer
	events, mark, _ = l.After(mark)
	if len(events) != 1 || events[0].Count != 2 || events[0].Reason != "A" || events[0].Last.Before(events[0].First) {
		t.Errorf("%+v", events)
	}
	if events, _, _ = l.After(mark); len(events) != 0 {
		t.Errorf("%+v", events)
	}
	for i := range kept + 10 {
		l.Add(Event{Pod: fmt.Sprint(i)})
	}
	if events, _, _ = l.After(0); len(events) != kept || events[0].Pod != "10" {
		t.Errorf("%d events are kept, the first is %+v", len(events), events[0])
	}
}
