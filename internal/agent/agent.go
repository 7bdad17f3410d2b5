// Package agent runs pods from manifests and keeps them running. Each pod has a worker, which
// compares what should run with what does, asks package podplan what to do, and does it through the
// owners of sandboxes, containers and images.
//
// An accepted pod is on disk, and is adopted after a restart of huskd or a reboot.
package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/idrange"
	"github.com/huskd/husk/internal/agent/podlogs"
	"github.com/huskd/husk/internal/agent/probe"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
)

// Label marks the sandboxes and containers of the agent, to tell them from those of a CRI client.
// Its value is "true".
const Label = "huskd.github.io/agent"

// Config is what the agent works with.
type Config struct {
	Journal    *journal.Journal
	Sandboxes  *sandbox.Service
	Containers *container.Service
	Images     *image.Store
	Volumes    volume.Volumes
	Logs       podlogs.Dirs
	// Logins, if set, returns the node's own logins for an image, beside those of the pods'
	// secrets, in the order in which they are tried.
	Logins func(ctx context.Context, image string) []criconfig.Login
	// Devices, if set, adds to the config of a pod's container what it needs for the devices that
	// it requests.
	Devices func(ctx context.Context, pod *corev1.Pod, config *runtimeapi.ContainerConfig) error
	// Node returns the node's present state.
	Node func() criconfig.Node
	// Memory, if set, returns the memory that a cgroup uses, and its limit, in bytes. They are 0 if
	// there is none.
	Memory func(cgroup string) (used, limit uint64)
	// PortTaken, if set, returns why a pod in the node's network can't have a port. It must not
	// block. The network asks itself for the other pods.
	PortTaken func(pod.PortMapping) error
	// Begin, if set, starts a trace span of work for a pod; about holds names and values in turn.
	// The returned function ends the span.
	Begin func(ctx context.Context, name string, about ...string) (context.Context, func(error))
	// Changed, if set, is called with the UID of a pod that has changed or is gone. It must not
	// block.
	Changed func(uid string)
	Log     *slog.Logger
}

// Agent runs pods.
type Agent struct {
	cfg      Config
	records  journal.Table[record]
	probes   *probe.Prober
	idRanges idrange.Allocator
	admitted *admission.Ledger
	// Events are the latest events of the pods.
	Events *event.Log
	// UserNamespaced are the sandboxes with a user namespace.
	UserNamespaced Starts
	// Unattached has an item when the network couldn't take a pod's sandbox, and may be able to later.
	Unattached chan struct{}

	// declaring is held while declarations change and are applied: a pod must not be admitted by a
	// declaration that has changed since it was read. Invariant: it is locked before mu.
	declaring sync.Mutex

	preempting sync.Mutex // held while pods are chosen that make room for a critical one

	// Invariant: mu guards the three fields below, and is locked before the mu of a podState.
	mu       sync.RWMutex
	workers  workers
	declared map[source.Kind]map[string]declaration // by namespace/name
	draining bool

	owner sync.Map // *podState by sandbox ID

	background sync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// Starts counts starts of something since huskd was started.
type Starts struct{ started, failed atomic.Uint64 }

// Count returns how many there were, and how many of them failed.
func (s *Starts) Count() (started, failed uint64) { return s.started.Load(), s.failed.Load() }

// New returns an agent without pods. Load adds the recorded ones.
func New(cfg Config) *Agent {
	a := &Agent{
		cfg:      cfg,
		records:  journal.NewTable[record](cfg.Journal, "pod"),
		probes:   probe.New(probe.NewExec(cfg.Containers.Exec), cfg.Journal),
		admitted: admission.NewLedger(cfg.Node),
		Events:   event.NewLog(),
		workers:  workers{byName: map[string]*worker{}, byUID: map[string]*worker{}},
		declared: map[source.Kind]map[string]declaration{},

		Unattached: make(chan struct{}, 1),
	}
	a.closing, a.close = context.WithCancel(context.Background())
	return a
}

// Load adopts the recorded pods and their sandboxes. It sets unreadable records aside and returns
// their errors. It removes the agent's sandboxes that belong to no recorded pod.
func (a *Agent) Load() []error {
	bad := append(a.probes.Load(), a.records.Load(func(uid string, rec record) error {
		switch {
		case rec.Pod == nil || string(rec.Pod.UID) != uid:
			return errors.New("not the record of a pod")
		case a.workers.byName[nameOf(rec.Pod)] != nil:
			return fmt.Errorf("there is another record of pod %s", nameOf(rec.Pod))
		}
		rec.anchor(time.Now())
		a.workers.add(a.newWorker(rec))
		return nil
	})...)
	for _, st := range a.cfg.Sandboxes.List() {
		if st.Config.GetLabels()[Label] == "" {
			continue
		}
		if w := a.workers.byUID[st.Ref().UID]; w != nil {
			w.inventory.add(st.ID)
			continue
		}
		a.cfg.Log.Warn("agent: removing a sandbox without a recorded pod", "sandbox", st.ID, "pod", st.Ref())
		a.background.Go(func() {
			if err := a.cfg.Sandboxes.Remove(a.closing, st.ID); err != nil {
				a.cfg.Log.Warn("agent: removing a sandbox without a recorded pod failed", "sandbox", st.ID, "error", err)
			}
		})
	}
	// What runs is admitted before what waits.
	for _, w := range a.workers.byName {
		if w.inventory.list().occupied() || w.rec.Desired != nil {
			a.admitted.Admit(w.rec.Pod, true)
		}
	}
	a.capacityFreed() // a held resize may fit now
	// A worker that has started may remove itself from a.workers at once.
	workers := slices.Collect(maps.Values(a.workers.byName))
	for _, w := range workers {
		w.step() // publishes the state of the pod
	}
	a.probes.Loaded()
	for _, w := range workers {
		w.start()
	}
	return bad
}

// ContainerChanged makes the container's pod check its state.
func (a *Agent) ContainerChanged(st container.Status) { a.sandboxChanged(st.Sandbox) }

// SandboxChanged makes the sandbox's pod check its state.
func (a *Agent) SandboxChanged(st sandbox.Status) { a.sandboxChanged(st.ID) }

func (a *Agent) sandboxChanged(id string) {
	if s, ok := a.owner.Load(id); ok {
		s.(*podState).nudge()
	}
}

// ImagesChanged makes all pods check their state: one may wait for an image.
func (a *Agent) ImagesChanged() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, w := range a.workers.byName {
		w.nudge()
	}
}

// Attachable makes the pods try again at once whose sandboxes the network couldn't take.
func (a *Agent) Attachable() {
	a.mu.RLock()
	defer a.mu.RUnlock()
	for _, w := range a.workers.byName {
		w.launcher.attachable()
	}
}

// Close ends the agent's work. Pods keep running.
func (a *Agent) Close() {
	a.close()
	a.probes.Close()
	a.background.Wait()
}

// forget drops a pod of which nothing is left.
func (a *Agent) forget(w *worker) {
	a.probes.Watch(w.uid(), nil, probe.Watcher{})
	a.mu.Lock()
	a.workers.remove(w)
	a.mu.Unlock()
	if a.cfg.Changed != nil {
		a.cfg.Changed(w.uid())
	}
	a.declaring.Lock()
	defer a.declaring.Unlock()
	a.reconcileDeclared(func(name string, d declaration) bool {
		return name == w.name() || d.pod.UID == w.manifest.UID // what was w's is free
	})
}
