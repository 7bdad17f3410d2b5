package agent

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/plan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
)

// sourceFile begins the source of pods that a file declares.
const sourceFile = "file:"

// declaration is a pod that a source declares.
type declaration struct {
	pod    *corev1.Pod
	source string
	said   string // the last complaint about it
}

// Declare makes the pods of a directory be the declared ones. A pod that no
// longer is goes; one that was changed goes and comes back as it is now.
func (a *Agent) Declare(set source.Set) {
	unread := map[string]bool{}
	for _, path := range set.Unread {
		unread[sourceFile+path] = true
	}
	a.mu.Lock()
	before := a.declared
	a.declared = map[string]declaration{}
	for _, p := range set.Pods {
		name := nameOf(p.Pod)
		a.declared[name] = declaration{p.Pod, sourceFile + p.File, before[name].said}
	}
	var going []*worker
	for name, w := range a.workers {
		rec := w.record()
		d, declared := a.declared[name]
		if !strings.HasPrefix(rec.Source, sourceFile) || rec.Want == plan.Remove || unread[rec.Source] {
			continue
		}
		if !declared || manifest.Hash(d.pod) != manifest.Hash(rec.Pod) {
			going = append(going, w)
		}
	}
	a.mu.Unlock()
	for _, w := range going {
		if err := w.want(plan.Remove, nil); err != nil {
			a.cfg.Log.Error("agent: removing a pod that is no longer declared", "pod", nameOf(w.manifest), "error", err)
		}
	}
	a.settleDeclared()
}

// settleDeclared starts the declared pods whose name is free.
func (a *Agent) settleDeclared() {
	a.mu.RLock()
	todo := maps.Clone(a.declared)
	a.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(todo)) {
		d := todo[name]
		if a.busy(name, d) {
			continue
		}
		_, before, err := a.admit(d.pod, d.source)
		switch {
		case err != nil:
			a.complain(name, fmt.Sprintf("not run: %v", err))
		case before == nil:
			a.cfg.Log.Info("agent: runs a declared pod", "pod", name, "source", d.source)
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
	return rec.Want == plan.Remove || manifest.Hash(rec.Pod) == manifest.Hash(d.pod)
}

// complain logs why a declared pod isn't run, once until it is something else.
func (a *Agent) complain(name, text string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	d, ok := a.declared[name]
	if !ok || d.said == text {
		return
	}
	d.said = text
	a.declared[name] = d
	a.cfg.Log.Error("agent: declared pod "+text, "pod", name, "source", d.source)
}

func (a *Agent) isDeclared(pod *corev1.Pod) bool {
	a.mu.RLock()
	defer a.mu.RUnlock()
	_, ok := a.declared[nameOf(pod)]
	return ok
}
