package agent

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
)

// emptying stands for the disk space of an evicted pod among what is ending.
const emptying = "disk"

// Evict has a pod that runs fail at once, for that reason, and give back what it
// takes on the disk.
func (a *Agent) Evict(uid, message string) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if phase := w.published.Load().pod.Status.Phase; rec.Want != podplan.Run || rec.Evicted != nil || phase == podplan.PhaseFailed || phase == podplan.PhaseSucceeded {
		return nil
	}
	rec.Evicted = &podplan.Eviction{At: time.Now(), Message: message}
	if err := a.records.PutUsingReserve(uid, rec); err != nil {
		return fmt.Errorf("pod %s: %w", nameOf(rec.Pod), err)
	}
	w.rec = rec
	w.unwanted()
	w.tell(true, "", "Evicted", message)
	a.cfg.Log.Warn("agent: a pod is evicted", "pod", nameOf(rec.Pod), "because", message)
	w.nudge()
	return nil
}

// recover gives back the disk space of an evicted pod that has ended. One of a
// manifest is begun anew after a pause, if its policy is Always. The caller holds w.mu.
func (w care) recover() {
	e := w.rec.Evicted
	if e == nil || !w.published.Load().pod.Settled || w.rec.Want == podplan.Remove {
		return
	}
	if !e.Emptied {
		w.end(emptying, func(context.Context) error { return w.empty() })
		return
	}
	anew := w.rec.Pod.Spec.RestartPolicy == corev1.RestartPolicyAlways && !strings.HasPrefix(w.rec.Source, string(source.API))
	if anew && w.spec().Want == podplan.Run && !time.Now().Before(e.At.Add(podplan.EvictionBackoff)) {
		w.end(emptying, func(context.Context) error { return w.want(podplan.Run, nil) })
	}
}

// empty removes the volumes of an evicted pod.
func (w care) empty() error {
	w.writing.Lock()
	defer w.writing.Unlock()
	err := w.a.cfg.Volumes.TearDown(string(w.manifest.UID))
	w.mu.Lock()
	defer w.mu.Unlock()
	rec := w.rec
	if err == nil && rec.Evicted != nil {
		done := *rec.Evicted
		done.Emptied = true
		rec.Evicted = &done
		if err = w.a.records.Put(string(rec.Pod.UID), rec); err == nil {
			w.rec = rec
		}
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", nameOf(rec.Pod), err)
	}
	return nil
}
