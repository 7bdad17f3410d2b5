package podplan

import (
	"maps"
	"slices"
	"time"
)

// Backoff counts consecutive failures of a container or image, or creations of a sandbox.
type Backoff struct {
	Count int
	// Last is the time of the last one.
	Last time.Time
	// NextAttempt is the first attempt of a container that isn't counted yet. Times can't tell,
	// because the host's clock may have been set.
	NextAttempt uint32
}

// Backoffs are the backoffs of a pod, by key. Invariant: a map is never modified after Plan
// returned it.
type Backoffs map[string]Backoff

func (b Backoffs) clone() Backoffs {
	out := maps.Clone(b)
	if out == nil {
		out = Backoffs{}
	}
	return out
}

// Reset returns backoffs with all counts at zero, so that nothing waits.
func (b Backoffs) Reset() Backoffs {
	out := b.clone()
	for key := range out {
		out[key] = Backoff{Last: b[key].Last, NextAttempt: b[key].NextAttempt}
	}
	return out
}

// RetrySandbox returns backoffs in which a sandbox waits no longer.
func (b Backoffs) RetrySandbox() Backoffs {
	out := b.clone()
	out[keySandbox] = Backoff{Last: b[keySandbox].Last}
	return out
}

// The delays. As in kubelet, the first restart of a container is immediate, and later ones wait for
// 10 s, 20 s … 300 s, like repeated pulls. Delays of sandboxes are shorter, because sandboxes fail
// mostly while the network isn't configured yet.
const (
	minDelay        = 10 * time.Second
	maxDelay        = 300 * time.Second
	minSandboxDelay = time.Second
	maxSandboxDelay = 60 * time.Second
	// maxPortDelay is that of a sandbox whose host port is taken. Nothing says when a program stops
	// listening on it, and who stops the program expects the pod.
	maxPortDelay = 5 * time.Second
	// steadyRun is the length of a run after which earlier failures no longer count.
	steadyRun = 10 * time.Minute
)

// exponential returns the n-th delay: first, doubled n-1 times, at most longest.
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

// Keys of Backoffs.
const keySandbox = "sandbox"

func keyContainer(name string) string { return "container/" + name }
func keyImage(image string) string    { return "image/" + image }

// countFailures counts the failures since the last decision. An entry is never deleted, because its
// time tells which failures have been counted.
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

// countContainer counts the exits of a container. The success of a plain init container and the
// stop of an outdated run reset the count.
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
	// A failed start would fail again at once, so it always waits.
	if at := p.o.StartFailures[name].At; at.After(p.backoffs[key].Last) {
		p.backoffs[key] = Backoff{max(p.backoffs[key].Count+1, 2), at, p.backoffs[key].NextAttempt}
	}
}

// clampToNow returns t, or now if t is in the future because the clock was set back: otherwise the
// pod would wait until that time. The result has now's reading of the monotonic clock, so that
// setting the clock later doesn't matter.
func (p *planner) clampToNow(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return p.now.Add(min(t.Sub(p.now), 0))
}

// sandboxBackingOff reports whether the next sandbox must wait, and counts it if not. A sandbox
// that is lost soon after its creation counts like a failure.
func (p *planner) sandboxBackingOff() bool {
	b, failed := p.backoffs[keySandbox], p.o.SandboxFailure.At
	switch {
	case failed.After(b.Last):
		b.Last = failed
	case p.now.Sub(b.Last) >= maxSandboxDelay:
		b.Count = 0
	}
	p.backoffs[keySandbox] = b
	delay := b.sandboxDelay()
	if p.o.SandboxFailure.Reason == ReasonPort && !failed.Before(b.Last) {
		delay = min(delay, maxPortDelay)
	}
	if p.backingOff(keySandbox, delay) {
		return true
	}
	p.backoffs[keySandbox] = Backoff{Count: b.Count + 1, Last: p.now}
	return false
}

// backingOff reports whether the delay since the last failure hasn't passed yet. If so, it requests
// a decision for when it has.
func (p *planner) backingOff(key string, delay time.Duration) bool {
	until := p.backoffs[key].Last.Add(delay)
	if delay == 0 || !p.now.Before(until) {
		return false
	}
	p.wakeAt(until)
	return true
}
