package systemapi

import (
	"testing"
	"time"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// TestCounts: a pod of the agent counts once, whatever its sandboxes, and pods of CRI count too.
func TestCounts(t *testing.T) {
	own := agent.Pod{Sandboxes: []sandbox.Status{{ID: "new"}, {ID: "old"}}}
	own.Status.Phase = podplan.PhaseRunning
	ended := agent.Pod{}
	ended.Status.Phase = podplan.PhaseSucceeded
	all := []sandbox.Status{{ID: "new", State: sandboxstate.Ready}, {ID: "old"}, {ID: "cri", State: sandboxstate.Ready}, {ID: "gone", State: sandboxstate.Stopped}}
	if c := countPods([]agent.Pod{own, ended}, all); c.Running != 2 || c.Total != 4 {
		t.Errorf("pods: %v", c)
	}
	now := time.Now()
	if c := countContainers([]container.Status{{Started: now}, {Started: now, Finished: true}, {}}); c.Running != 1 || c.Total != 3 {
		t.Errorf("containers: %v", c)
	}
}

func TestFilesystem(t *testing.T) {
	if got := filesystem("/dev/shm"); got != "tmpfs" {
		t.Errorf("/dev/shm is on %q", got)
	}
	if got := filesystem("/no/such/directory"); got != "" {
		t.Errorf("a missing directory is on %q", got)
	}
}
