package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/workload"
)

// Apply starts a workload, or changes it. It returns once that is recorded on disk, and whether the
// workload existed unchanged. It waits for a workload of the same name that is being removed. A
// number of pods that was set by Scale is the manifest's again.
func (c *Controller) Apply(ctx context.Context, w *workload.Workload, objects manifest.Objects, from string, replace bool) (unchanged bool, err error) {
	for {
		gone, unchanged, err := c.apply(w, objects, from, replace)
		if err != nil {
			return false, err
		}
		if gone == nil {
			if err := c.cfg.Journal.Sync(ctx); err != nil {
				return false, fmt.Errorf("%s runs, but would be lost in a power failure: %w", w.Ref, err)
			}
			return unchanged, nil
		}
		select {
		case <-gone:
		case <-ctx.Done():
			return false, fmt.Errorf("%s is still being removed: %w", w.Ref, ctx.Err())
		}
	}
}

func (c *Controller) apply(w *workload.Workload, objects manifest.Objects, from string, replace bool) (gone <-chan struct{}, unchanged bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	objects = objects.Of(w.Template)
	e := c.entries[w.Ref]
	switch {
	case e == nil:
		return nil, false, c.add(record{Workload: w, Objects: objects, Source: from})
	case e.Removing:
		return e.gone, false, nil
	case e.Source != from:
		return nil, false, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("%s exists already, from %s: rename one", w.Ref, e.Source))
	case e.Workload.Digest == w.Digest && e.Objects.Equal(objects) && e.State.Scale == nil:
		return nil, true, nil
	case w.Kind == workload.Job && !w.CanFollow(e.Workload):
		if !replace {
			return nil, false, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf(
				"%s exists with another manifest: husk run --replace runs it anew, husk rm %s removes it", w.Ref, short(w.Ref)))
		}
		c.beginRemoval(e)
		return e.gone, false, nil
	}
	return nil, false, c.change(e, w, objects, true)
}

// change replaces what the manifest says. The caller holds c.mu.
func (c *Controller) change(e *entry, w *workload.Workload, objects manifest.Objects, unscale bool) error {
	rec := e.record
	changed := *w
	changed.UID = rec.Workload.UID
	rec.Workload, rec.Objects = &changed, objects
	if unscale {
		rec.State.Scale = nil
	}
	return c.save(e, rec)
}

// save replaces the record of a workload. The caller holds c.mu.
func (c *Controller) save(e *entry, rec record) error {
	if err := c.records.Put(string(rec.Workload.UID), rec); err != nil {
		return fmt.Errorf("%s: %w", rec.Workload.Ref, err)
	}
	e.record = rec
	e.status.Done = false // a waiter must not see the status of before
	e.retry, e.failures = time.Time{}, 0
	c.Nudge()
	return nil
}

// Declare makes set what a source declares. Workloads that are no longer declared are removed, and
// those that have changed follow. A number of pods that was set by Scale stays until the manifest
// changes.
func (c *Controller) Declare(set source.Set) {
	unread := map[string]bool{}
	for _, path := range set.Unread {
		unread[string(set.Kind)+path] = true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	declared := map[workload.Ref]string{}
	for _, d := range set.Workloads {
		from := string(set.Kind) + d.Location
		declared[d.Ref] = from
		c.declare(declaration{d.Workload, set.Objects.Of(d.Template), from, len(set.Unread) > 0})
	}
	for ref, e := range c.entries {
		if strings.HasPrefix(e.Source, string(set.Kind)) && declared[ref] == "" && !unread[e.Source] {
			c.beginRemoval(e)
		} else if unread[e.Source] && declared[ref] == "" {
			declared[ref] = e.Source // a file that can't be read now still declares what it did
		}
	}
	c.declared[set.Kind] = declared
}

// Share gives the templates of workloads new versions of the objects that they refer to. A template
// keeps its copy of an object that is not among them.
func (c *Controller) Share(all manifest.Objects) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.shared == nil {
		c.Nudge()
	}
	c.shared = all
	for _, e := range c.entries {
		rec := e.record
		rec.Objects = rec.Objects.With(all.Of(rec.Workload.Template))
		if e.Removing || rec.Objects.Equal(e.Objects) {
			continue
		}
		if err := c.save(e, rec); err != nil {
			c.cfg.Log.Error("workload: updating the objects failed", "workload", e.Workload.Ref, "error", err)
		}
	}
}

// declaration is a workload that a source declares.
type declaration struct {
	*workload.Workload
	objects manifest.Objects // that the template references
	from    string
	partial bool // a file of the source can't be read
}

// declare starts or changes a declared workload. The caller holds c.mu.
func (c *Controller) declare(d declaration) {
	e := c.entries[d.Ref]
	var err error
	switch {
	case e == nil:
		err = c.add(record{Workload: d.Workload, Objects: d.objects, Source: d.from})
	case e.Removing:
		e.next = &d
	case !declares(e.Source):
		e.next = &d
		err = fmt.Errorf("%s exists already, from %s: it runs as %s declares it once that is removed", d.Ref, e.Source, d.from)
	case e.Workload.Digest == d.Digest && e.Source == d.from:
		if len(d.objects) < len(e.Objects) && d.partial || e.Objects.Equal(d.objects) {
			return // an object that is missing may be in the file that can't be read
		}
		err = c.change(e, d.Workload, d.objects, false)
	case d.Kind == workload.Job && !d.CanFollow(e.Workload):
		c.beginRemoval(e)
		e.next = &d
	default:
		e.Source = d.from
		err = c.change(e, d.Workload, d.objects, true)
	}
	if err != nil {
		c.cfg.Events.Add(event.Event{Pod: d.Namespace + "/" + d.Name, Warning: true, Reason: "NotRun", Message: err.Error()})
		c.cfg.Log.Error("workload: not run", "workload", d.Ref, "error", err)
	}
}

// isDeclared reports whether a workload is still declared by a source. The caller holds c.mu.
func (c *Controller) isDeclared(ref workload.Ref, from string) bool {
	for _, declared := range c.declared {
		if declared[ref] == from {
			return true
		}
	}
	return false
}

// short returns a reference as a user would write it.
func short(ref workload.Ref) string {
	return strings.Replace(ref.String(), "/"+manifest.DefaultNamespace+"/", "/", 1)
}
