package podplan

import (
	"slices"
	"time"
)

// MinGrace is the minimum grace period of a container, unless the pod's is 0. It matters for
// sidecars, which are stopped when little of the pod's grace period is left.
const MinGrace = 2 * time.Second

// stopAll stops the containers, then the sandboxes, and reports whether all of them are stopped.
// The grace period covers the whole pod and counts from since.
func (p *planner) stopAll(since time.Time) bool {
	var left []Container
	for _, c := range p.o.Containers {
		if live(c) {
			left = append(left, c)
		}
	}
	if len(left) > 0 {
		p.stopInOrder(left, func(c Container) { p.stop(c, since) })
		return false
	}
	if p.o.Creating || len(p.o.Starting) > 0 {
		return false
	}
	stopped := true
	for _, s := range p.o.Sandboxes {
		if s.State == SandboxStopped {
			continue
		}
		stopped = false
		if s.State != SandboxStopping {
			p.do(StopSandbox{s.ID})
		}
	}
	return stopped
}

// stopInOrder stops all containers except sidecars together. Once only sidecars are left, it stops
// them one by one in reverse start order.
func (p *planner) stopInOrder(left []Container, stop func(Container)) {
	var sidecars []string
	for _, c := range p.allContainers() {
		if c.init && !c.runsToCompletion {
			sidecars = append(sidecars, c.name)
		}
	}
	position := func(name string) int {
		if i := slices.Index(sidecars, name); i >= 0 {
			return i
		}
		return len(sidecars)
	}
	last := 0
	for _, c := range left {
		last = max(last, position(c.Name))
	}
	for name := range p.o.Starting {
		last = max(last, position(name))
	}
	for _, c := range left {
		if position(c.Name) == last {
			stop(c)
		}
	}
}

// stop stops a container within the grace period, which counts from since. If a stop is in
// progress, it can only be shortened.
func (p *planner) stop(c Container, since time.Time) { p.stopWithin(c, since, p.grace()) }

func (p *planner) stopWithin(c Container, since time.Time, grace time.Duration) {
	if grace > 0 {
		grace = max(p.clampToNow(since).Add(grace).Sub(p.now), MinGrace)
	}
	deadline := p.now.Add(grace)
	if !c.Deadline.IsZero() && !deadline.Before(c.Deadline.Add(-time.Second)) {
		p.wakeAt(c.Deadline)
		return
	}
	p.do(StopContainer{c.ID, grace})
}

func (p *planner) grace() time.Duration {
	if p.Want != Run && p.Grace != nil {
		return max(*p.Grace, 0)
	}
	own := time.Duration(*p.Pod.Spec.TerminationGracePeriodSeconds) * time.Second
	if p.Evicted != nil && p.Evicted.Reason != ReasonPreempting {
		return min(own, MinGrace)
	}
	return own
}

// removeAll removes all records of a stopped pod: first the containers, then their sandboxes.
func (p *planner) removeAll() {
	p.removeContainers()
	if len(p.o.Containers) > 0 {
		return
	}
	for _, s := range p.o.Sandboxes {
		p.do(RemoveSandbox{s.ID})
	}
	p.decision.Gone = len(p.o.Sandboxes) == 0
}

func (p *planner) removeContainers() {
	for _, c := range p.o.Containers {
		p.do(RemoveContainer{c.ID})
	}
}

// keptRuns is the number of runs whose records are kept for each container: the current one and the
// previous one, for its log.
const keptRuns = 2

// removeOldRecords removes the records of runs before the last keptRuns, of containers that never
// started or aren't in the pod's spec, and of stopped sandboxes without any run left.
func (p *planner) removeOldRecords() {
	names := map[string]bool{}
	for _, c := range slices.Concat(p.allContainers(), p.ephemerals()) {
		names[c.name] = true
	}
	used := map[string]bool{}
	rank := map[string]int{}
	for _, runs := range p.runs {
		for _, c := range runs {
			used[c.Sandbox] = true
			if c.State == ContainerExited && (rank[c.Name] >= keptRuns || !names[c.Name]) {
				p.do(RemoveContainer{c.ID})
			}
			rank[c.Name]++
		}
	}
	for _, broken := range p.neverRan {
		for _, c := range broken {
			used[c.Sandbox] = true
			p.do(RemoveContainer{c.ID})
		}
	}
	for _, s := range p.o.Sandboxes {
		if s.State == SandboxStopped && !used[s.ID] && s.ID != p.current.ID {
			p.do(RemoveSandbox{s.ID})
		}
	}
}
