package agent

import (
	"testing"

	"github.com/huskd/husk/internal/agent/podplan"
)

// TestPreemptForDeclared: a critical pod that was declared on the node makes pods of the API server
// leave, one that isn't critical waits.
func TestPreemptForDeclared(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Declare(fromAPI(requesting(t, "a", "cpu: 500m"), requesting(t, "b", "cpu: 1")))
	for _, uid := range []string{"a", "b"} {
		h.waitFor(uid, "waiting for its image", imageMissing)
	}
	h.apply(requesting(t, "waits", "cpu: 1"))
	h.waitFor("waits", "waiting for capacity", func(p Pod) bool { return p.Status.Reason == "OutOfcpu" })
	critical := requesting(t, "critical", "cpu: 1")
	critical.Spec.PriorityClassName = "system-node-critical"
	h.apply(critical)
	h.waitFor("critical", "started", imageMissing)
	a := h.waitFor("a", "preempted", func(p Pod) bool { return p.Finished && p.Status.Phase == podplan.PhaseFailed })
	if a.Status.Reason != podplan.ReasonPreempting {
		t.Errorf("a is %+v", a.Status)
	}
	if b, err := h.Get("b"); err != nil || !imageMissing(b) { // a is enough, and smaller
		t.Errorf("b is %+v, %v", b.Status, err)
	}
}
