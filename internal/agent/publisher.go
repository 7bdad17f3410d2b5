package agent

import (
	"sync/atomic"

	"github.com/huskd/husk/internal/agent/event"
)

// publisher holds the latest Pod.
type publisher struct {
	*podState
	// Invariant: latest is changed only with mu held. It is read without.
	latest atomic.Pointer[publication]
}

type publication struct {
	pod   Pod
	newer chan struct{} // closed once this isn't the latest any more
}

func (p *publisher) pod() Pod { return p.latest.Load().pod }

// publish replaces the latest Pod, and adds the events that led to it.
func (p *publisher) publish(pod Pod) {
	if last := p.latest.Load(); last != nil {
		for _, e := range event.Diff(p.name(), p.uid(), last.pod.Status, pod.Status) {
			p.a.Events.Add(e)
		}
	}
	p.replace(pod)
}

// update changes the latest Pod in what is known before the next decision.
func (p *publisher) update(change func(*Pod)) {
	pod := p.pod()
	change(&pod)
	p.replace(pod)
}

func (p *publisher) replace(pod Pod) {
	next := &publication{pod: pod, newer: make(chan struct{})}
	next.pod.Newer = next.newer
	if last := p.latest.Swap(next); last != nil {
		close(last.newer)
	}
	if p.a.cfg.Changed != nil {
		p.a.cfg.Changed(p.uid())
	}
}
