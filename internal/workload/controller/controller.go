// Package controller owns the workloads of the node. It keeps them in the journal, asks package
// workload which pods should exist, and has the agent start and remove them. The pods belong to
// their workload by an owner reference, so that a crash between a decision and its effects loses
// nothing.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/workload"
)

// Source begins the source of the pods of workloads. The workload's reference follows.
const Source = "workload:"

// Pods starts and removes pods. It is an *agent.Agent.
type Pods interface {
	List() []agent.Pod
	Apply(ctx context.Context, pod *corev1.Pod, objects manifest.Objects, source string) (p agent.Pod, unchanged bool, err error)
	Delete(uid string) error
}

// Claims has the claims of the node. It is a volume.Volumes.
type Claims interface {
	Claims() ([]volume.Claim, error)
	RemoveClaim(namespace, name string) error
}

// Config is what a Controller works with.
type Config struct {
	Journal *journal.Journal
	Pods    Pods
	Claims  Claims
	Events  *event.Log
	Log     *slog.Logger
}

// Controller owns workloads.
type Controller struct {
	cfg     Config
	records journal.Table[record]
	wake    chan struct{} // of capacity 1: nudges add up to one

	// Invariant: mu guards the fields below, and those of the entries.
	mu       sync.Mutex
	entries  map[workload.Ref]*entry
	declared map[source.Kind]map[workload.Ref]string // where workloads are declared
	// readySince is since when pods are ready, by their UIDs.
	readySince map[string]time.Time
	// shared are the objects of all sources; nil until Share is first called.
	shared manifest.Objects
	empty  bool          // no pod of a workload was there at the last decision
	newer  chan struct{} // closed at the next change of a status
}

// record is what the journal keeps of a workload.
type record struct {
	Workload *workload.Workload `json:"workload"`
	State    workload.State     `json:"state"`
	Objects  manifest.Objects   `json:"objects,omitempty"` // that the template references
	Source   string             `json:"source"`
	Removing bool               `json:"removing,omitempty"`
}

// entry is a workload.
type entry struct {
	record
	status workload.Status
	// refused is why pods could not be created, failures how often in a row, retry when to try again.
	refused  string
	failures int
	retry    time.Time
	gone     chan struct{} // closed once nothing is left of a removed workload
	// next is declared as well, and starts once this workload is gone.
	next *declaration
}

// New returns a controller without workloads. Load adds the recorded ones.
func New(cfg Config) *Controller {
	return &Controller{
		cfg: cfg, records: journal.NewTable[record](cfg.Journal, "workload"), wake: make(chan struct{}, 1),
		entries: map[workload.Ref]*entry{}, declared: map[source.Kind]map[workload.Ref]string{},
		readySince: map[string]time.Time{}, newer: make(chan struct{}),
	}
}

// Load adopts the recorded workloads. It sets unreadable records aside and returns their errors.
func (c *Controller) Load() []error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.records.Load(func(uid string, rec record) error {
		if rec.Workload == nil || rec.Workload.Template == nil || string(rec.Workload.UID) != uid {
			return errors.New("not the record of a workload")
		}
		if c.entries[rec.Workload.Ref] != nil {
			return fmt.Errorf("there is another record of %s", rec.Workload.Ref)
		}
		c.entries[rec.Workload.Ref] = &entry{record: rec, gone: make(chan struct{})}
		return nil
	})
}

// Nudge makes the controller decide again. It doesn't block.
func (c *Controller) Nudge() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// gather is how long further changes of pods are waited for: they come in groups.
const gather = 20 * time.Millisecond

// Run decides and acts until ctx ends.
func (c *Controller) Run(ctx context.Context) error {
	c.Nudge()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.wake:
		case <-timer.C:
		}
		work, next := c.decide(time.Now())
		c.act(ctx, work)
		timer.Stop()
		if !next.IsZero() {
			timer.Reset(max(time.Until(next), 0))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(gather):
		}
	}
}

// work is what follows from the decisions about all workloads.
type work struct {
	create []creation
	remove []string // UIDs of pods
}

type creation struct {
	pod     *corev1.Pod
	objects manifest.Objects
	owner   *entry
}

// decide plans all workloads, and keeps their new states. It returns what to do, and when to decide
// again.
func (c *Controller) decide(now time.Time) (w work, next time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) == 0 && c.empty {
		return work{}, time.Time{}
	}
	pods, orphans := c.observe(now)
	c.empty = len(pods) == 0
	w.remove = orphans
	wakeAt := func(t time.Time) {
		if !t.IsZero() && (next.IsZero() || t.Before(next)) {
			next = t
		}
	}
	changed := false
	for _, ref := range slices.SortedFunc(maps.Keys(c.entries), compareRefs) {
		e := c.entries[ref]
		if e == nil {
			continue
		}
		own := pods[e.Workload.UID]
		if e.Removing {
			c.removeLeft(e, own, &w)
			changed = true
			continue
		}
		d := workload.Plan(workload.Input{Workload: e.Workload, State: e.State, Pods: own, Jobs: c.jobsOf(ref), Now: now})
		if !reflect.DeepEqual(d.State, e.State) {
			rec := e.record
			rec.State = d.State
			if err := c.records.Put(string(rec.Workload.UID), rec); err != nil {
				c.report(e, event.Event{Warning: true, Reason: "NotRecorded", Message: err.Error()})
				wakeAt(now.Add(recordRetry))
				continue
			}
			e.record = rec
		}
		for _, ev := range d.Events {
			c.report(e, event.Event{Warning: ev.Warning, Reason: ev.Reason, Message: ev.Message})
		}
		w.remove = append(w.remove, d.Remove...)
		if e.Workload.Retention.WhenScaled {
			c.removeClaims(e, own, d.Status.Desired)
		}
		if len(d.Create) == 0 || now.Before(e.retry) || len(e.Workload.Claims) > 0 && c.shared == nil {
			wakeAt(e.retry)
		} else {
			for _, pod := range d.Create {
				w.create = append(w.create, creation{pod, c.objectsOf(e, pod), e})
			}
		}
		c.runJobs(e, d)
		if d.Expired {
			c.expire(e, own, &w)
		}
		wakeAt(d.Next)
		if e.refused != "" && !d.Status.Done {
			d.Status.Message += ": " + e.refused
		}
		changed = changed || e.status != d.Status
		e.status = d.Status
	}
	if changed {
		close(c.newer)
		c.newer = make(chan struct{})
	}
	return w, next
}

// recordRetry is when to try again after the journal has refused a record.
const recordRetry = 5 * time.Second

func compareRefs(x, y workload.Ref) int { return strings.Compare(x.String(), y.String()) }

// jobsOf returns the Jobs of a CronJob. The caller holds c.mu.
func (c *Controller) jobsOf(ref workload.Ref) []workload.JobSummary {
	if ref.Kind != workload.CronJob {
		return nil
	}
	var out []workload.JobSummary
	for _, e := range c.entries {
		if e.Workload.Owner == nil || *e.Workload.Owner != ref {
			continue
		}
		s := workload.JobSummary{Ref: e.Workload.Ref, Created: e.State.Created, Removing: e.Removing}
		if st := e.State.Job; st != nil {
			s.Finished, s.Failed = st.Finished, st.Failed
		}
		out = append(out, s)
	}
	return out
}

// runJobs starts and removes Jobs of a CronJob. The caller holds c.mu.
func (c *Controller) runJobs(e *entry, d workload.Decision) {
	for _, job := range d.Start {
		rec := record{Workload: job, Objects: e.Objects, Source: Source + e.Workload.String()}
		if err := c.add(rec); err != nil {
			c.report(e, event.Event{Warning: true, Reason: "FailedCreate", Message: err.Error()})
		}
	}
	for _, ref := range d.RemoveJobs {
		if job := c.entries[ref]; job != nil {
			c.beginRemoval(job)
		}
	}
	if len(d.Start)+len(d.RemoveJobs) > 0 {
		c.Nudge()
	}
}

// add records a new workload. The caller holds c.mu.
func (c *Controller) add(rec record) error {
	if old := c.entries[rec.Workload.Ref]; old != nil {
		return fmt.Errorf("%s exists already, from %s", rec.Workload.Ref, old.Source)
	}
	rec.Workload.UID = newUID()
	if err := c.records.Put(string(rec.Workload.UID), rec); err != nil {
		return fmt.Errorf("%s: %w", rec.Workload.Ref, err)
	}
	c.entries[rec.Workload.Ref] = &entry{record: rec, gone: make(chan struct{}), status: workload.Status{Phase: workload.Progressing}}
	c.Nudge()
	return nil
}

// beginRemoval marks a workload for removal. The caller holds c.mu.
func (c *Controller) beginRemoval(e *entry) {
	if e.Removing {
		return
	}
	rec := e.record
	rec.Removing = true
	if err := c.records.PutUsingReserve(string(rec.Workload.UID), rec); err != nil {
		c.cfg.Log.Error("workload: removing failed", "workload", rec.Workload.Ref, "error", err)
		return
	}
	e.record = rec
	c.Nudge()
}

// removeLeft removes what is left of a workload, at last its record. The caller holds c.mu.
func (c *Controller) removeLeft(e *entry, pods []workload.Pod, w *work) {
	left := len(pods)
	for i := range pods {
		if !pods[i].Removing {
			w.remove = append(w.remove, pods[i].UID)
		}
	}
	for _, job := range c.jobsOf(e.Workload.Ref) {
		left++
		c.beginRemoval(c.entries[job.Ref])
	}
	if left > 0 {
		return
	}
	if e.Workload.Retention.WhenDeleted {
		c.removeClaims(e, nil, 0)
	}
	if err := c.records.Delete(string(e.Workload.UID)); err != nil {
		c.cfg.Log.Error("workload: removing failed", "workload", e.Workload.Ref, "error", err)
		return
	}
	delete(c.entries, e.Workload.Ref)
	close(e.gone)
	c.Nudge() // the CronJob of a Job may be able to go
	if next := e.next; next != nil && c.isDeclared(next.Ref, next.from) {
		c.declare(*next)
	}
}

// expire removes an ended Job whose time to live is over. One that is still declared keeps its
// record, or else it would run again. The caller holds c.mu.
func (c *Controller) expire(e *entry, pods []workload.Pod, w *work) {
	if declares(e.Source) {
		for i := range pods {
			if !pods[i].Removing {
				w.remove = append(w.remove, pods[i].UID)
			}
		}
		return
	}
	c.beginRemoval(e)
}

// declares reports whether a source declares what should run, so that it comes back by itself.
func declares(name string) bool {
	return strings.HasPrefix(name, string(source.File)) || strings.HasPrefix(name, string(source.Web))
}

// EventName returns the name in the events of a workload.
func EventName(ref workload.Ref) string {
	return ref.Namespace + "/" + strings.ToLower(string(ref.Kind)) + "/" + ref.Name
}

// report adds an event about a workload.
func (c *Controller) report(e *entry, ev event.Event) {
	ref := e.Workload.Ref
	ev.Pod, ev.UID = EventName(ref), string(e.Workload.UID)
	c.cfg.Events.Add(ev)
	if ev.Warning {
		c.cfg.Log.Warn("workload: "+ev.Message, "workload", ref, "reason", ev.Reason)
	}
}

// observe returns the pods of all workloads by the workloads' UIDs, and the UIDs of the pods whose
// workload is gone. The caller holds c.mu.
func (c *Controller) observe(now time.Time) (pods map[types.UID][]workload.Pod, orphans []string) {
	known := map[types.UID]bool{}
	for _, e := range c.entries {
		known[e.Workload.UID] = true
	}
	pods = map[types.UID][]workload.Pod{}
	ready := map[string]time.Time{}
	for _, p := range c.cfg.Pods.List() {
		_, uid, ok := workload.OwnerOf(p.Manifest)
		if !ok || !strings.HasPrefix(p.Source, Source) {
			continue
		}
		pod := view(p)
		if pod.Ready {
			since, was := c.readySince[pod.UID]
			if !was {
				since = now
			}
			ready[pod.UID], pod.ReadySince = since, since
		}
		if !known[uid] && !pod.Removing {
			orphans = append(orphans, pod.UID)
		}
		pods[uid] = append(pods[uid], pod)
	}
	c.readySince = ready
	return pods, orphans
}
