package podplan

import (
	"maps"
	"slices"
	"time"
)

// Backoff counts failures in a row of one thing; of a sandbox, its creations.
type Backoff struct {
	Count int
	// Last is when the last of them was.
	Last time.Time
	// NextAttempt is the first attempt at a container that is not counted yet. Their
	// times wouldn't tell: the host's clock may have been set since.
	NextAttempt uint32
}

// Backoffs of a pod, by what failed. It is never changed in place.
type Backoffs map[string]Backoff

func (b Backoffs) clone() Backoffs {
	out := maps.Clone(b)
	if out == nil {
		out = Backoffs{}
	}
	return out
}

// Reset forgets all that has failed, so that nothing is waited for.
func (b Backoffs) Reset() Backoffs {
	out := b.clone()
	for key := range out {
		out[key] = Backoff{Last: b[key].Last, NextAttempt: b[key].NextAttempt}
	}
	return out
}

// How long to wait. The first restart of a container is at once and those that
// follow wait for 10 s, 20 s … 300 s, as do repeated pulls; both are the
// kubelet's. A sandbox is mostly waiting for the network's configuration, so
// that it is tried sooner.
const (
	minDelay        = 10 * time.Second
	maxDelay        = 300 * time.Second
	minSandboxDelay = time.Second
	maxSandboxDelay = 60 * time.Second
	// steadyRun is how long a container must have run for its end not to count
	// with the ones before.
	steadyRun = 10 * time.Minute
)

// exponential returns the n-th delay from the first, at most the longest.
func exponential(n int, first, longest time.Duration) time.Duration {
	d := first
	for ; n > 1 && d < longest; n-- {
		d *= 2
	}
	return min(d, longest)
}

func (b Backoff) containerDelay() time.Duration {
	if b.Count < 2 {
		return 0
	}
	return exponential(b.Count-1, minDelay, maxDelay)
}

func (b Backoff) imageDelay() time.Duration {
	if b.Count < 1 {
		return 0
	}
	return exponential(b.Count, minDelay, maxDelay)
}

func (b Backoff) sandboxDelay() time.Duration {
	if b.Count < 1 {
		return 0
	}
	return exponential(b.Count, minSandboxDelay, maxSandboxDelay)
}

// Keys of what can fail.
const keySandbox = "sandbox"

func keyContainer(name string) string { return "container/" + name }
func keyImage(image string) string    { return "image/" + image }

// countFailures takes note of what has failed since the last decision. A
// record is never dropped, as its time tells which failures are counted.
func (p *planner) countFailures() {
	for key, b := range p.backoffs {
		b.Last = p.clampToNow(b.Last)
		p.backoffs[key] = b
	}
	for name, image := range p.o.Images {
		key := keyImage(name)
		if b := p.backoffs[key]; b.Count > 0 && image.Pulled.After(b.Last) {
			p.backoffs[key] = Backoff{Last: b.Last}
		}
		if image.Failure.At.After(image.Pulled) {
			p.countFailure(key, image.Failure.At)
		}
	}
	for _, c := range slices.Concat(p.allContainers(), p.ephemerals()) {
		p.countContainer(c.name, c.runsToCompletion)
	}
}

func (p *planner) countFailure(key string, at time.Time) {
	if b := p.backoffs[key]; at.After(b.Last) {
		p.backoffs[key] = Backoff{Count: b.Count + 1, Last: at}
	}
}

// countContainer counts the ends of a container's runs. A plain init container
// that succeeded has done what it should, and doesn't count; nor does the end of
// a run that made way for another image.
func (p *planner) countContainer(name string, once bool) {
	key := keyContainer(name)
	for i := len(p.runs[name]) - 1; i >= 0; i-- {
		run := p.runs[name][i]
		b := p.backoffs[key]
		if run.State != ContainerExited || run.Attempt < b.NextAttempt {
			continue
		}
		b.Last, b.NextAttempt = p.clampToNow(run.Finished), run.Attempt+1
		if !run.Started.IsZero() && run.Finished.Sub(run.Started) >= steadyRun {
			b.Count = 0
		}
		if b.Count++; once && run.ExitCode == 0 || run.Outdated {
			b.Count = 0
		}
		p.backoffs[key] = b
	}
	// A start that failed would fail at once again: it always waits.
	if at := p.o.StartFailures[name].At; at.After(p.backoffs[key].Last) {
		p.backoffs[key] = Backoff{max(p.backoffs[key].Count+1, 2), at, p.backoffs[key].NextAttempt}
	}
}

// clampToNow is when something was of which the clock says t. A clock that was set
// back would have it in the future, and us wait for that.
func (p *planner) clampToNow(t time.Time) time.Time {
	if t.After(p.now) {
		return p.now
	}
	return t
}

// sandboxBackingOff says whether it is too soon for another sandbox, and if not
// counts it. A sandbox that was made and soon lost counts as one that failed.
func (p *planner) sandboxBackingOff() bool {
	b, failed := p.backoffs[keySandbox], p.o.SandboxFailure.At
	switch {
	case failed.After(b.Last):
		b.Last = failed
	case p.now.Sub(b.Last) >= maxSandboxDelay:
		b.Count = 0
	}
	p.backoffs[keySandbox] = b
	if p.backingOff(keySandbox, b.sandboxDelay()) {
		return true
	}
	p.backoffs[keySandbox] = Backoff{Count: b.Count + 1, Last: p.now}
	return false
}

// backingOff says whether a delay since the last failure has yet to pass, and if so
// asks to look again then.
func (p *planner) backingOff(key string, delay time.Duration) bool {
	until := p.backoffs[key].Last.Add(delay)
	if delay == 0 || !p.now.Before(until) {
		return false
	}
	p.wakeAt(until)
	return true
}
