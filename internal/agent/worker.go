package agent

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/sandbox"
)

// worker looks after one pod.
type worker struct {
	a *Agent
	// manifest is the pod as it first was: for what can't change of it.
	manifest *corev1.Pod
	probed   bool
	wake     chan struct{}
	// gone is closed once nothing of a pod to be removed is left.
	gone chan struct{}
	// wanted ends what is done to bring the pod up: a pull, for one.
	wanted   context.Context
	unwanted context.CancelFunc

	// writing is held while volumes are written or removed; it comes before mu.
	writing sync.Mutex

	mu  sync.Mutex
	rec record
	// drained replaces what the record wants, while huskd shuts down.
	drained *record
	// sandboxes of the pod, by ID.
	sandboxes []string
	underWay  underWay
	seen      seen
	backoffs  podplan.Backoffs
	published atomic.Pointer[publication]
}

// underWay is what is being done.
type underWay struct {
	creating  bool
	starting  map[string]bool           // containers, by name
	pulls     map[string]image.Progress // by image
	deadlines map[string]time.Time      // of containers that are being stopped, by ID
	preStops  map[string]*preStop       // their hooks
	// ending has the IDs of what is being stopped or removed, and those for
	// which that failed a moment ago.
	ending map[string]bool
	tries  map[string]int // failures in a row of ending something
}

// seen is how things went.
type seen struct {
	images         map[string]podplan.Image
	sandboxFailure podplan.Failure
	startFailures  map[string]podplan.Failure
	postStart      map[string]string // how the hooks of runs failed, by ID
	messages       map[string]string // of runs that have ended, by ID
	problem        string
	held           refusal // of a resize
}

type publication struct {
	pod   Pod
	newer chan struct{}
}

func (a *Agent) newWorker(rec record) *worker {
	w := &worker{
		a: a, manifest: rec.Pod, probed: probed(rec.Pod), rec: rec,
		wake: make(chan struct{}, 1),
		gone: make(chan struct{}),
		underWay: underWay{
			starting:  map[string]bool{},
			pulls:     map[string]image.Progress{},
			deadlines: map[string]time.Time{},
			preStops:  map[string]*preStop{},
			ending:    map[string]bool{},
			tries:     map[string]int{},
		},
		seen: seen{images: map[string]podplan.Image{}, startFailures: map[string]podplan.Failure{}, postStart: map[string]string{}, messages: map[string]string{}},
	}
	w.wanted, w.unwanted = context.WithCancel(a.closing)
	w.publish(podplan.Decision{Status: podplan.Status{Phase: podplan.PhasePending}}, nil, nil)
	return w
}

func (w *worker) start() { w.a.background.Go(w.run) }

// nudge has the worker look again.
func (w *worker) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run decides and acts until the pod is gone or the agent closed.
func (w *worker) run() {
	for w.a.closing.Err() == nil {
		next, gone := w.step()
		if gone && w.bury() {
			return
		}
		var alarm <-chan time.Time
		if !next.IsZero() {
			alarm = time.After(time.Until(next))
		}
		select {
		case <-w.wake:
		case <-alarm:
		case <-w.a.closing.Done():
		}
	}
}

// step decides what is due and begins it.
func (w *worker) step() (next time.Time, gone bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	sandboxes, containers := w.look()
	care{w}.watch(sandboxes, containers)
	care{w}.resize(containers)
	d := podplan.Plan(w.spec(), w.observe(sandboxes, containers), time.Now())
	care{w}.ration(&d, sandboxes)
	w.backoffs = d.Backoffs
	for _, action := range d.Actions {
		w.begin(action)
	}
	w.publish(d, sandboxes, containers)
	care{w}.recover()
	return d.Next, d.Gone && w.idle()
}

func (w *worker) spec() podplan.Spec {
	rec := w.rec
	if w.drained != nil && rec.Want == podplan.Run {
		rec = *w.drained
	}
	return podplan.Spec{Pod: rec.Pod, Want: rec.Want, Started: rec.Started, Since: rec.Since, Grace: rec.Grace, FirstAttempt: rec.First, Evicted: rec.Evicted}
}

func (w *worker) record() record {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.rec
}

// want changes what is to become of the pod. One that is being removed goes on
// to be: of that only the grace can still change.
func (w *worker) want(want podplan.Want, grace *time.Duration) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if rec.Want == podplan.Remove {
		want = podplan.Remove
	}
	rec.Grace = grace
	if want == podplan.Run {
		rec.Since, rec.Started, rec.First, rec.Evicted = time.Time{}, time.Now(), w.nextAttempt(), nil
	} else if rec.Want == podplan.Run {
		rec.Since = time.Now()
	}
	rec.Want = want
	put := w.a.records.Put
	if want != podplan.Run {
		put = w.a.records.PutUsingReserve
	}
	if err := put(string(rec.Pod.UID), rec); err != nil {
		return fmt.Errorf("pod %s: %w", nameOf(rec.Pod), err)
	}
	w.rec = rec
	w.unwanted()
	if want == podplan.Run {
		w.wanted, w.unwanted = context.WithCancel(w.a.closing)
		w.backoffs = w.backoffs.Reset()
		clear(w.seen.startFailures)
	}
	// Whoever waits for the pod to be as wanted must not see it as it was.
	last := w.published.Load().pod
	last.Want, last.Settled = want, false
	w.show(last)
	w.nudge()
	return nil
}

// nextAttempt is that of the next sandbox. The caller holds w.mu.
func (w *worker) nextAttempt() uint32 {
	next := uint32(0)
	for _, id := range w.sandboxes {
		if st, err := w.a.cfg.Sandboxes.Get(id); err == nil {
			next = max(next, st.Config.GetMetadata().GetAttempt()+1)
		}
	}
	return next
}

// drain has the pod stop within the budget, until huskd is started again.
func (w *worker) drain(budget time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	grace := min(budget, time.Duration(*w.manifest.Spec.TerminationGracePeriodSeconds)*time.Second)
	rec := w.rec
	rec.Want, rec.Since, rec.Grace = podplan.Stop, time.Now(), &grace
	w.drained = &rec
	w.unwanted()
	last := w.published.Load().pod
	last.Settled = false
	w.show(last)
	w.nudge()
}

// await waits until the pod is as it should be, or gone.
func (w *worker) await(ctx context.Context, what string, ok func(Pod) bool) error {
	for {
		p := w.pod()
		if ok(p) {
			return nil
		}
		select {
		case <-w.gone:
			return nil
		case <-p.Newer:
		case <-w.a.closing.Done():
			return fmt.Errorf("pod %s is not %s yet: huskd ends, ask again when it is back", p.Name(), what)
		case <-ctx.Done():
			why := ""
			if p.Problem != "" {
				why = ": " + p.Problem
			}
			return fmt.Errorf("pod %s is still being %s%s: %w", p.Name(), what, why, ctx.Err())
		}
	}
}

func (w *worker) pod() Pod { return w.published.Load().pod }

// publish makes a decision what List and Get show. The caller holds w.mu.
func (w *worker) publish(d podplan.Decision, sandboxes []sandbox.Status, containers []container.Status) {
	settled := w.spec().Want != podplan.Run || d.Status.Phase == podplan.PhaseSucceeded || d.Status.Phase == podplan.PhaseFailed
	settled = settled && len(d.Actions) == 0 && w.idle()
	for _, s := range sandboxes {
		settled = settled && view.Sandbox(s) == podplan.SandboxStopped
	}
	p := Pod{
		Manifest: w.rec.Pod, Source: w.rec.Source, Want: w.rec.Want, Created: w.rec.Started,
		Status: d.Status, Sandboxes: sandboxes, Containers: containers, Settled: settled, Problem: w.seen.problem, Resize: care{w}.resizeNow(),
	}
	for _, progress := range w.underWay.pulls {
		p.Pulls = append(p.Pulls, progress)
	}
	if last := w.published.Load(); last != nil {
		for _, e := range event.Diff(p.Name(), last.pod.Status, p.Status) {
			w.a.Events.Add(e)
		}
	}
	w.show(p)
}

// tell notes an event of the pod.
func (w *worker) tell(warning bool, container, reason, message string) {
	w.a.Events.Add(event.Event{Pod: nameOf(w.manifest), Container: container, Warning: warning, Reason: reason, Message: message})
}

func (w *worker) show(p Pod) {
	next := &publication{newer: make(chan struct{})}
	next.pod = p
	next.pod.Newer = next.newer
	if last := w.published.Swap(next); last != nil {
		close(last.newer)
	}
	if w.a.cfg.Changed != nil {
		w.a.cfg.Changed(string(w.manifest.UID))
	}
}

// showPulls publishes how far the pulls are.
func (w *worker) showPulls() {
	last := w.published.Load().pod
	last.Pulls = nil
	for _, progress := range maps.Clone(w.underWay.pulls) {
		last.Pulls = append(last.Pulls, progress)
	}
	w.show(last)
}

// idle says that nothing is under way.
func (w *worker) idle() bool {
	u := w.underWay
	return !u.creating && len(u.starting) == 0 && len(u.pulls) == 0 && len(u.ending) == 0 && len(u.deadlines) == 0
}
