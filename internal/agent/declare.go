package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/identity"
)

// declaration is a pod that a source declares.
type declaration struct {
	pod       *corev1.Pod
	objects   manifest.Objects // that the pod references
	source    string
	lastError string // why the pod was last refused
	// deletionGrace is set once the pod should stop, and is its grace.
	deletionGrace *time.Duration
}

// Declare makes set what a source declares. Pods that are no longer declared are removed. Pods that
// have changed are changed while they run, or recreated if that isn't possible.
func (a *Agent) Declare(set source.Set) {
	unread := map[string]bool{}
	for _, path := range set.Unread {
		unread[string(set.Kind)+path] = true
	}
	a.declaring.Lock()
	defer a.declaring.Unlock()
	a.mu.Lock()
	declared := map[string]declaration{}
	for _, p := range set.Pods {
		name := nameOf(p.Pod)
		declared[name] = declaration{
			pod: p.Pod, objects: set.Objects.Of(p.Pod), source: string(set.Kind) + p.Location,
			lastError: a.declared[set.Kind][name].lastError, deletionGrace: p.DeletionGrace,
		}
	}
	for name, d := range a.declared[set.Kind] {
		if _, ok := declared[name]; !ok && unread[d.source] {
			declared[name] = d // a file that can't be read now still declares what it did
		}
	}
	a.declared[set.Kind] = declared
	var obsolete []*worker
	changed := map[*worker]manifest.Objects{}
	for name, w := range a.workers.byName {
		rec := w.record()
		if !strings.HasPrefix(rec.Source, string(set.Kind)) || rec.Want == podplan.Remove || unread[rec.Source] {
			continue
		}
		d, ok := declared[name]
		switch {
		case !ok || mustRecreate(set.Kind, d.pod, rec.declared()):
			obsolete = append(obsolete, w)
		case len(set.Unread) > 0: // an object that is missing may be in an unreadable file
			changed[w] = rec.Objects.With(d.objects)
		default:
			changed[w] = d.objects
		}
	}
	a.mu.Unlock()
	for w, objects := range changed {
		d := declared[w.name()]
		if d.deletionGrace == nil { // a pod that is ending keeps the objects that it has
			if err := w.setObjects(objects); err != nil {
				a.cfg.Log.Error("agent: updating the objects of a pod failed", "pod", w.name(), "error", err)
			}
		}
		if set.Kind != source.API {
			d.pod, _ = inPlace(d.pod, w.record().declared())
		}
		if d.pod != nil {
			if err := w.follow(d); err != nil {
				a.cfg.Log.Error("agent: changing a pod failed", "pod", w.name(), "error", err)
			}
		}
	}
	for _, w := range obsolete {
		if err := w.want(podplan.Remove, nil); err != nil {
			a.cfg.Log.Error("agent: removing a pod that is no longer declared failed", "pod", w.name(), "error", err)
		}
	}
	a.reconcileDeclared(func(string, declaration) bool { return true })
}

// Share gives pods new versions of the objects that they refer to, of whatever source. A pod keeps
// its copy of an object that is not among them. Pods of an API server have objects of their own.
func (a *Agent) Share(all manifest.Objects) {
	a.declaring.Lock()
	defer a.declaring.Unlock()
	a.mu.Lock()
	for kind, declared := range a.declared {
		for name, d := range declared {
			if kind != source.API {
				d.objects = d.objects.With(all.Of(d.pod))
				declared[name] = d
			}
		}
	}
	workers := slices.Collect(maps.Values(a.workers.byName))
	a.mu.Unlock()
	for _, w := range workers {
		rec := w.record()
		if strings.HasPrefix(rec.Source, string(source.API)) || rec.Want == podplan.Remove {
			continue
		}
		if err := w.setObjects(rec.Objects.With(all.Of(rec.Pod))); err != nil {
			a.cfg.Log.Error("agent: updating the objects of a pod failed", "pod", w.name(), "error", err)
		}
	}
}

// mustRecreate reports whether an existing pod can't be changed into the declared one.
func mustRecreate(kind source.Kind, declared, existing *corev1.Pod) bool {
	if kind == source.API {
		return declared.UID != existing.UID
	}
	if identity.Hash(declared) == identity.Hash(existing) {
		return false
	}
	_, ok := inPlace(declared, existing)
	return !ok
}

// reconcileDeclared starts, of the declared pods for which concerns returns true, those whose name
// is free. Files come before URLs, and URLs before the API server. The caller holds a.declaring.
func (a *Agent) reconcileDeclared(concerns func(name string, d declaration) bool) {
	for _, kind := range []source.Kind{source.File, source.Web, source.API} {
		todo := map[string]declaration{}
		a.mu.RLock()
		for name, d := range a.declared[kind] {
			if concerns(name, d) {
				todo[name] = d
			}
		}
		a.mu.RUnlock()
		for _, name := range slices.Sorted(maps.Keys(todo)) {
			d := todo[name]
			if d.deletionGrace != nil || !a.mustApply(name, d) {
				continue
			}
			_, before, err := a.admit(d)
			switch {
			case err != nil:
				a.reportRefused(kind, name, fmt.Sprintf("not run: %v", err))
			case before == nil:
				a.cfg.Log.Info("agent: running a declared pod", "pod", name, "source", d.source)
			}
		}
	}
}

// mustApply reports whether a declared pod has to be applied. It returns false if the pod exists as
// declared, even if a user has stopped it, and while another pod of its name is being removed.
func (a *Agent) mustApply(name string, d declaration) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	w := a.workers.byName[name]
	if w == nil {
		return !a.draining && a.closing.Err() == nil
	}
	rec := w.record()
	return rec.Want != podplan.Remove && identity.Hash(rec.declared()) != identity.Hash(d.pod)
}

// reportRefused adds an event and logs why a declared pod isn't run, unless the reason is the same
// as before.
func (a *Agent) reportRefused(kind source.Kind, name, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d, ok := a.declared[kind][name]
	if !ok || d.lastError == text {
		return
	}
	d.lastError = text
	a.declared[kind][name] = d
	a.Events.Add(event.Event{Pod: name, Warning: true, Reason: "NotRun", Message: text + " (from " + d.source + ")"})
	a.cfg.Log.Error("agent: declared pod "+text, "pod", name, "source", d.source)
}

// declaredAt returns where a pod comes from, if it is still declared there. The caller holds a.mu.
func (a *Agent) declaredAt(rec record) (at string, ok bool) {
	for kind, declared := range a.declared {
		if at, is := strings.CutPrefix(rec.Source, string(kind)); is {
			_, ok := declared[nameOf(rec.Pod)]
			return at, ok
		}
	}
	return "", false
}
