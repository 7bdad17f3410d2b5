package agent

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
)

// bound is a set of an API server's pods.
func bound(pods ...*corev1.Pod) source.Set {
	set := source.Set{Kind: source.API}
	for _, p := range pods {
		set.Pods = append(set.Pods, source.Pod{Pod: p, Location: "/" + p.Name})
	}
	return set
}

// A pod of an API server is the same as long as its UID is.
func TestFollowsAnAPIServer(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.Declare(bound(parse(t, "a", ", uid: a-1"), parse(t, "b", ", uid: b-1")))
	h.until("a-1", "waiting", waits)
	p, _ := h.Get("a-1")
	before, _ := p.Sandbox()
	changed := parse(t, "a", ", uid: a-1, labels: {v: '2'}")
	changed.Spec.Containers[0].Image = "reg.test/other:1"
	changed.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	h.Declare(bound(changed, parse(t, "b", ", uid: b-2")))
	h.goneFrom("b-1")
	h.until("b-2", "waiting", waits)
	p = h.until("a-1", "changed", func(p Pod) bool { return p.Status.Containers[0].Image == "reg.test/other:1" })
	if st, _ := p.Sandbox(); st.ID != before.ID || p.Manifest.Labels["v"] != "2" {
		t.Errorf("it was made anew: sandbox %s, labels %v", st.ID, p.Manifest.Labels)
	}
	// The change outlives huskd, and an outage of the server removes nothing.
	h.restart()
	if p, err := h.Get("a-1"); err != nil || p.Manifest.Labels["v"] != "2" {
		t.Errorf("after a restart: %v %v", p.Manifest, err)
	}
	h.Declare(source.Set{Kind: source.File})
	if h.names() == "" {
		t.Error("another source has removed it")
	}
	h.Declare(bound())
	h.goneFrom("a-1")
	h.goneFrom("b-2")
}

// One that is being deleted is stopped, and stays until the server has it no
// longer. Its grace only shrinks.
func TestEnding(t *testing.T) {
	t.Parallel()
	h := open(t)
	h.Declare(bound(parse(t, "a", ", uid: a-1")))
	h.until("a-1", "waiting", waits)
	ending := func(seconds int) source.Set {
		set := bound(parse(t, "a", ", uid: a-1"))
		grace := time.Duration(seconds) * time.Second
		set.Pods[0].DeletionGrace = &grace
		return set
	}
	h.Declare(ending(30))
	h.until("a-1", "stopped", func(p Pod) bool { return p.Settled && p.Want == podplan.Stop })
	h.restart()
	h.Declare(ending(60))
	w, err := h.worker("a-1")
	if err != nil {
		t.Fatal(err)
	}
	if grace := w.record().Grace; grace == nil || *grace != 30*time.Second {
		t.Errorf("its grace is %v", grace)
	}
	h.Declare(ending(1))
	if grace := w.record().Grace; *grace != time.Second {
		t.Errorf("its grace is %v", grace)
	}
	// One that never ran here is not begun.
	set := ending(1)
	never := parse(t, "b", ", uid: b-1")
	set.Pods = append(set.Pods, source.Pod{Pod: never, Location: "/b", DeletionGrace: set.Pods[0].DeletionGrace})
	h.Declare(set)
	if h.names() != "a" {
		t.Errorf("there is %q", h.names())
	}
	h.Declare(bound())
	h.goneFrom("a-1")
}

// What happens to a pod is told to whoever wants to know.
func TestChangedIsTold(t *testing.T) {
	t.Parallel()
	h := open(t)
	told := make(chan string, 1000)
	h.cfg.Changed = func(uid string) { told <- uid }
	h.Declare(bound(parse(t, "a", ", uid: a-1")))
	select {
	case uid := <-told:
		if uid != "a-1" {
			t.Errorf("pod %s has changed", uid)
		}
	case <-h.ctx().Done():
		t.Fatal("nothing is told")
	}
	h.until("a-1", "waiting", waits)
}
