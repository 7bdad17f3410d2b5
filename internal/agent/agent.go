// Package agent runs pods from manifests and keeps them running. A worker per
// pod compares what is wanted with what is there, has package plan decide, and
// does what that says through the owners of sandboxes, containers and images.
//
// A pod that was accepted is on disk, and is taken up again after a restart of
// huskd or of the host.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sandbox"
)

// Label marks the sandboxes and containers of the agent, so that they are told
// from those of a CRI client. Its value is "true".
const Label = "huskd.github.io/agent"

// Config is what the agent works with.
type Config struct {
	Journal    *journal.Journal
	Sandboxes  *sandbox.Service
	Containers *container.Service
	Images     *image.Store
	Volumes    volume.Volumes
	// Node says how the node is now.
	Node func() criconfig.Node
	// Begin, if set, begins a span of what is done for a pod; about has names and
	// values in turn. The function that it returns is told how that ended.
	Begin func(ctx context.Context, name string, about ...string) (context.Context, func(error))
	// Changed, if set, is told the UID of a pod of which something has changed, or
	// that is gone. It must not block.
	Changed func(uid string)
	Log     *slog.Logger
}

// Agent runs pods.
type Agent struct {
	cfg     Config
	records journal.Table[record]
	probes  *probe.Prober
	ranges  ranges
	room    room
	// Events are what happened to the pods lately.
	Events *event.Log

	// declaring is held while what is declared changes, or is made to be so: a pod
	// that was declared when somebody looked may not be when it is admitted.
	declaring sync.Mutex

	mu       sync.RWMutex
	workers  map[string]*worker                     // by namespace/name
	declared map[source.Kind]map[string]declaration // by namespace/name
	draining bool
	owner    sync.Map // of a sandbox: ID to *worker

	background sync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// New returns an agent. Load gives it the pods of before.
func New(cfg Config) *Agent {
	a := &Agent{
		cfg:     cfg,
		records: journal.NewTable[record](cfg.Journal, "pod"),
		workers: map[string]*worker{},

		Events:   event.NewLog(),
		declared: map[source.Kind]map[string]declaration{},
	}
	a.probes = probe.New(probe.NewExec(cfg.Containers.Exec))
	a.closing, a.close = context.WithCancel(context.Background())
	return a
}

// record is what the journal keeps of a pod. It outlives a boot.
type record struct {
	Pod *corev1.Pod `json:"pod"`
	// Desired is the pod as it is declared while there is no room for its
	// resources, which Pod has not got then.
	Desired *corev1.Pod      `json:"desired,omitempty"`
	Objects manifest.Objects `json:"objects,omitempty"` // that the pod refers to
	Source  string           `json:"source"`
	Want    podplan.Want     `json:"want"`
	// Started is when the pod was first wanted, Since when its stop or removal was.
	Started time.Time      `json:"started"`
	Since   time.Time      `json:"since,omitzero"`
	Grace   *time.Duration `json:"grace,omitempty"`
	// First is the first attempt at a sandbox since the pod was last told to run.
	First uint32 `json:"first,omitempty"`
	// Resize says that the limits of running containers may not be the pod's yet.
	Resize bool `json:"resize,omitempty"`
	// Evicted is set from an eviction until the pod is to run again.
	Evicted *podplan.Eviction `json:"evicted,omitempty"`
	// Refused has the ephemeral containers whose program can't be started.
	Refused map[string]podplan.Failure `json:"refused,omitempty"`
}

func nameOf(pod *corev1.Pod) string { return pod.Namespace + "/" + pod.Name }

// Load takes up the recorded pods, with the sandboxes that they have. Records
// that can't be read are set aside and returned as errors. Sandboxes of the
// agent that no record speaks of are removed.
func (a *Agent) Load() []error {
	bad := a.records.Load(func(uid string, rec record) error {
		switch {
		case rec.Pod == nil || string(rec.Pod.UID) != uid:
			return errors.New("not a pod's record")
		case a.workers[nameOf(rec.Pod)] != nil:
			return fmt.Errorf("another record has pod %s too", nameOf(rec.Pod))
		}
		a.workers[nameOf(rec.Pod)] = a.newWorker(rec)
		return nil
	})
	byUID := map[string]*worker{}
	for _, w := range a.workers {
		byUID[string(w.manifest.UID)] = w
	}
	for _, st := range a.cfg.Sandboxes.List() {
		if st.Config.GetLabels()[Label] == "" {
			continue
		}
		if w := byUID[st.Ref().UID]; w != nil {
			w.sandboxes = append(w.sandboxes, st.ID)
			a.owner.Store(st.ID, w)
			continue
		}
		a.cfg.Log.Warn("agent: removing a sandbox that no pod's record speaks of", "sandbox", st.ID, "pod", st.Ref())
		a.background.Go(func() {
			if err := a.cfg.Sandboxes.Remove(a.closing, st.ID); err != nil {
				a.cfg.Log.Warn("agent: removing it failed", "sandbox", st.ID, "error", err)
			}
		})
	}
	for _, w := range a.workers {
		if sandboxes, _ := w.look(); occupies(sandboxes) || w.rec.Desired != nil { // before those that wait take it
			a.room.take(w.rec.Pod, a.cfg.Node, true)
		}
	}
	a.roomFreed()                                              // what a resize waited for may be gone
	for _, w := range slices.Collect(maps.Values(a.workers)) { // one that is started may be gone at once
		w.step() // so that it is known how the pod is
		w.start()
	}
	return bad
}

// Apply has a pod run. It returns once that is on disk; the pod's start doesn't
// wait for that. The very same pod that is there already is left as it is, and
// started again if it was stopped. A pod of the same name that is being removed
// is waited for. Of the objects those that the pod refers to become its own.
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
			return w.pod(), true, nil
		}
		if err := a.cfg.Journal.Sync(ctx); err != nil {
			return Pod{}, false, fmt.Errorf("pod %s runs, but isn't safe from a power loss yet: %w", nameOf(pod), err)
		}
		return w.pod(), false, nil
	}
}

// admit returns the worker that runs the pod; before is the one that did so
// already, or that of a pod which must be gone first: then there is no worker.
func (a *Agent) admit(d declaration) (w, before *worker, err error) {
	pod := d.pod
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.draining {
		return nil, nil, errdefs.ErrUnavailable.WithMessage("huskd is shutting down: run the pod once it is up again")
	}
	name := nameOf(pod)
	if w := a.workers[name]; w != nil {
		rec := w.record()
		switch {
		case rec.Want == podplan.Remove:
			return nil, w, nil
		case manifest.Hash(rec.declared()) != manifest.Hash(pod):
			changed, ok := inPlace(pod, rec.declared())
			if !ok || rec.Source != d.source {
				return nil, nil, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf(
					"pod %s is there with another manifest (from %s): husk run --replace replaces it, husk rm -f %s removes it", name, rec.Source, name))
			}
			if err := (care{w}).change(changed); err != nil {
				return nil, nil, err
			}
			if err := (care{w}).give(d.objects); err != nil || rec.Want == podplan.Run {
				return w, nil, err
			}
			return w, nil, w.want(podplan.Run, nil)
		}
		if err := (care{w}).give(d.objects); err != nil || rec.Want == podplan.Run {
			return w, w, err
		}
		return w, nil, w.want(podplan.Run, nil)
	}
	for _, other := range a.workers {
		if other.manifest.UID == pod.UID {
			return nil, nil, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf(
				"pod %s has the UID of pod %s: leave metadata.uid out of its manifest", name, nameOf(other.manifest)))
		}
	}
	rec := record{Pod: pod, Objects: d.objects, Source: d.source, Want: podplan.Run, Started: time.Now()}
	if err := a.records.Put(string(pod.UID), rec); err != nil {
		return nil, nil, fmt.Errorf("pod %s: %w", name, err)
	}
	w = a.newWorker(rec)
	a.workers[name] = w
	care{w}.tellIgnored()
	w.start()
	return w, nil, nil
}

// Stop stops a pod, which stays known, and waits until nothing of it is left
// on the host. A grace that is not nil replaces the pod's own.
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
			return fmt.Errorf("pod %s is being stopped, but would run again after a power loss: %w", nameOf(w.manifest), err)
		}
	}
	return w.await(ctx, "stopped", func(p Pod) bool { return p.Settled })
}

// Remove stops a pod and forgets it, with its volumes and logs. A pod that is
// declared in a file is removed by removing it there.
func (a *Agent) Remove(ctx context.Context, uid string) error {
	w, err := a.worker(uid)
	if err != nil {
		return err
	}
	rec := w.record()
	if at, ok := a.declaredAt(rec); ok {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("pod %s is declared in %s: remove it there, or husk stop %s", nameOf(rec.Pod), at, rec.Pod.Name))
	}
	if rec.Want != podplan.Remove {
		if err := w.want(podplan.Remove, nil); err != nil {
			return err
		}
		if err := a.cfg.Journal.Sync(ctx); err != nil {
			return fmt.Errorf("pod %s is being removed, but would be there again after a power loss: %w", nameOf(rec.Pod), err)
		}
	}
	return w.await(ctx, "removed", func(Pod) bool { return false })
}

// Drain stops every pod within the budget, and accepts no other. What is wanted
// of them is not changed: they run again once huskd does. It tells of each pod
// that has stopped, and returns an error if any has not.
func (a *Agent) Drain(ctx context.Context, budget time.Duration, tell func(p Pod, err error)) error {
	a.mu.Lock()
	a.draining = true
	all := make([]*worker, 0, len(a.workers))
	for _, w := range a.workers {
		all = append(all, w)
	}
	a.mu.Unlock()
	type outcome struct {
		w   *worker
		err error
	}
	ended := make(chan outcome)
	for _, w := range all {
		w.drain(budget)
		go func() { ended <- outcome{w, w.await(ctx, "stopped", func(p Pod) bool { return p.Settled })} }()
	}
	var failures []error
	for range all {
		o := <-ended
		tell(o.w.pod(), o.err)
		failures = append(failures, o.err)
	}
	return errors.Join(failures...)
}

func (a *Agent) worker(uid string) (*worker, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, w := range a.workers {
		if string(w.manifest.UID) == uid {
			return w, nil
		}
	}
	return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("pod %s not found: it was removed", uid))
}

// List returns all pods, newest first.
func (a *Agent) List() []Pod {
	a.mu.RLock()
	list := make([]Pod, 0, len(a.workers))
	for _, w := range a.workers {
		list = append(list, w.pod())
	}
	a.mu.RUnlock()
	slices.SortFunc(list, func(x, y Pod) int { return y.Created.Compare(x.Created) })
	return list
}

// Get returns the pod with that UID.
func (a *Agent) Get(uid string) (Pod, error) {
	w, err := a.worker(uid)
	if err != nil {
		return Pod{}, err
	}
	return w.pod(), nil
}

// ContainerChanged has the pod of a container looked at again.
func (a *Agent) ContainerChanged(st container.Status) { a.sandboxChanged(st.Sandbox) }

// SandboxChanged has the pod of a sandbox looked at again.
func (a *Agent) SandboxChanged(st sandbox.Status) { a.sandboxChanged(st.ID) }

func (a *Agent) sandboxChanged(id string) {
	if w, ok := a.owner.Load(id); ok {
		w.(*worker).nudge()
	}
}

// ImagesChanged has all pods looked at again: one may wait for an image.
func (a *Agent) ImagesChanged() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, w := range a.workers {
		w.nudge()
	}
}

// Close ends the agent's work. Pods run on.
func (a *Agent) Close() {
	a.close()
	a.probes.Close()
	a.background.Wait()
}

// forget drops a pod of which nothing is left.
func (a *Agent) forget(w *worker) {
	a.probes.Watch(string(w.manifest.UID), nil, probe.Watcher{})
	a.mu.Lock()
	delete(a.workers, nameOf(w.manifest))
	a.mu.Unlock()
	if a.cfg.Changed != nil {
		a.cfg.Changed(string(w.manifest.UID))
	}
	a.declaring.Lock()
	defer a.declaring.Unlock()
	a.settleDeclared()
}
