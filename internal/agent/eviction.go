package agent

import (
	"context"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
)

// Evict makes a running pod fail at once, with that reason and message, and frees its disk space.
func (a *Agent) Evict(uid, reason, message string) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if phase := w.published.pod().Status.Phase; rec.Want != podplan.Run || rec.Evicted != nil || phase == podplan.PhaseFailed || phase == podplan.PhaseSucceeded {
		return nil
	}
	rec.Evicted = &podplan.Eviction{At: time.Now(), Reason: reason, Message: message}
	if err := w.save(a.records.PutUsingReserve, rec); err != nil {
		return err
	}
	w.cancelStarts()
	w.warningEvent("", reason, message)
	a.cfg.Log.Warn("agent: evicting a pod", "pod", w.name(), "reason", reason, "message", message)
	w.nudge()
	return nil
}

// continueEviction frees the disk space of an evicted pod that has ended. A pod whose restartPolicy
// is Always runs again after a pause, unless it is an API server's. The caller holds mu.
func (w *worker) continueEviction() {
	e := w.rec.Evicted
	if e == nil || !w.published.pod().Finished || w.rec.Want == podplan.Remove {
		return
	}
	if !e.Emptied {
		w.tasks.run(evictTask, w.volumes.removeEvicted)
		return
	}
	restart := w.rec.Pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && !strings.HasPrefix(w.rec.Source, string(source.API))
	if restart && w.spec().Want == podplan.Run && !time.Now().Before(e.At.Add(podplan.EvictionBackoff)) {
		w.tasks.run(evictTask, func(context.Context) error { return w.want(podplan.Run, nil) })
	}
}

// preemptFor evicts pods of the API server to make room for a critical pod that was declared on the
// node. It evicts none while others still end.
func (a *Agent) preemptFor(critical *corev1.Pod) {
	a.preempting.Lock()
	defer a.preempting.Unlock()
	var others, evictable []*corev1.Pod
	a.mu.RLock()
	for _, w := range a.workers.byName {
		rec := w.record()
		switch {
		case rec.Evicted != nil && !w.published.pod().Finished:
			a.mu.RUnlock()
			return
		case !a.admitted.Holds(w.uid()):
			continue
		case rec.Want == podplan.Run && strings.HasPrefix(rec.Source, string(source.API)):
			evictable = append(evictable, rec.Pod)
		}
		others = append(others, rec.Pod)
	}
	a.mu.RUnlock()
	victims, err := admission.Victims(critical, evictable, a.admitted.Short(critical, others))
	if err != nil {
		return // the pod's status says what it lacks
	}
	for _, v := range victims {
		if err := a.Evict(string(v.UID), podplan.ReasonPreempting, admission.PreemptedMessage); err != nil {
			a.cfg.Log.Error("agent: a pod was not evicted for a critical one", "pod", nameOf(v), "critical", nameOf(critical), "error", err)
		}
	}
}
