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
)

// declaration is a pod that a source declares.
type declaration struct {
	pod     *corev1.Pod
	objects manifest.Objects // that it refers to
	source  string
	said    string         // the last complaint about it
	ending  *time.Duration // the grace within which it is to be stopped, if it is
}

// Declare makes the pods of a source be the declared ones. A pod that no longer
// is goes; one that was changed goes and comes back as it is now.
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
			said: a.declared[set.Kind][name].said, ending: p.DeletionGrace,
		}
	}
	for name, d := range a.declared[set.Kind] {
		if _, again := declared[name]; !again && unread[d.source] {
			declared[name] = d // what can't be read is as it last was
		}
	}
	a.declared[set.Kind] = declared
	var going []*worker
	changed := map[*worker]manifest.Objects{}
	for name, w := range a.workers {
		rec := w.record()
		if !strings.HasPrefix(rec.Source, string(set.Kind)) || rec.Want == podplan.Remove || unread[rec.Source] {
			continue
		}
		d, ok := declared[name]
		switch {
		case !ok || another(set.Kind, d.pod, rec.declared()):
			going = append(going, w)
		case len(set.Unread) > 0: // they may have those that are missing
			objects := manifest.Objects{}
			maps.Copy(objects, rec.Objects)
			maps.Copy(objects, d.objects)
			changed[w] = objects
		default:
			changed[w] = d.objects
		}
	}
	a.mu.Unlock()
	for w, objects := range changed {
		if err := (care{w}).give(objects); err != nil {
			a.cfg.Log.Error("agent: config maps and secrets of a pod", "pod", nameOf(w.manifest), "error", err)
		}
		d := declared[nameOf(w.manifest)]
		if set.Kind != source.API {
			d.pod, _ = inPlace(d.pod, w.record().declared())
		}
		if d.pod != nil {
			if err := (care{w}).follow(d); err != nil {
				a.cfg.Log.Error("agent: changing a pod", "pod", nameOf(w.manifest), "error", err)
			}
		}
	}
	for _, w := range going {
		if err := w.want(podplan.Remove, nil); err != nil {
			a.cfg.Log.Error("agent: removing a pod that is no longer declared", "pod", nameOf(w.manifest), "error", err)
		}
	}
	a.settleDeclared()
}

// another says whether a declared pod is another than the one that is there, so
// that it has to be made anew.
func another(kind source.Kind, declared, there *corev1.Pod) bool {
	if kind == source.API {
		return declared.UID != there.UID
	}
	if manifest.Hash(declared) == manifest.Hash(there) {
		return false
	}
	_, same := inPlace(declared, there)
	return !same
}

// settleDeclared starts the declared pods whose name is free. What a file
// declares goes before what is at a URL. The caller holds a.declaring.
func (a *Agent) settleDeclared() {
	for _, kind := range []source.Kind{source.File, source.Web, source.API} {
		a.mu.RLock()
		todo := maps.Clone(a.declared[kind])
		a.mu.RUnlock()
		for _, name := range slices.Sorted(maps.Keys(todo)) {
			d := todo[name]
			if d.ending != nil || a.busy(name, d) {
				continue
			}
			_, before, err := a.admit(d)
			switch {
			case err != nil:
				a.complain(kind, name, fmt.Sprintf("not run: %v", err))
			case before == nil:
				a.cfg.Log.Info("agent: runs a declared pod", "pod", name, "source", d.source)
			}
		}
	}
}

// busy says whether nothing is to be done for a declared pod now: it is there,
// as declared, also if somebody stopped it, or its name is still in use.
func (a *Agent) busy(name string, d declaration) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	w := a.workers[name]
	if w == nil {
		return a.draining || a.closing.Err() != nil
	}
	rec := w.record()
	return rec.Want == podplan.Remove || manifest.Hash(rec.declared()) == manifest.Hash(d.pod)
}

// complain logs why a declared pod isn't run, once until it is something else.
func (a *Agent) complain(kind source.Kind, name, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d, ok := a.declared[kind][name]
	if !ok || d.said == text {
		return
	}
	d.said = text
	a.declared[kind][name] = d
	a.Events.Add(event.Event{Pod: name, Warning: true, Reason: "NotRun", Message: text + " (from " + d.source + ")"})
	a.cfg.Log.Error("agent: declared pod "+text, "pod", name, "source", d.source)
}

// declaredAt returns where a pod is declared that was run because of that, if
// it still is.
func (a *Agent) declaredAt(rec record) (at string, ok bool) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for kind, declared := range a.declared {
		if at, is := strings.CutPrefix(rec.Source, string(kind)); is {
			_, ok := declared[nameOf(rec.Pod)]
			return at, ok
		}
	}
	return "", false
}
