package probe

import (
	"time"

	"github.com/huskd/husk/internal/agent/podplan"
)

// kept is what a run keeps through a restart of huskd. Without it, every pod would lose its
// endpoints until its first checks have succeeded.
type kept struct {
	// Started says that the startup probe has succeeded, Ready that the readiness probe last has.
	Started bool `json:"started,omitempty"`
	Ready   bool `json:"ready,omitempty"`
}

// confirmPeriod is the time between checks of a run that was ready before a restart of huskd, while
// they fail. It may have been down for long while nobody looked, so that the end of its readiness
// isn't delayed by the probe's period. The probe's failureThreshold applies: when huskd starts, the
// node may be too busy for a single check to tell.
const confirmPeriod = time.Second

// Load reads what runs have kept. Each run gets it when it is first watched. Load returns the
// errors of records that it has set aside.
func (p *Prober) Load() []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.records.Load(func(id string, k kept) error {
		p.former[id] = k
		return nil
	})
}

// Loaded ends what Load began, once all runs that still exist are watched: what others have kept is
// deleted.
func (p *Prober) Loaded() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.former {
		_ = p.records.Delete(id) // otherwise the next start does it
	}
	clear(p.former)
}

// resume gives a run what it has kept. The caller holds p.mu.
func (p *Prober) resume(r *run) {
	r.kept = p.former[r.ID]
	delete(p.former, r.ID)
	if r.kept.Started {
		r.progress[startup].Verdict = podplan.Healthy
	}
	if r.kept.Ready {
		r.progress[readiness].Verdict, r.unconfirmed = podplan.Healthy, true
	}
}

// keep records what a run keeps. The caller holds p.mu.
func (p *Prober) keep(r *run) {
	p.keepAs(r, kept{r.progress[startup].Verdict == podplan.Healthy, r.progress[readiness].Verdict == podplan.Healthy})
}

// keepAs records now as what a run keeps. If that fails, a restart goes by what was recorded last,
// and soon by its own checks. The caller holds p.mu.
func (p *Prober) keepAs(r *run, now kept) {
	switch {
	case now == r.kept:
		return
	case now == kept{}:
		_ = p.records.Delete(r.ID)
	default:
		_ = p.records.Put(r.ID, now)
	}
	r.kept = now
}

// drop ends the probes of a run, which keeps nothing. The caller holds p.mu.
func (p *Prober) drop(r *run) {
	r.cancel()
	p.keepAs(r, kept{})
}

// next returns when a check is repeated after it ended with err.
func (t scheduledProbe) next(err error) time.Time {
	now := time.Now()
	at := podplan.NextProbe(t.of(t.run.Container), t.at, now)
	if soon := now.Add(confirmPeriod); t.kind == readiness && t.run.unconfirmed && isJudged(err) && soon.Before(at) {
		return soon
	}
	return align(at)
}
