package api

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/image"
)

func TestWaitsFor(t *testing.T) {
	t.Parallel()
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "setup"}, {Name: "proxy", RestartPolicy: &always}},
		Containers:     []corev1.Container{{Name: "web"}, {Name: "log"}},
	}}
	type c = podplan.ContainerStatus
	creating := func(name string) c { return c{Name: name, State: podplan.Waiting, Reason: "ContainerCreating"} }
	waiting := func(name, reason, message string) c {
		return c{Name: name, Image: "r/" + name, State: podplan.Waiting, Reason: reason, Message: message}
	}
	running := func(name string, up, ready bool) c {
		return c{Name: name, State: podplan.Running, Up: up, Ready: ready, Message: "connection refused"}
	}
	for _, x := range []struct {
		name, want string
		status     podplan.Status
		pulls      []image.Progress
	}{
		{"ready", "", podplan.Status{Phase: podplan.PhaseRunning, Ready: true}, nil},
		{"ended", "", podplan.Status{Phase: podplan.PhaseFailed}, nil},
		{"too large", "room on the node", podplan.Status{Phase: podplan.PhasePending, Reason: "OutOfcpu", Containers: []c{creating("web")}}, nil},
		{"port", "a host port that is in use", podplan.Status{Phase: podplan.PhasePending, Reason: podplan.ReasonPort, Containers: []c{creating("web")}}, nil},
		{"sandbox and pull", "its sandbox and network; image r/web, which is being pulled", podplan.Status{Phase: podplan.PhasePending, Containers: []c{creating("web")}},
			[]image.Progress{{Ref: "r/web"}}},
		{"start", "the start of container web", podplan.Status{Phase: podplan.PhasePending, SandboxReady: true, Initialized: true, Containers: []c{creating("web")}}, nil},
		{"images", "image r/web of container web; the next start of container log", podplan.Status{Phase: podplan.PhasePending, SandboxReady: true, Initialized: true,
			Containers: []c{waiting("web", "ImagePullBackOff", "no such image"), waiting("log", "CrashLoopBackOff", "back-off")}}, nil},
		{"volume", "container web: volume v: no claim", podplan.Status{Phase: podplan.PhasePending, SandboxReady: true, Initialized: true,
			Containers: []c{waiting("web", "ContainerCreating", "volume v: no claim")}}, nil},
		{"init", "the end of init container setup", podplan.Status{Phase: podplan.PhasePending, SandboxReady: true,
			Containers: []c{{Name: "setup", Init: true, State: podplan.Running, Up: true}, creating("web")}}, nil},
		{"sidecar", "the startup probe of container proxy: connection refused", podplan.Status{Phase: podplan.PhasePending, SandboxReady: true,
			Containers: []c{{Name: "setup", Init: true, State: podplan.Terminated}, {Name: "proxy", Init: true, State: podplan.Running, Message: "connection refused"}, creating("web")}}, nil},
		{"probes", "the readiness probe of container web: connection refused; the startup probe of container log: connection refused",
			podplan.Status{Phase: podplan.PhaseRunning, SandboxReady: true, Initialized: true, Containers: []c{running("web", true, false), running("log", false, false)}}, nil},
	} {
		got := strings.Join(waitsFor(agent.Pod{Manifest: pod, Want: podplan.Run, Status: x.status, Pulls: x.pulls}), "; ")
		if got != x.want {
			t.Errorf("%s: %q, want %q", x.name, got, x.want)
		}
	}
}
