// Package probe runs the probes and lifecycle hooks of containers. Network probes connect from the
// node to the pod's address.
//
// One goroutine waits for the next due probe of all containers. Each probe runs in a goroutine of
// its own. Package podplan derives verdicts from the results.
package probe

import (
	"container/heap"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/journal"
)

// Run is a run of a container that has probes.
type Run struct {
	Target
	Started time.Time
	// Stopping tells that the run is being stopped. Only its readiness probe goes on.
	Stopping bool
	// Ended tells that the run has ended. Its probes stop and its verdicts are kept.
	Ended bool
}

// Prober runs the probes of all pods.
type Prober struct {
	exec      Exec
	execSlots chan struct{} // bounds the number of programs that run at the same time

	records journal.Table[kept] // by run ID

	mu    sync.Mutex
	pods  map[string]map[string]*run          // by pod UID and run ID
	tally map[string]map[string]*[kinds]Tally // by pod UID and container name
	queue queue
	// former is what Load has read, by run ID, of the runs that weren't watched since.
	former map[string]kept
	wake   chan struct{}

	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
}

// kind is the kind of a probe.
type kind int

const (
	startup kind = iota
	liveness
	readiness
	kinds
)

func (k kind) String() string { return [kinds]string{"startup", "liveness", "readiness"}[k] }

// title returns the kind as the first word of a message, as in the kubelet's events.
func (k kind) title() string { return [kinds]string{"Startup", "Liveness", "Readiness"}[k] }

func (k kind) of(c *corev1.Container) *corev1.Probe {
	return [kinds]*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe}[k]
}

// HasProbes reports whether a container has probes.
func HasProbes(c *corev1.Container) bool {
	return c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil
}

// run is a run and the state of its probes.
type run struct {
	Run
	pod string // UID
	Watcher
	progress [kinds]podplan.ProbeProgress
	messages [kinds]string // of the last check of each kind, if it failed
	kept     kept          // as recorded
	// unconfirmed says that the run was ready before huskd's restart, and that no check has
	// succeeded since.
	unconfirmed bool
	ctx         context.Context
	cancel      context.CancelFunc
}

// scheduledProbe is a probe and its next time.
type scheduledProbe struct {
	at  time.Time
	run *run
	kind
}

// over reports whether the probe has stopped while its run is being stopped. The caller holds
// Prober.mu.
func (t scheduledProbe) over() bool { return t.run.Stopping && t.kind != readiness }

// execsPerCPU is the number of programs per CPU that may run at the same time. Starting one takes
// about 20 ms of CPU time.
const execsPerCPU = 4

// Watcher holds the callbacks for the results of a pod's probes. They must not block.
type Watcher struct {
	// Changed is called after the health of a run has changed.
	Changed func()
	// Failed is called for each failed check.
	Failed func(t Target, message string)
	// Warned is called for each check that succeeded with a warning.
	Warned func(t Target, message string)
}

// New returns a prober without any pods. It keeps in the journal what a restart needs.
func New(exec Exec, j *journal.Journal) *Prober {
	p := &Prober{
		exec:      exec,
		records:   journal.NewTable[kept](j, "probe"),
		execSlots: make(chan struct{}, execsPerCPU*runtime.NumCPU()),
		pods:      map[string]map[string]*run{},
		tally:     map[string]map[string]*[kinds]Tally{},
		former:    map[string]kept{},
		wake:      make(chan struct{}, 1),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.background.Go(p.wait)
	return p
}

// Close stops all probes.
func (p *Prober) Close() {
	p.cancel()
	p.background.Wait()
}

// Watch sets the runs of a pod that are probed. It drops the pod's other runs.
func (p *Prober) Watch(pod string, runs []Run, watcher Watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.pods[pod]
	now := map[string]*run{}
	for _, r := range runs {
		known := before[r.ID]
		switch {
		case known == nil:
			known = p.start(pod, r, watcher)
		case r.Ended:
			p.drop(known)
		default:
			known.Stopping = known.Stopping || r.Stopping
		}
		now[r.ID] = known
		delete(before, r.ID)
	}
	for _, gone := range before {
		p.drop(gone)
	}
	if p.pods[pod] = now; len(now) == 0 {
		delete(p.pods, pod)
		delete(p.tally, pod)
	}
}

// start starts the probes of a run. The caller holds p.mu.
func (p *Prober) start(pod string, r Run, watcher Watcher) *run {
	known := &run{Run: r, Watcher: watcher, pod: pod}
	known.ctx, known.cancel = context.WithCancel(p.ctx)
	p.resume(known)
	switch {
	case r.Ended:
		p.drop(known)
	case r.Container.StartupProbe != nil && !known.kept.Started:
		p.scheduleFirst(known, startup)
	default:
		p.scheduleFirst(known, liveness)
		p.scheduleFirst(known, readiness)
	}
	return known
}

// scheduleFirst schedules the first check of a probe after its initial delay. It does nothing if
// the container has no such probe.
func (p *Prober) scheduleFirst(r *run, k kind) {
	spec := k.of(r.Container)
	if spec == nil {
		return
	}
	delay := time.Duration(spec.InitialDelaySeconds) * time.Second
	now := time.Now()
	// The clock may have been set since the container was started, and may be set again: what is
	// left of the delay counts by the monotonic clock, which now has and a recorded time lacks.
	left := min(max(delay-now.Sub(r.Started), 0), delay)
	p.schedule(scheduledProbe{now.Add(left), r, k})
}

func (p *Prober) schedule(t scheduledProbe) {
	heap.Push(&p.queue, t)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Health returns the health of a run.
func (p *Prober) Health(pod, id string) podplan.Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.pods[pod][id]
	if r == nil {
		return podplan.Health{}
	}
	h := podplan.Health{Startup: r.progress[startup].Verdict, Liveness: r.progress[liveness].Verdict, Readiness: r.progress[readiness].Verdict}
	for _, message := range r.messages {
		if h.Message == "" {
			h.Message = message
		}
	}
	return h
}

// wait runs probes when they are due.
func (p *Prober) wait() {
	for {
		select {
		case <-time.After(p.runDue()):
		case <-p.wake:
		case <-p.ctx.Done():
			return
		}
	}
}

// idleWait is how long wait sleeps if no probe is scheduled.
const idleWait = time.Hour

// runDue starts the probes that are due and returns the time until the next one.
func (p *Prober) runDue() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		t := p.queue[0]
		if wait := time.Until(t.at); wait > 0 && t.run.ctx.Err() == nil {
			return wait
		}
		heap.Pop(&p.queue)
		if t.run.ctx.Err() == nil && !t.over() {
			p.background.Go(func() { p.runProbe(t) })
		}
	}
	return idleWait
}

// maxAttempts is how often a check is tried that can't be carried out.
const maxAttempts = 3

// runProbe carries out a check and records its result.
func (p *Prober) runProbe(t scheduledProbe) {
	spec := t.of(t.run.Container)
	if spec.Exec != nil {
		select {
		case p.execSlots <- struct{}{}:
			defer func() { <-p.execSlots }()
		case <-t.run.ctx.Done():
			return
		}
	}
	began := time.Now()
	var err error
	for range maxAttempts {
		err = p.exec.check(t.run.ctx, t.run.Target, spec)
		if _, warned := errors.AsType[checkWarning](err); isJudged(err) || warned || t.run.ctx.Err() != nil {
			break
		}
	}
	if t.run.ctx.Err() != nil {
		return // the run has ended: another one may have answered
	}
	if w, warned := errors.AsType[checkWarning](err); warned {
		t.run.Warned(t.run.Target, fmt.Sprintf("%s probe warning: %s", t.title(), w.message))
		err = nil
	}
	p.count(t, err, time.Since(began))
	p.record(t, err)
}

// record updates the health of a run after a check, and schedules the next one.
func (p *Prober) record(t scheduledProbe, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.over() {
		return
	}
	r, spec := t.run, t.of(t.run.Container)
	before, message := r.progress[t.kind], r.messages[t.kind]
	progress, how := before, "failed"
	if isJudged(err) {
		progress = before.Add(spec, err == nil)
	} else {
		how = "could not be carried out"
	}
	r.progress[t.kind], r.messages[t.kind] = progress, ""
	r.unconfirmed = r.unconfirmed && (t.kind != readiness || err != nil && progress.Verdict == podplan.Healthy)
	p.keep(r)
	if err != nil {
		r.messages[t.kind] = fmt.Sprintf("%s probe %s: %v", t.kind, how, err)
		r.Failed(r.Target, fmt.Sprintf("%s probe %s: %v", t.title(), how, err))
	}
	switch {
	case t.kind == startup && progress.Verdict == podplan.Healthy:
		p.scheduleFirst(r, liveness)
		p.scheduleFirst(r, readiness)
	case t.kind != readiness && progress.Verdict == podplan.Failing:
		// The container will be stopped. Its next run has its own probes.
	default:
		p.schedule(scheduledProbe{t.next(err), r, t.kind})
	}
	if progress.Verdict != before.Verdict || message != r.messages[t.kind] {
		r.Changed()
	}
}

// isJudged reports whether a check with this error was carried out.
func isJudged(err error) bool {
	_, judged := errors.AsType[checkFailure](err)
	return err == nil || judged
}

// tick is the distance between the times at which checks are repeated. Every wake-up of an idle
// process costs more than a check, so checks share them.
const tick = 200 * time.Millisecond

// align returns the tick that is nearest to a time. It keeps the monotonic clock.
func align(at time.Time) time.Time {
	after := time.Duration(at.UnixNano()) % tick
	if after < tick/2 {
		return at.Add(-after)
	}
	return at.Add(tick - after)
}

// queue is a heap of scheduled probes, the next one first. The probes of an ended run stay until
// they are due.
type queue []scheduledProbe

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].at.Before(q[j].at) }
func (q queue) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(t any)        { *q = append(*q, t.(scheduledProbe)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	(*q)[last] = scheduledProbe{}
	*q = (*q)[:last]
	return t
}
