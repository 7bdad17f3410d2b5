package agent

import (
	"cmp"
	"slices"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/sandbox"
)

// inventory knows the sandboxes of a pod and the containers in them.
type inventory struct {
	*podState
	ids []string // of the sandboxes
}

// snapshot is what exists of a pod at one moment, newest first.
type snapshot struct {
	sandboxes  []sandbox.Status
	containers []container.Status
}

// occupied reports whether a sandbox may still use the node's resources.
func (s snapshot) occupied() bool {
	return slices.ContainsFunc(s.sandboxes, func(st sandbox.Status) bool { return view.SandboxState(st) != podplan.SandboxStopped })
}

// add adds a sandbox, whose changes nudge the worker from now on. The caller holds mu.
func (i *inventory) add(id string) {
	i.a.owner.Store(id, i.podState)
	i.ids = append(i.ids, id)
}

// list returns what exists, and forgets the sandboxes that don't. The caller holds mu.
func (i *inventory) list() snapshot {
	var out snapshot
	i.ids = slices.DeleteFunc(i.ids, func(id string) bool {
		st, err := i.a.cfg.Sandboxes.Get(id)
		if err != nil {
			i.a.owner.Delete(id)
			return true
		}
		out.sandboxes = append(out.sandboxes, st)
		out.containers = append(i.a.cfg.Containers.List(id), out.containers...)
		return false
	})
	slices.SortFunc(out.sandboxes, func(x, y sandbox.Status) int { return cmp.Compare(attempt(y), attempt(x)) })
	slices.SortStableFunc(out.containers, func(x, y container.Status) int {
		return cmp.Compare(y.Config.GetMetadata().GetAttempt(), x.Config.GetMetadata().GetAttempt())
	})
	return out
}

// nextAttempt returns the attempt number of the next sandbox. The caller holds mu.
func (i *inventory) nextAttempt() uint32 {
	if seen := i.list(); len(seen.sandboxes) > 0 {
		return attempt(seen.sandboxes[0]) + 1
	}
	return 0
}

func attempt(st sandbox.Status) uint32 { return st.Config.GetMetadata().GetAttempt() }

// addresses returns the IP addresses of a sandbox: the node's if it uses the node's network.
func (a *Agent) addresses(st sandbox.Status) []string {
	return view.Addresses(st, func() []string { return a.cfg.Node().IPs })
}
