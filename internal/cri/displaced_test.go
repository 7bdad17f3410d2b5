package cri

import (
	"fmt"
	"testing"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// TestDisplaced: a sandbox with an address that another node has isn't ready any more once it must
// be replaced, and an event tells that to a kubelet, whose PLEG may depend on events.
func TestDisplaced(t *testing.T) {
	for _, c := range []struct {
		displaced pod.Displacement
		ready     bool
		events    string
	}{
		{pod.Displacement{}, true, "[CONTAINER_CREATED_EVENT CONTAINER_STARTED_EVENT]"},
		{pod.Displacement{Message: "its address is another's"}, true, "[]"},
		{pod.Displacement{Message: "its address is another's", Replace: true}, false, "[CONTAINER_STOPPED_EVENT]"},
	} {
		st := sandbox.Status{ID: "a", Config: &runtimeapi.PodSandboxConfig{}, State: sandboxstate.Ready, Displaced: c.displaced}
		if got := sandboxState(st) == runtimeapi.PodSandboxState_SANDBOX_READY; got != c.ready {
			t.Errorf("%+v: ready %v, want %v", c.displaced, got, c.ready)
		}
		var e Events
		s, unsubscribe := e.subscribe()
		e.Sandbox(st)
		unsubscribe()
		close(s.queue)
		var kinds []runtimeapi.ContainerEventType
		for next := range s.queue {
			kinds = append(kinds, next.kind)
		}
		if got := fmt.Sprint(kinds); got != c.events {
			t.Errorf("%+v: events %s, want %s", c.displaced, got, c.events)
		}
	}
}
