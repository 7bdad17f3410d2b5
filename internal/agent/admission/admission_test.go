package admission

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// requesting returns a pod of that name, which is its UID too, with these requests.
func requesting(t *testing.T, name, requests string) *corev1.Pod {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s, uid: %s}\nspec: {containers: [{name: c, image: i, resources: {requests: {%s}}}]}\n", name, name, requests)
	file, err := manifest.Parse([]byte(text), manifest.Origin{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return &file.Pods[0]
}

func twoCPUs() criconfig.Node {
	return criconfig.Node{Allocatable: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2"), corev1.ResourceMemory: resource.MustParse("1Gi")}}
}

func TestAdmit(t *testing.T) {
	t.Parallel()
	l := NewLedger(twoCPUs)
	admit := func(p *corev1.Pod, force bool, want string) {
		t.Helper()
		r := l.Admit(p, force)
		if got := r.Reason + ": " + r.Message; want == "" && r.Reason != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", p.Name, got, want)
		}
	}
	a, b := requesting(t, "a", "cpu: 1500m, memory: 512Mi"), requesting(t, "b", "cpu: 600m")
	huge, nothing := requesting(t, "huge", "memory: 2Gi"), requesting(t, "nothing", "")
	admit(a, false, "")
	admit(a, false, "") // it is admitted already
	admit(b, false, "OutOfcpu: the pod requests 600m of cpu; other pods have 1500m of the node's 2: it starts when enough is free")
	admit(huge, false, "OutOfmemory: the pod requests 2Gi of memory, but the node has only 1Gi: request less")
	admit(nothing, false, "")
	if !l.Release("nothing") || !l.Release("a") || l.Release("a") {
		t.Error("Release doesn't report what it freed")
	}
	admit(b, false, "")
	admit(huge, true, "")
	admit(nothing, false, "")
	admit(a, false, "OutOfcpu: the pod requests 1500m")
}

// TestWaitingCritical: what a critical pod waits for is not given to others, until it is gone.
func TestWaitingCritical(t *testing.T) {
	t.Parallel()
	l := NewLedger(twoCPUs)
	critical := requesting(t, "critical", "cpu: 1")
	critical.Spec.Priority = new(int32(2_000_000_000))
	l.Admit(requesting(t, "a", "cpu: 1500m"), false)
	if r := l.Admit(critical, false); r.Reason != "OutOfcpu" {
		t.Errorf("%+v", r)
	}
	if r := l.Admit(requesting(t, "b", "cpu: 500m"), false); r.Reason != "OutOfcpu" {
		t.Errorf("another pod: %+v", r)
	}
	if !l.Release("critical") {
		t.Error("that a critical pod no longer waits frees nothing")
	}
	if r := l.Admit(requesting(t, "b", "cpu: 500m"), false); r.Reason != "" {
		t.Errorf("another pod: %+v", r)
	}
}

func TestResize(t *testing.T) {
	t.Parallel()
	l := NewLedger(twoCPUs)
	for _, name := range []string{"a", "b"} {
		l.Admit(requesting(t, name, "cpu: 800m, memory: 256Mi"), false)
	}
	for _, c := range []struct {
		name, to, refusal string
		freed             bool
	}{
		{"a", "cpu: 1200m, memory: 256Mi", "", false},
		{"a", "cpu: 1300m, memory: 128Mi", "Deferred: the pod requests 1300m of cpu; other pods have 800m of the node's 2: it is resized when enough is free", false},
		{"a", "cpu: 2100m, memory: 256Mi", "Infeasible: the pod requests 2100m of cpu; the node has 2: the pod is not resized", false},
		{"a", "cpu: 100m, memory: 2Gi", "Infeasible: the pod requests 2Gi of memory; the node has 1Gi: the pod is not resized", false},
		{"b", "cpu: 800m, memory: 900Mi", "Deferred: the pod requests 900Mi of memory; other pods have 256Mi", false},
		{"b", "cpu: 700m, memory: 256Mi", "", true},
		{"a", "cpu: 1300m, memory: 256Mi", "", false},
		{"a", "memory: 300Mi", "", true},
		{"b", "cpu: 2", "", true},
		{"new", "cpu: 50", "", false}, // it isn't admitted yet
	} {
		refusal, freed := l.Resize(requesting(t, c.name, c.to))
		if got := refusal.Reason + ": " + refusal.Message; !strings.HasPrefix(got, c.refusal) || c.refusal == "" && refusal.Reason != "" || freed != c.freed {
			t.Errorf("%s to %s: %s, freed %t", c.name, c.to, got, freed)
		}
	}
	// Requests beyond the node's capacity can still shrink.
	l.Admit(requesting(t, "forced", "cpu: 4"), true)
	if refusal, freed := l.Resize(requesting(t, "forced", "cpu: 3")); refusal.Reason != "" || !freed {
		t.Errorf("%+v, freed %t", refusal, freed)
	}
}
