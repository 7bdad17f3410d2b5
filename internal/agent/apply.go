package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/manifest/identity"
	"github.com/huskd/husk/internal/manifest/remedy"
	"github.com/huskd/husk/internal/sandbox"
)

// Apply starts a pod. It returns once the pod is recorded on disk, and doesn't wait for the start.
// A pod that exists unchanged is left as it is, but is started again if it was stopped. Apply waits
// for a pod of the same name that is being removed. The pod keeps copies of the objects it
// references.
func (a *Agent) Apply(ctx context.Context, pod *corev1.Pod, objects manifest.Objects, source string) (p Pod, unchanged bool, err error) {
	for {
		w, before, err := a.admit(declaration{pod: pod, objects: objects.Of(pod), source: source})
		if err != nil {
			return Pod{}, false, err
		}
		if w == nil {
			select {
			case <-before.gone:
				continue
			case <-ctx.Done():
				return Pod{}, false, fmt.Errorf("pod %s is still being removed: %w", nameOf(pod), ctx.Err())
			}
		}
		if unchanged := before != nil; unchanged {
			return w.published.pod(), true, nil
		}
		if err := a.cfg.Journal.Sync(ctx); err != nil {
			return Pod{}, false, fmt.Errorf("pod %s runs, but would be lost in a power failure: %w", nameOf(pod), err)
		}
		return w.published.pod(), false, nil
	}
}

// admit returns the worker that runs the pod. before is that worker if it ran the same pod already.
// If another pod of that name must be gone first, w is nil and before is that pod's worker.
func (a *Agent) admit(d declaration) (w, before *worker, err error) {
	pod := d.pod
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return nil, nil, errdefs.ErrUnavailable.WithMessage("huskd is shutting down: run the pod once it is up again")
	}
	name := nameOf(pod)
	if w := a.workers.byName[name]; w != nil {
		rec := w.record()
		if rec.Want == podplan.Remove {
			return nil, w, nil
		}
		if identity.Hash(rec.declared()) == identity.Hash(pod) {
			before = w
		} else {
			changed, ok := inPlace(pod, rec.declared())
			if !ok || rec.Source != d.source {
				return nil, nil, a.occupied(rec, d.source)
			}
			if err := w.change(changed); err != nil {
				return nil, nil, err
			}
		}
		if err := w.setObjects(d.objects); err != nil || rec.Want == podplan.Run {
			return w, before, err
		}
		return w, nil, w.want(podplan.Run, nil)
	}
	if other := a.workers.byUID[string(pod.UID)]; other != nil {
		return nil, nil, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf(
			"pod %s has the UID of pod %s: leave metadata.uid out of its manifest", name, other.name()))
	}
	rec := record{Pod: pod, Objects: d.objects, Source: d.source, Want: podplan.Run, Started: time.Now()}
	if err := a.records.Put(string(pod.UID), rec); err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w", name, err)
	}
	w = a.newWorker(rec)
	a.workers.add(w)
	if ignored := manifest.Ignored(pod); len(ignored) > 0 && rec.from() == remedy.Manifest {
		w.normalEvent("", "Ignored", "no effect without a cluster: "+strings.Join(ignored, ", "))
	}
	w.start()
	return w, nil, nil
}

// occupied returns the error for a pod from a source whose name the pod of rec has. Only a pod of
// the same source can be replaced. The caller holds a.mu.
func (a *Agent) occupied(rec record, from string) error {
	name := nameOf(rec.Pod)
	text := fmt.Sprintf("pod %s exists already, from %s: rename one", name, rec.Source)
	if at, ok := a.declaredAt(rec); ok {
		text = fmt.Sprintf("pod %s is declared in %s: change it there, or rename one", name, at)
	} else if rec.Source == string(source.Run) && from != rec.Source {
		text = fmt.Sprintf("pod %s was started by husk run: husk rm -f %s removes it, and this one starts then", name, name)
	} else if rec.Source == from {
		text = fmt.Sprintf("pod %s exists with another manifest (from %s): husk run --replace replaces it, husk rm -f %s removes it", name, rec.Source, name)
	}
	return errdefs.ErrAlreadyExists.WithMessage(text)
}

// Replace removes the pod of that name, so that this one can be applied. It does nothing if the
// existing pod is of another source, or can be changed into this one while it runs.
func (a *Agent) Replace(pod *corev1.Pod, source string) error {
	a.mu.RLock()
	w := a.workers.byName[nameOf(pod)]
	a.mu.RUnlock()
	if w == nil {
		return nil
	}
	rec := w.record()
	if _, ok := inPlace(pod, rec.declared()); ok || rec.Source != source || rec.Want == podplan.Remove {
		return nil
	}
	return w.want(podplan.Remove, nil)
}

// Stop stops a pod and waits until nothing of it runs. The pod stays known. A grace that is not nil
// replaces the pod's own.
func (a *Agent) Stop(ctx context.Context, uid string, grace *time.Duration) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	if w.record().Want == podplan.Run || grace != nil {
		if err := w.want(podplan.Stop, grace); err != nil {
			return err
		}
		if err := a.cfg.Journal.Sync(ctx); err != nil {
			return fmt.Errorf("pod %s is being stopped, but would run again after a power failure: %w", w.name(), err)
		}
	}
	return w.await(ctx, "stopped", func(p Pod) bool { return p.Finished })
}

// Rerun runs a pod in a new sandbox, whether it was stopped, has ended or runs: then it is stopped
// first, within its grace period. Rerun returns once nothing runs in the former sandboxes.
func (a *Agent) Rerun(ctx context.Context, uid string) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	a.mu.RLock()
	draining := a.draining
	a.mu.RUnlock()
	switch rec := w.record(); {
	case draining:
		return errdefs.ErrUnavailable.WithMessage("huskd is shutting down: start the pod once it is up again")
	case rec.Want == podplan.Remove:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s is being removed", w.name()))
	case strings.HasPrefix(rec.Source, string(source.API)):
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s is the cluster's: delete it with kubectl, and its controller starts another one", w.name()))
	}
	if err := w.want(podplan.Run, nil); err != nil {
		return err
	}
	rec := w.record()
	if err := a.cfg.Journal.Sync(ctx); err != nil {
		return fmt.Errorf("pod %s is being started, but might not be after a power failure: %w", w.name(), err)
	}
	return w.await(ctx, "started again", func(p Pod) bool {
		return !p.Created.Before(rec.Started) && !slices.ContainsFunc(p.Sandboxes, func(st sandbox.Status) bool {
			return attempt(st) < rec.First && view.SandboxState(st) != podplan.SandboxStopped
		})
	})
}

// Remove stops a pod and removes it with its volumes and logs. It refuses a pod that is declared:
// that one has to be removed where it is declared.
func (a *Agent) Remove(ctx context.Context, uid string) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	rec := w.record()
	a.mu.RLock()
	at, ok := a.declaredAt(rec)
	a.mu.RUnlock()
	if ok {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s is declared in %s: remove it there, or husk stop %s", w.name(), at, rec.Pod.Name))
	}
	if rec.Want != podplan.Remove {
		if err := w.want(podplan.Remove, nil); err != nil {
			return err
		}
		if err := a.cfg.Journal.Sync(ctx); err != nil {
			return fmt.Errorf("pod %s is being removed, but would exist again after a power failure: %w", w.name(), err)
		}
	}
	return w.await(ctx, "removed", func(Pod) bool { return false })
}

// Delete begins the removal of a pod, and doesn't wait for it. Its owner decides whether it comes
// back.
func (a *Agent) Delete(uid string) error {
	w, err := a.worker(uid)
	if err != nil || w.record().Want == podplan.Remove {
		return err
	}
	return w.want(podplan.Remove, nil)
}

// stallTime is how long Drain waits, after the budget, for the next pod to be stopped.
const stallTime = 10 * time.Second

var errStalled = fmt.Errorf("no pod was stopped for %v: the next huskd tries again", stallTime)

// Budget is how long Drain's pods may take to stop.
type Budget struct {
	Total time.Duration
	// Critical is the part of Total that is kept for critical pods.
	Critical time.Duration
}

// Drain stops all pods within the budget, and refuses new ones. The pods run again when huskd
// starts. Critical pods stop last, because others may need them to end, such as a name server.
//
// Drain calls stopped for each pod with the error if it did not stop in time, and returns all
// errors. After the budget, Drain waits for as long as pods are being stopped: one whose teardown
// fails again and again doesn't keep huskd from ending.
func (a *Agent) Drain(ctx context.Context, budget Budget, stopped func(p Pod, err error)) error {
	a.mu.Lock()
	a.draining = true
	var ordinary, critical []*worker
	for _, w := range a.workers.byName {
		if criconfig.Critical(w.manifest) {
			critical = append(critical, w)
		} else {
			ordinary = append(ordinary, w)
		}
	}
	a.mu.Unlock()
	type result struct {
		w   *worker
		err error
	}
	results := make(chan result)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	end := time.Now().Add(budget.Total)
	stalled := time.AfterFunc(budget.Total+stallTime, func() { cancel(errStalled) })
	defer stalled.Stop()
	stop := func(workers []*worker, budget time.Duration) {
		for _, w := range workers {
			w.drain(budget)
			go func() { results <- result{w, w.await(ctx, "stopped", func(p Pod) bool { return p.Finished })} }()
		}
	}
	first := budget.Total
	if len(critical) > 0 && len(ordinary) > 0 {
		first -= budget.Critical
	}
	left, waiting := len(ordinary)+len(critical), critical
	stopCritical := func() {
		stop(waiting, max(time.Until(end), 0))
		waiting = nil
	}
	stop(ordinary, first)
	turn := time.NewTimer(first)
	defer turn.Stop()
	var failures []error
	for left > 0 {
		if left == len(waiting) { // the others have stopped
			stopCritical()
		}
		var r result
		select {
		case <-turn.C:
			stopCritical()
			continue
		case r = <-results:
			left--
		}
		stalled.Reset(max(time.Until(end), 0) + stallTime)
		stopped(r.w.published.pod(), r.err)
		failures = append(failures, r.err)
	}
	return errors.Join(failures...)
}
