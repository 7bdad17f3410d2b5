package event

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
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

func TestDiff(t *testing.T) {
	t.Parallel()
	at := time.Unix(1, 0)
	of := func(phase podplan.Phase, c ...podplan.ContainerStatus) podplan.Status {
		return podplan.Status{Phase: phase, Containers: c}
	}
	waiting := podplan.ContainerStatus{Name: "a", State: podplan.Waiting, Reason: "ContainerCreating"}
	running := podplan.ContainerStatus{Name: "a", ID: "1", State: podplan.Running, Ready: true}
	unready := podplan.ContainerStatus{Name: "a", ID: "1", State: podplan.Running}
	again := podplan.ContainerStatus{Name: "a", ID: "2", State: podplan.Running, Restarts: 1}
	hooking := podplan.ContainerStatus{Name: "a", ID: "1", State: podplan.Waiting, Reason: "ContainerCreating"}
	hookFailed := podplan.ContainerStatus{Name: "a", ID: "1", State: podplan.Waiting, Reason: "PostStartHookError", Message: "postStart hook failed: why"}
	crash := podplan.ContainerStatus{Name: "a", ID: "1", State: podplan.Waiting, Reason: "CrashLoopBackOff", Message: "back-off 10s", Finished: at, ExitCode: 3}
	pull := func(reason string) podplan.Status {
		return of(podplan.PhasePending, podplan.ContainerStatus{Name: "a", Image: "x", State: podplan.Waiting, Reason: reason, Message: "why"})
	}
	ended := podplan.ContainerStatus{Name: "a", ID: "1", State: podplan.Terminated, Reason: "Completed", Finished: at}
	lost := podplan.Status{Phase: podplan.PhasePending, Reason: "CreatePodSandboxError", Message: "no address", Containers: []podplan.ContainerStatus{waiting}}
	step := func(delay string) podplan.Status {
		return of(podplan.PhasePending, podplan.ContainerStatus{Name: "a", Image: "x", State: podplan.Waiting, Reason: "ImagePullBackOff", Message: "back-off " + delay})
	}
	up := of(podplan.PhaseRunning, running)
	up.IPs = []string{"10.0.0.1", "fd00::1"}
	for _, c := range []struct {
		before, after podplan.Status
		want          string
	}{
		{podplan.Status{}, of(podplan.PhasePending, waiting), ""},
		{of(podplan.PhasePending, waiting), lost, "! FailedCreatePodSandBox: Failed to create pod sandbox: no address"},
		{lost, lost, ""},
		{of(podplan.PhasePending, waiting), pull("ErrImagePull"), "!a Failed: Failed to pull image \"x\": why\n!a Failed: Error: ErrImagePull"},
		{pull("ErrImagePull"), pull("ImagePullBackOff"), "-a BackOff: Back-off pulling image \"x\"\n!a Failed: Error: ImagePullBackOff"},
		{step("10s"), step("20s"), "-a BackOff: Back-off pulling image \"x\"\n!a Failed: Error: ImagePullBackOff"}, // which counts up
		{of(podplan.PhasePending, waiting), pull("ErrImageNeverPull"), "!a ErrImageNeverPull: Container image \"x\" is not present with pull policy of Never\n!a Failed: Error: ErrImageNeverPull"},
		{of(podplan.PhasePending, waiting), pull("InvalidImageName"), "!a InspectFailed: why\n!a Failed: Error: InvalidImageName"},
		{of(podplan.PhasePending, waiting), pull("ImageInspectError"), "!a InspectFailed: why\n!a Failed: Error: ImageInspectError"},
		{of(podplan.PhasePending, waiting), pull("ContainerCreating"), ""},
		{of(podplan.PhasePending, waiting), pull("PodInitializing"), ""},
		{of(podplan.PhasePending, waiting), pull("CreateContainerConfigError"), "!a Failed: Error: why"},
		{of(podplan.PhasePending, waiting), up, "- SandboxReady: its addresses are 10.0.0.1, fd00::1\n-a Started: Container started"},
		{up, up, ""},
		{up, of(podplan.PhaseRunning, unready), "!a Unready: is no longer ready"},
		{of(podplan.PhaseRunning, unready), up, "- SandboxReady: its addresses are 10.0.0.1, fd00::1\n-a Ready: is ready"},
		{of(podplan.PhaseRunning, running), of(podplan.PhaseRunning, again), "-a Started: Container started"},
		{of(podplan.PhasePending, waiting), of(podplan.PhaseRunning, hooking), "-a Started: Container started"},
		{of(podplan.PhaseRunning, hooking), of(podplan.PhaseRunning, hookFailed), ""},
		{of(podplan.PhasePending, waiting), of(podplan.PhaseSucceeded, ended), "-a Started: Container started\n-a Ended: ended with exit code 0\n- PodSucceeded: the pod has ended"},
		{of(podplan.PhaseRunning, running), of(podplan.PhaseRunning, crash), "!a Ended: ended with exit code 3\n!a BackOff: Back-off restarting failed container a in pod p_default(uid)"},
		{of(podplan.PhaseRunning, crash), of(podplan.PhaseRunning, crash), ""},
		{of(podplan.PhaseRunning, running), of(podplan.PhaseSucceeded, ended), "-a Ended: ended with exit code 0\n- PodSucceeded: the pod has ended"},
		{of(podplan.PhaseRunning, ended), of(podplan.PhaseStopped, ended), "- PodStopped: the pod is stopped"},
		{up, podplan.Status{Phase: podplan.PhaseFailed, Reason: "DeadlineExceeded", Message: "too long"}, "- DeadlineExceeded: too long"},
	} {
		if got := show(Diff("default/p", "uid", c.before, c.after)); got != c.want {
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
	for i := range Max + 10 {
		l.Add(Event{Pod: fmt.Sprint(i)})
	}
	if events, _, _ = l.After(0); len(events) != Max || events[0].Pod != "10" {
		t.Errorf("%d events, the first is %+v", len(events), events[0])
	}
}
