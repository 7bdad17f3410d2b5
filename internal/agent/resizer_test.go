package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// requesting returns a pod of that name, which is its UID too, with these requests. Its image
// doesn't exist.
func requesting(t *testing.T, name, requests string) *corev1.Pod {
	t.Helper()
	return podFrom(t, fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, uid: %s}\nspec: {hostNetwork: true, hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never, resources: {requests: {%s}}}]}\n", name, name, requests))
}

// A resize that doesn't fit is held, also through a restart, until it fits. It comes before pods
// that wait to start.
func TestHeldResize(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	a, b := requesting(t, "a", "cpu: 1"), requesting(t, "b", "cpu: 500m")
	h.Declare(fromAPI(a, b))
	h.waitFor("a", "waiting for its image", imageMissing)
	h.waitFor("b", "waiting for its image", imageMissing)
	cpu := func(p Pod) string { return p.Manifest.Spec.Containers[0].Resources.Requests.Cpu().String() }
	held := func(reason string) {
		t.Helper()
		h.waitFor("b", reason, func(p Pod) bool { return p.Resize.Held == reason && cpu(p) == "500m" })
	}
	bigger := requesting(t, "b", "cpu: 1500m")
	bigger.Labels = map[string]string{"v": "2"}
	h.Declare(fromAPI(a, bigger))
	held(corev1.PodReasonDeferred)
	if p, _ := h.Get("b"); p.Manifest.Labels["v"] != "2" {
		t.Error("the label was held too")
	}
	h.restart()
	held(corev1.PodReasonDeferred)
	h.Declare(fromAPI(a, requesting(t, "b", "cpu: 64")))
	held(corev1.PodReasonInfeasible)
	h.Declare(fromAPI(a, requesting(t, "b", "cpu: 500m"))) // take the resize back
	held("")
	h.Declare(fromAPI(a, bigger))
	held(corev1.PodReasonDeferred)
	h.apply(requesting(t, "late", "cpu: 1"))
	h.waitFor("late", "waiting for capacity", func(p Pod) bool { return p.Status.Reason == "OutOfcpu" })
	h.Declare(fromAPI(requesting(t, "a", "cpu: 400m"), bigger))
	h.waitFor("b", "resized", func(p Pod) bool { return p.Resize == Resize{} && cpu(p) == "1500m" })
	h.waitFor("late", "waiting for capacity", func(p Pod) bool { return p.Status.Reason == "OutOfcpu" })
	h.Declare(fromAPI(requesting(t, "a", "cpu: 400m")))
	h.waitFor("late", "started", imageMissing)
	var reasons []string
	events, _, _ := h.Events.After(0)
	for _, e := range events {
		if e.Pod == "default/b" && strings.HasPrefix(e.Reason, "Resize") {
			reasons = append(reasons, e.Reason)
		}
	}
	if got := strings.Join(reasons, " "); !strings.Contains(got, "ResizeDeferred") || !strings.Contains(got, "ResizeInfeasible") || !strings.HasSuffix(got, "ResizeStarted ResizeCompleted") {
		t.Errorf("the events are %s", got)
	}
}

// Held resizes are tried by priority, the highest first.
func TestOrderOfResizes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	pod := func(name, cpu string, priority int32) *corev1.Pod {
		p := requesting(t, name, "cpu: "+cpu)
		p.Spec.Priority = &priority
		return p
	}
	h.Declare(fromAPI(pod("a", "1", 0), pod("low", "200m", 1), pod("high", "200m", 2)))
	for _, uid := range []string{"a", "low", "high"} {
		h.waitFor(uid, "waiting for its image", imageMissing)
	}
	h.Declare(fromAPI(pod("a", "1", 0), pod("low", "1500m", 1), pod("high", "1500m", 2)))
	for _, uid := range []string{"low", "high"} {
		h.waitFor(uid, "deferred", func(p Pod) bool { return p.Resize.Held == corev1.PodReasonDeferred })
	}
	h.Declare(fromAPI(pod("low", "1500m", 1), pod("high", "1500m", 2)))
	h.waitFor("high", "resized", func(p Pod) bool { return p.Resize.Held == "" })
	h.waitFor("low", "deferred", func(p Pod) bool { return p.Resize.Held == corev1.PodReasonDeferred })
}

// A container restarts only for resources for which its resizePolicy says so.
func TestResizeRestarts(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  restartPolicy: Always\n  containers:\n  - {name: c, image: i, resources: {limits: {cpu: 100m, memory: 64Mi}}, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}, {resourceName: cpu, restartPolicy: NotRequired}]}\n"
	for name, c := range map[string]struct {
		from, to string
		memory   int64
		want     bool
	}{
		"its memory request": {"limits: {cpu", "requests: {memory: 16Mi}, limits: {cpu", 64 << 20, true},
		"nothing":            {"", "", 64 << 20, false},
		"its memory":         {"", "", 32 << 20, true},
		"its processor":      {"100m", "200m", 64 << 20, false},
		"never restarted":    {"Always", "Never", 32 << 20, false},
		"both restart":       {"NotRequired", "RestartContainer", 64 << 20, true}, // the run started without a quota
		"no restart":         {"RestartContainer}, {resourceName: cpu", "NotRequired}, {resourceName: cpu", 32 << 20, false},
	} {
		pod := podFrom(t, strings.Replace(text, c.from, c.to, 1))
		run := container.Status{Config: &runtimeapi.ContainerConfig{Annotations: map[string]string{criconfig.AnnotationMemoryRequest: "67108864"}, Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: c.memory}}}}
		if got := resizeRestarts(pod, &pod.Spec.Containers[0], run); got != c.want {
			t.Errorf("%s: restarts: %t, want %t", name, got, c.want)
		}
	}
}

// A limit below the memory in use is refused, unless it isn't lower than the former one.
func TestMemoryInUse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	pod := podFrom(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, image: i, resources: {limits: {memory: 1Mi}}}]}\n")
	sb := sandbox.Status{ID: "s", State: sandboxstate.Ready, Config: &runtimeapi.PodSandboxConfig{}}
	run := container.Status{ID: "r", Sandbox: "s", Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}}}
	for _, c := range []struct {
		used, limit uint64
		want        string
	}{
		{1 << 20, 0, "pod default/a: new memory limit (1048576) below current usage (1048576)\ncontainer c: new memory limit (1048576) below current usage (1048576)"},
		{1 << 20, 2 << 20, "pod default/a: new memory limit (1048576) below current usage (1048576)\ncontainer c: new memory limit (1048576) below current usage (1048576)"},
		{1 << 20, 1 << 20, ""},
		{1<<20 - 1, 2 << 20, ""},
	} {
		h.cfg.Memory = func(string) (uint64, uint64) { return c.used, c.limit }
		s := &podState{a: h.Agent, manifest: pod, rec: record{Pod: pod}}
		r := resizer{podState: s, tasks: &retrier{podState: s}}
		limits := map[string]*runtimeapi.LinuxContainerResources{"r": criconfig.Resources(pod, &pod.Spec.Containers[0], criconfig.Node{})}
		err := r.checkMemory(pod, []sandbox.Status{sb}, []container.Status{run}, limits)
		if got := fmt.Sprint(err); err == nil && c.want != "" || err != nil && got != c.want {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// A new resize doesn't wait for the backoff of the one that it replaces.
func TestRetrierHurry(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	s := &podState{a: h.Agent, manifest: parse(t, "a", ""), wake: make(chan struct{}, 1)}
	r := &retrier{podState: s, running: map[string]bool{}, failures: map[string]int{}, waiting: map[string]func() bool{}}
	failed := make(chan struct{})
	s.mu.Lock()
	r.hurry("x")
	r.failures["x"] = 10 // the next wait is long
	r.run("x", func(context.Context) error { close(failed); return errors.New("no") })
	s.mu.Unlock()
	<-failed
	<-s.wake // it waits now
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.hurry("x"); r.running["x"] || r.failures["x"] != 0 {
		t.Errorf("running %v, failures %v", r.running, r.failures)
	}
}
