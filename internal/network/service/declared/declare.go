package declared

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
)

// Apply makes an object count, or changes it. It returns once that is on disk. A Service keeps the
// addresses and node ports that it has, unless it asks for others. The result is the Service with
// these; it is nil for endpoints.
func (s *Services) Apply(ctx context.Context, o Object, from string) (effective *corev1.Service, unchanged bool, err error) {
	s.mu.Lock()
	e, unchanged, err := s.set(o, from)
	s.mu.Unlock()
	if err != nil || unchanged {
		return e.effectiveOf(), unchanged, err
	}
	if err := s.cfg.Journal.Sync(ctx); err != nil {
		return nil, false, fmt.Errorf("%v counts, but would be lost in a power failure: %w", o, err)
	}
	return e.effective, false, nil
}

func (e *entry) effectiveOf() *corev1.Service {
	if e == nil {
		return nil
	}
	return e.effective
}

// set records an object. The caller holds s.mu.
func (s *Services) set(o Object, from string) (e *entry, unchanged bool, err error) {
	key := o.key()
	before := s.entries[key]
	var old assignment
	if before != nil {
		if before.Source != from && (!declares(before.Source) || !declares(from) || s.isDeclared(key, before.Source)) {
			return nil, false, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("%v exists already, from %s: rename one", o, before.Source))
		}
		if before.Source == from && equal(before.Object, o) {
			return before, true, nil
		}
		old = before.assignment
	}
	rec := record{Object: o, Source: from}
	if o.Service != nil {
		if rec.assignment, err = s.assign(o.Service, old); err != nil {
			return nil, false, fmt.Errorf("%v: %w", o, err)
		}
	}
	if err := s.records.Put(key, rec); err != nil {
		s.restore(key, old)
		return nil, false, fmt.Errorf("%v: %w", o, err)
	}
	e = newEntry(rec)
	s.entries[key] = e
	s.publish()
	if o.Service != nil && o.Service.Spec.Type == corev1.ServiceTypeLoadBalancer {
		s.report(o, event.Event{Reason: "NoLoadBalancer", Message: NoLoadBalancer(e.effective)})
	}
	return e, false, nil
}

// NoLoadBalancer says how to reach a Service of type LoadBalancer instead.
func NoLoadBalancer(effective *corev1.Service) string {
	var ports []string
	for _, p := range effective.Spec.Ports {
		if p.NodePort != 0 {
			ports = append(ports, fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
		}
	}
	text := "a node without a cluster has no load balancer"
	if len(ports) > 0 {
		text += ": connect to node port " + strings.Join(ports, ", ") + " of this node"
	}
	return text
}

// equal reports whether a manifest says the same about an object.
func equal(a, b Object) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}

// declaration is an object that a source declares.
type declaration struct {
	Object
	from      string
	lastError string // why it was last refused
}

// Declare makes set what a source declares. Objects that are no longer declared are removed.
func (s *Services) Declare(set source.Set) {
	unread := map[string]bool{}
	for _, path := range set.Unread {
		unread[string(set.Kind)+path] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	before, now := s.declared[set.Kind], map[string]*declaration{}
	add := func(o Object, location string) {
		d := &declaration{Object: o, from: string(set.Kind) + location}
		if last := before[o.key()]; last != nil {
			d.lastError = last.lastError
		}
		now[o.key()] = d
	}
	for _, d := range set.Services {
		add(Object{Service: d.Service}, d.Location)
	}
	for _, d := range set.Slices {
		add(Object{Slice: d.Slice}, d.Location)
	}
	for key, d := range before {
		if now[key] == nil && unread[d.from] {
			now[key] = d // a file that can't be read now still declares what it did
		}
	}
	s.declared[set.Kind] = now
	for key, e := range s.entries {
		if strings.HasPrefix(e.Source, string(set.Kind)) && now[key] == nil && !unread[e.Source] {
			if err := s.remove(key); err != nil {
				s.cfg.Log.Error("services: removing what is no longer declared failed", "object", e.Object.String(), "error", err)
			}
		}
	}
	s.reconcile()
}

// reconcile makes the declared objects count whose names, addresses and ports are free. Files come
// before URLs. The caller holds s.mu.
func (s *Services) reconcile() {
	for _, kind := range []source.Kind{source.File, source.Web} {
		for _, key := range slices.Sorted(maps.Keys(s.declared[kind])) {
			d := s.declared[kind][key]
			_, _, err := s.set(d.Object, d.from)
			if err == nil {
				d.lastError = ""
				continue
			}
			if text := err.Error(); text != d.lastError {
				d.lastError = text
				s.report(d.Object, event.Event{Warning: true, Reason: "NotServed", Message: text + " (from " + d.from + ")"})
			}
		}
	}
}

// isDeclared reports whether an object is still declared at a place. The caller holds s.mu.
func (s *Services) isDeclared(key, from string) bool {
	for kind, declared := range s.declared {
		if d := declared[key]; d != nil && d.from == from && strings.HasPrefix(from, string(kind)) {
			return true
		}
	}
	return false
}

// remove removes an object. The caller holds s.mu.
func (s *Services) remove(key string) error {
	if err := s.records.Delete(key); err != nil {
		return err
	}
	s.release(key, true)
	delete(s.entries, key)
	delete(s.unselective, key)
	s.publish()
	return nil
}

// Remove removes objects, as far as they exist and nothing declares them, and returns once that is
// on disk. It returns how many it has removed.
func (s *Services) Remove(ctx context.Context, objects ...Object) (removed int, err error) {
	s.mu.Lock()
	for _, o := range objects {
		e := s.entries[o.key()]
		if e == nil {
			continue
		}
		if s.isDeclared(o.key(), e.Source) {
			_, at, _ := strings.Cut(e.Source, ":")
			err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%v is declared in %s: remove it there", o, at))
			break
		}
		if err = s.remove(o.key()); err != nil {
			err = fmt.Errorf("%v: %w", o, err)
			break
		}
		removed++
	}
	s.reconcile()
	s.mu.Unlock()
	if removed == 0 || err != nil {
		return removed, err
	}
	if err := s.cfg.Journal.Sync(ctx); err != nil {
		return removed, fmt.Errorf("the Services are removed, but would exist again after a power failure: %w", err)
	}
	return removed, nil
}
