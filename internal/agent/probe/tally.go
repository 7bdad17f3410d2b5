package probe

import (
	"cmp"
	"errors"
	"slices"
	"time"
)

// Buckets are the upper bounds of a Tally's durations in seconds, the defaults of Prometheus.
var Buckets = [...]float64{.005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// Tally counts the checks of a probe, over all runs of its container.
type Tally struct {
	Pod, Container, Kind string // Pod is its UID
	// Unknown are the checks that could not be carried out.
	Succeeded, Failed, Unknown uint64
	// Seconds is how long all checks took, Within how many took no longer than each of Buckets.
	Seconds float64
	Within  [len(Buckets)]uint64
}

// Checks returns the number of checks.
func (t Tally) Checks() uint64 { return t.Succeeded + t.Failed + t.Unknown }

// Tallies returns the tallies of all probes that are running, sorted by pod, container and kind.
func (p *Prober) Tallies() (out []Tally) {
	p.mu.Lock()
	for _, containers := range p.tally {
		for _, list := range containers {
			for _, t := range list {
				if t.Checks() > 0 {
					out = append(out, t)
				}
			}
		}
	}
	p.mu.Unlock()
	slices.SortFunc(out, func(a, b Tally) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container), cmp.Compare(a.Kind, b.Kind))
	})
	return out
}

// count adds a check to its tally.
func (p *Prober) count(t scheduledProbe, err error, took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.pods[t.run.pod] == nil {
		return // the pod is gone
	}
	name := t.run.Container.Name
	containers := p.tally[t.run.pod]
	if containers == nil {
		containers = map[string]*[kinds]Tally{}
		p.tally[t.run.pod] = containers
	}
	if containers[name] == nil {
		containers[name] = &[kinds]Tally{}
	}
	tally := &containers[name][t.kind]
	tally.Pod, tally.Container, tally.Kind = t.run.pod, name, t.kind.String()
	if _, judged := errors.AsType[checkFailure](err); err == nil {
		tally.Succeeded++
	} else if judged {
		tally.Failed++
	} else {
		tally.Unknown++
	}
	tally.Seconds += took.Seconds()
	for i, bound := range Buckets {
		if took.Seconds() <= bound {
			tally.Within[i]++
		}
	}
}
