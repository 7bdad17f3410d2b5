package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/container"
)

func TestRoomToResize(t *testing.T) {
	t.Parallel()
	r := &room{}
	for _, name := range []string{"a", "b"} {
		r.take(asking(t, name, "cpu: 800m, memory: 256Mi"), twoCPUs, false)
	}
	for _, c := range []struct {
		name, to, held string
		freed          bool
	}{
		{"a", "cpu: 1200m, memory: 256Mi", "", false},
		{"a", "cpu: 1300m, memory: 128Mi", "Deferred: the pod asks for 1300m of cpu; others have 800m of the node's 2: it is resized when there is room", false},
		{"a", "cpu: 2100m, memory: 256Mi", "Infeasible: the pod asks for 2100m of cpu; the node has 2: it stays as it is", false},
		{"a", "cpu: 100m, memory: 2Gi", "Infeasible: the pod asks for 2Gi of memory; the node has 1Gi: it stays as it is", false},
		{"b", "cpu: 800m, memory: 900Mi", "Deferred: the pod asks for 900Mi of memory; others have 256Mi", false},
		{"b", "cpu: 700m, memory: 256Mi", "", true},
		{"a", "cpu: 1300m, memory: 256Mi", "", false},
		{"a", "memory: 300Mi", "", true},
		{"b", "cpu: 2", "", true},
		{"new", "cpu: 50", "", false}, // it has no room yet
	} {
		held, freed := r.resize(asking(t, c.name, c.to), twoCPUs)
		if got := held.reason + ": " + held.message; !strings.HasPrefix(got, c.held) || c.held == "" && held.reason != "" || freed != c.freed {
			t.Errorf("%s to %s: %s, freed %t", c.name, c.to, got, freed)
		}
	}
	// What is there of more than the node has may become less.
	r.take(asking(t, "forced", "cpu: 4"), twoCPUs, true)
	if held, freed := r.resize(asking(t, "forced", "cpu: 3"), twoCPUs); held.reason != "" || !freed {
		t.Errorf("%+v, freed %t", held, freed)
	}
}

// A resize is held while there is no room for it, through a restart, and is done
// when there is; what waits to start comes after it.
func TestHeldResize(t *testing.T) {
	t.Parallel()
	h := open(t)
	a, b := asking(t, "a", "cpu: 1"), asking(t, "b", "cpu: 500m")
	h.Declare(bound(a, b))
	h.until("a", "waiting", waits)
	h.until("b", "waiting", waits)
	cpu := func(p Pod) string { return p.Manifest.Spec.Containers[0].Resources.Requests.Cpu().String() }
	held := func(reason string) {
		t.Helper()
		h.until("b", reason, func(p Pod) bool { return p.Resize.Held == reason && cpu(p) == "500m" })
	}
	bigger := asking(t, "b", "cpu: 1500m")
	bigger.Labels = map[string]string{"v": "2"}
	h.Declare(bound(a, bigger))
	held(corev1.PodReasonDeferred)
	if p, _ := h.Get("b"); p.Manifest.Labels["v"] != "2" {
		t.Error("what isn't held wasn't changed")
	}
	h.restart()
	held(corev1.PodReasonDeferred)
	h.Declare(bound(a, asking(t, "b", "cpu: 64")))
	held(corev1.PodReasonInfeasible)
	h.Declare(bound(a, asking(t, "b", "cpu: 500m"))) // never mind
	held("")
	h.Declare(bound(a, bigger))
	held(corev1.PodReasonDeferred)
	h.apply(asking(t, "late", "cpu: 1"))
	h.until("late", "without room", func(p Pod) bool { return p.Status.Reason == "OutOfcpu" })
	h.Declare(bound(asking(t, "a", "cpu: 400m"), bigger))
	h.until("b", "resized", func(p Pod) bool { return p.Resize == Resize{} && cpu(p) == "1500m" })
	h.until("late", "without room", func(p Pod) bool { return p.Status.Reason == "OutOfcpu" })
	h.Declare(bound(asking(t, "a", "cpu: 400m")))
	h.until("late", "started", waits)
	var told []string
	events, _, _ := h.Events.After(0)
	for _, e := range events {
		if e.Pod == "default/b" && strings.HasPrefix(e.Reason, "Resize") {
			told = append(told, e.Reason)
		}
	}
	if got := strings.Join(told, " "); !strings.Contains(got, "ResizeDeferred") || !strings.Contains(got, "ResizeInfeasible") || !strings.HasSuffix(got, "ResizeStarted ResizeCompleted") {
		t.Errorf("its events are %s", got)
	}
}

// Those of the highest priority and the better class are resized first.
func TestOrderOfResizes(t *testing.T) {
	t.Parallel()
	h := open(t)
	of := func(name, cpu string, priority int32) *corev1.Pod {
		p := asking(t, name, "cpu: "+cpu)
		p.Spec.Priority = &priority
		return p
	}
	h.Declare(bound(of("a", "1", 0), of("low", "200m", 1), of("high", "200m", 2)))
	for _, uid := range []string{"a", "low", "high"} {
		h.until(uid, "waiting", waits)
	}
	h.Declare(bound(of("a", "1", 0), of("low", "1500m", 1), of("high", "1500m", 2)))
	for _, uid := range []string{"low", "high"} {
		h.until(uid, "deferred", func(p Pod) bool { return p.Resize.Held == corev1.PodReasonDeferred })
	}
	h.Declare(bound(of("low", "1500m", 1), of("high", "1500m", 2)))
	h.until("high", "resized", func(p Pod) bool { return p.Resize.Held == "" })
	h.until("low", "deferred", func(p Pod) bool { return p.Resize.Held == corev1.PodReasonDeferred })
}

// A run makes way only for resources for which its container asks so.
func TestChangesOfResources(t *testing.T) {
	t.Parallel()
	const text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  restartPolicy: Always\n  containers:\n  - {name: c, image: i, resources: {limits: {cpu: 100m, memory: 64Mi}}, resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}, {resourceName: cpu, restartPolicy: NotRequired}]}\n"
	for name, c := range map[string]struct {
		from, to string
		memory   int64
		want     bool
	}{
		"nothing":             {"", "", 64 << 20, false},
		"its memory":          {"", "", 32 << 20, true},
		"its processor":       {"100m", "200m", 64 << 20, false},
		"is never started":    {"Always", "Never", 32 << 20, false},
		"both ask":            {"NotRequired", "RestartContainer", 64 << 20, true}, // the run began without a quota
		"asks for no restart": {"RestartContainer}, {resourceName: cpu", "NotRequired}, {resourceName: cpu", 32 << 20, false},
	} {
		pod := podFrom(t, strings.Replace(text, c.from, c.to, 1))
		run := container.Status{Config: &runtimeapi.ContainerConfig{Linux: &runtimeapi.LinuxContainerConfig{Resources: &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: c.memory}}}}
		if got := changes(pod, &pod.Spec.Containers[0], run); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
