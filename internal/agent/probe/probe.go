// Package probe asks containers how they are, by the probes of their pods, and
// runs their hooks. Servers are asked from the node, at the pod's address.
//
// One goroutine waits for the next of all probes that are due; another exists
// only while one is made. What a series of results means is decided by
// package plan.
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
)

// Run is a run of a container that has probes.
type Run struct {
	Target
	Started time.Time
	// Ended runs are not asked any more. What was found of them is kept.
	Ended bool
}

// Prober makes the probes of all pods.
type Prober struct {
	exec      Exec
	execSlots chan struct{} // has one for each program that may be run at once

	mu    sync.Mutex
	pods  map[string]map[string]*run // by pod and run
	queue queue
	wake  chan struct{}

	ctx        context.Context
	cancel     context.CancelFunc
	background sync.WaitGroup
}

// kind of a probe.
type kind int

const (
	startup kind = iota
	liveness
	readiness
	kinds
)

func (k kind) String() string { return [kinds]string{"startup", "liveness", "readiness"}[k] }

func (k kind) of(c *corev1.Container) *corev1.Probe {
	return [kinds]*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe}[k]
}

// HasProbes says whether a container has probes.
func HasProbes(c *corev1.Container) bool {
	return c.StartupProbe != nil || c.LivenessProbe != nil || c.ReadinessProbe != nil
}

// run is what is known of a run.
type run struct {
	Run
	Watcher
	progress [kinds]podplan.ProbeProgress
	messages [kinds]string // by the last check, if it failed
	ctx      context.Context
	cancel   context.CancelFunc
}

// scheduledProbe is when a probe is due.
type scheduledProbe struct {
	at  time.Time
	run *run
	kind
}

// execsPerCPU programs are run at once at most: each costs some 20 ms of it.
const execsPerCPU = 4

// Watcher is told of what is found. It must not block.
type Watcher struct {
	// Changed is called when what is known of a run is another.
	Changed func()
	// Failed is called with each check that failed.
	Failed func(t Target, message string)
}

// New returns a prober of nothing yet.
func New(exec Exec) *Prober {
	p := &Prober{
		exec:      exec,
		execSlots: make(chan struct{}, execsPerCPU*runtime.NumCPU()),
		pods:      map[string]map[string]*run{},
		wake:      make(chan struct{}, 1),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.background.Go(p.wait)
	return p
}

// Close ends all probes.
func (p *Prober) Close() {
	p.cancel()
	p.background.Wait()
}

// Watch makes the runs be those of the pod that are probed; others are
// forgotten.
func (p *Prober) Watch(pod string, runs []Run, watcher Watcher) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.pods[pod]
	now := map[string]*run{}
	for _, r := range runs {
		known := before[r.ID]
		switch {
		case known == nil:
			known = p.start(r, watcher)
		case r.Ended:
			known.cancel()
		}
		now[r.ID] = known
		delete(before, r.ID)
	}
	for _, gone := range before {
		gone.cancel()
	}
	if p.pods[pod] = now; len(now) == 0 {
		delete(p.pods, pod)
	}
}

// start has a run probed. The caller holds p.mu.
func (p *Prober) start(r Run, watcher Watcher) *run {
	known := &run{Run: r, Watcher: watcher}
	known.ctx, known.cancel = context.WithCancel(p.ctx)
	switch {
	case r.Ended:
		known.cancel()
	case r.Container.StartupProbe != nil:
		p.scheduleFirst(known, startup)
	default:
		p.scheduleFirst(known, liveness)
		p.scheduleFirst(known, readiness)
	}
	return known
}

// scheduleFirst has a probe, if there is one, made as soon as its delay is over.
func (p *Prober) scheduleFirst(r *run, k kind) {
	spec := k.of(r.Container)
	if spec == nil {
		return
	}
	at := r.Started.Add(time.Duration(spec.InitialDelaySeconds) * time.Second)
	if now := time.Now(); at.Before(now) {
		at = now
	}
	p.schedule(scheduledProbe{at, r, k})
}

func (p *Prober) schedule(t scheduledProbe) {
	heap.Push(&p.queue, t)
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Health is what is known of a run.
func (p *Prober) Health(pod, id string) podplan.Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.pods[pod][id]
	if r == nil {
		return podplan.Health{}
	}
	h := podplan.Health{Startup: r.progress[startup].Verdict, Liveness: r.progress[liveness].Verdict, Readiness: r.progress[readiness].Verdict}
	for _, said := range r.messages {
		if h.Message == "" {
			h.Message = said
		}
	}
	return h
}

// wait makes probes when they are due.
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

// idleWait is how long is waited while there is nothing to do.
const idleWait = time.Hour

// runDue makes the probes that are, and returns how long to wait for the next.
func (p *Prober) runDue() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.queue) > 0 {
		t := p.queue[0]
		if wait := time.Until(t.at); wait > 0 && t.run.ctx.Err() == nil {
			return wait
		}
		heap.Pop(&p.queue)
		if t.run.ctx.Err() == nil {
			p.background.Go(func() { p.runProbe(t) })
		}
	}
	return idleWait
}

// maxAttempts at a check that can't be made, before its turn is let pass.
const maxAttempts = 3

// runProbe makes a check and notes its result.
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
	var err error
	for range maxAttempts {
		err = p.exec.check(t.run.ctx, t.run.Target, spec)
		if _, judged := errors.AsType[checkFailure](err); err == nil || judged || t.run.ctx.Err() != nil {
			break
		}
	}
	if t.run.ctx.Err() != nil {
		return // it ended meanwhile: who knows who has answered
	}
	p.record(t, err)
}

// record draws the consequences of a check.
func (p *Prober) record(t scheduledProbe, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, spec := t.run, t.of(t.run.Container)
	before, said := r.progress[t.kind], r.messages[t.kind]
	course, how := before, "failed"
	if _, judged := errors.AsType[checkFailure](err); err == nil || judged {
		course = before.Add(spec, err == nil)
	} else {
		how = "can't be made"
	}
	r.progress[t.kind], r.messages[t.kind] = course, ""
	if err != nil {
		r.messages[t.kind] = fmt.Sprintf("%s probe %s: %v", t.kind, how, err)
		r.Failed(r.Target, r.messages[t.kind])
	}
	switch {
	case t.kind == startup && course.Verdict == podplan.Healthy:
		p.scheduleFirst(r, liveness)
		p.scheduleFirst(r, readiness)
	case t.kind != readiness && course.Verdict == podplan.Failing:
		// It will be stopped. The next run is another.
	default:
		p.schedule(scheduledProbe{podplan.NextProbe(spec, t.at, time.Now()), r, t.kind})
	}
	if course.Verdict != before.Verdict || said != r.messages[t.kind] {
		r.Changed()
	}
}

// queue has the turns, the next one first. Those of a run that has ended stay
// until they are due.
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
