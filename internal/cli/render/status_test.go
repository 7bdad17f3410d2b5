package render

import (
	"testing"
	"time"

	huskv1 "github.com/huskd/husk/api/v1"
)

func TestStatus(t *testing.T) {
	t.Parallel()
	type c = huskv1.Container
	up := &c{State: "Running", Ready: true}
	unready := &c{State: "Running"}
	creating := &c{State: "Waiting", Reason: "ContainerCreating"}
	done := &c{State: "Terminated", Reason: "Completed"}
	failed := &c{State: "Terminated", Reason: "Error", ExitCode: 1}
	initDone := &c{Init: true, State: "Terminated", Reason: "Completed"}
	initUp := &c{Init: true, State: "Running"}
	initWaits := &c{Init: true, State: "Waiting", Reason: "PodInitializing"}
	sidecar := &c{Init: true, Sidecar: true, State: "Running", Ready: true}
	appWaits := &c{State: "Waiting", Reason: "PodInitializing"}

	for name, x := range map[string]struct {
		phase, reason string
		containers    []*c
		word, ready   string
		style         Style
	}{
		"nothing yet":            {"Pending", "", nil, "Pending", "0/0", Soon},
		"creating":               {"Pending", "", []*c{creating}, "ContainerCreating", "0/1", Soon},
		"waiting for no reason":  {"Pending", "", []*c{{State: "Waiting"}}, "Pending", "0/1", Soon},
		"running":                {"Running", "", []*c{up}, "Running", "1/1", Good},
		"not ready":              {"Running", "", []*c{up, unready}, "Running", "1/2", Soon},
		"image can't be pulled":  {"Pending", "", []*c{{State: "Waiting", Reason: "ImagePullBackOff"}}, "ImagePullBackOff", "0/1", Bad},
		"first one speaks":       {"Running", "", []*c{{State: "Waiting", Reason: "CrashLoopBackOff"}, {State: "Waiting", Reason: "ErrImagePull"}}, "CrashLoopBackOff", "0/2", Bad},
		"one crashes":            {"Running", "", []*c{up, {State: "Waiting", Reason: "CrashLoopBackOff"}}, "CrashLoopBackOff", "1/2", Bad},
		"completed":              {"Succeeded", "", []*c{done}, "Completed", "0/1", Faint},
		"completed, no reason":   {"Succeeded", "", []*c{{State: "Terminated"}}, "Completed", "0/1", Faint},
		"partly completed":       {"Running", "", []*c{done, up}, "NotReady", "1/2", Soon},
		"failed":                 {"Failed", "", []*c{failed}, "Error", "0/1", Bad},
		"failed, no reason":      {"Failed", "", []*c{{State: "Terminated", ExitCode: 137}}, "ExitCode:137", "0/1", Bad},
		"out of memory":          {"Failed", "", []*c{{State: "Terminated", Reason: "OOMKilled", ExitCode: 137}}, "OOMKilled", "0/1", Bad},
		"out of cpu":             {"Pending", "OutOfcpu", []*c{initWaits, appWaits}, "OutOfcpu", "0/1", Bad},
		"evicted":                {"Failed", "Evicted", nil, "Evicted", "0/0", Bad},
		"terminating":            {"Running", "Terminating", []*c{up}, "Terminating", "1/1", Soon},
		"stopped":                {"Stopped", "", []*c{failed}, "Stopped", "0/1", Faint},
		"stopped while init":     {"Stopped", "", []*c{initWaits, appWaits}, "Stopped", "0/1", Faint},
		"first init":             {"Pending", "", []*c{initUp, initWaits, appWaits}, "Init:0/2", "0/1", Soon},
		"second init":            {"Pending", "", []*c{initDone, initUp, appWaits}, "Init:1/2", "0/1", Soon},
		"init waits":             {"Pending", "", []*c{initWaits, appWaits}, "Init:0/1", "0/1", Soon},
		"init crashes":           {"Pending", "", []*c{{Init: true, State: "Waiting", Reason: "CrashLoopBackOff"}, appWaits}, "Init:CrashLoopBackOff", "0/1", Bad},
		"init failed":            {"Failed", "", []*c{{Init: true, State: "Terminated", Reason: "Error", ExitCode: 1}, appWaits}, "Init:Error", "0/1", Bad},
		"init failed, no reason": {"Failed", "", []*c{{Init: true, State: "Terminated", ExitCode: 3}, appWaits}, "Init:ExitCode:3", "0/1", Bad},
		"init done":              {"Running", "", []*c{initDone, up}, "Running", "1/1", Good},
		"sidecar":                {"Running", "", []*c{sidecar, initDone, up}, "Running", "2/2", Good},
		"sidecar, then init":     {"Pending", "", []*c{sidecar, initUp, appWaits}, "Init:1/2", "1/2", Soon},
		"port in use":            {"Pending", "PortInUse", []*c{creating}, "PortInUse", "0/1", Bad},
		"port in use, init":      {"Pending", "PortInUse", []*c{initWaits, appWaits}, "PortInUse", "0/1", Bad},
		"volume of init":         {"Pending", "Init:FailedMount", []*c{initDone, initWaits, appWaits}, "Init:FailedMount", "0/1", Bad},
		"second one's image":     {"Pending", "", []*c{creating, {State: "Waiting", Reason: "ImagePullBackOff"}}, "ImagePullBackOff", "0/2", Bad},
		"sidecar crashes first":  {"Pending", "", []*c{{Init: true, Sidecar: true, State: "Waiting", Reason: "CrashLoopBackOff"}, appWaits}, "Init:CrashLoopBackOff", "0/2", Bad},
	} {
		s := StatusOf(&huskv1.Pod{Phase: x.phase, Reason: x.reason, Containers: x.containers})
		if s.Word != x.word || s.ReadyText() != x.ready || s.Style() != x.style {
			t.Errorf("%s: %s %s %q, want %s %s %q", name, s.Word, s.ReadyText(), s.Style(), x.word, x.ready, x.style)
		}
	}
}

func TestRestarts(t *testing.T) {
	t.Parallel()
	now := time.Unix(10_000, 0)
	before := func(d time.Duration) int64 { return now.Add(-d).UnixNano() }
	type c = huskv1.Container
	init := &c{Init: true, State: "Terminated", Reason: "Completed", Restarts: 7, FinishedNs: before(time.Hour)}
	for name, x := range map[string]struct {
		containers []*c
		want       string
	}{
		"none":              {[]*c{{State: "Running", Ready: true, StartedNs: before(time.Hour)}}, "0"},
		"some":              {[]*c{{State: "Running", Restarts: 3, StartedNs: before(5 * time.Minute)}}, "3 (5m ago)"},
		"latest counts":     {[]*c{{State: "Running", Restarts: 3, StartedNs: before(time.Hour)}, {State: "Waiting", Reason: "CrashLoopBackOff", Restarts: 2, StartedNs: before(time.Minute), FinishedNs: before(30 * time.Second)}}, "5 (30s ago)"},
		"unknown time":      {[]*c{{State: "Running", Restarts: 3}}, "3"},
		"of init container": {[]*c{{Init: true, State: "Waiting", Reason: "CrashLoopBackOff", Restarts: 4, FinishedNs: before(10 * time.Second)}, {State: "Waiting"}}, "4 (10s ago)"},
		"init completed":    {[]*c{init, {State: "Running", Restarts: 1, StartedNs: before(time.Second)}}, "1 (1s ago)"},
	} {
		s := StatusOf(&huskv1.Pod{Phase: "Running", Containers: x.containers})
		if got := s.RestartsText(now); got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
}

// TestStatusOfSidecars checks that the sidecars of an initialized pod don't decide its status. They
// are stopped when its containers have ended.
func TestStatusOfSidecars(t *testing.T) {
	t.Parallel()
	type c = huskv1.Container
	done := &c{State: "Terminated", Reason: "Completed", StartedNs: 1}
	killed := &c{Init: true, Sidecar: true, State: "Terminated", Reason: "Error", ExitCode: 137, StartedNs: 1}
	crashing := &c{Init: true, Sidecar: true, State: "Waiting", Reason: "CrashLoopBackOff", Restarts: 3}
	for name, x := range map[string]struct {
		phase       string
		containers  []*c
		word, ready string
	}{
		"completed": {"Succeeded", []*c{killed, done}, "Completed", "0/2"},
		"failed":    {"Failed", []*c{killed, {State: "Terminated", Reason: "Error", ExitCode: 1}}, "Error", "0/2"},
		"crashing":  {"Running", []*c{crashing, {State: "Running", Ready: true}}, "Running", "1/2"},
	} {
		s := StatusOf(&huskv1.Pod{Phase: x.phase, Initialized: true, Containers: x.containers})
		if s.Word != x.word || s.ReadyText() != x.ready {
			t.Errorf("%s: %s %s, want %s %s", name, s.Word, s.ReadyText(), x.word, x.ready)
		}
	}
}
