// Package owner holds what the owners of sandboxes and of containers have in common. An owner finds
// its entries by ID and by key, and drives each through a lifecycle table, one step at a time.
// Every state is journaled before its action begins.
//
// A call that changes an entry runs to its end even if the caller goes away. A caller that asks
// again joins the running call and gets the same answer.
package owner

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/huskd/husk/internal/chansync"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/lifecycle"
	"github.com/huskd/husk/internal/pod"
)

// Record is the part of a journal record that entries of every kind have. Each kind embeds it in
// its own record.
type Record[S lifecycle.State] struct {
	State   S         `json:"state"`
	Boot    string    `json:"boot"` // ID of the host's boot in which the entry was last driven
	Created time.Time `json:"created"`
	// Reason says why the entry is not up.
	Reason string `json:"reason,omitempty"`
	// Unwanted marks an entry whose creation failed or was interrupted. No client knows its ID, so it
	// is removed as soon as it is down.
	Unwanted bool `json:"unwanted,omitempty"`
}

// Common returns r itself, to reach it in the record that embeds it.
func (r *Record[S]) Common() *Record[S] { return r }

// Recorded is a pointer to the record of one kind, which embeds Record.
type Recorded[S lifecycle.State] interface {
	comparable
	Common() *Record[S]
	Table() *lifecycle.Table[S]
}

// Object is the part of an entry that depends on its kind. Its methods are called with the entry's
// mutex held, except String and Log.
type Object[S lifecycle.State, V any] interface {
	// String names the entry in errors.
	String() string
	// Log returns the logger for messages about the entry.
	Log() *slog.Logger
	// View returns what Get and List show of the entry.
	View() V
	// Entering is called before a state is recorded. An error prevents that and counts as a failure.
	Entering(ctx context.Context, to S) error
	// Act performs an action. It can be repeated.
	Act(ctx context.Context, in S, do lifecycle.Action) error
	// Failed notes in the record why the entry is about to go down.
	Failed(err error)
}

// Config is what an owner passes to New.
type Config[V any] struct {
	Kind    string // names the kind in errors, logs, journal keys and crash points
	Journal *journal.Journal
	BootID  string // of the running host
	// Changed, if set, is called on every change of an entry's view. It must not block.
	Changed func(V)
	// Stepped, if set, is called after every action, with its error.
	Stepped func(pod.Step, error)
}

// Entries are all entries of one kind. S is their state, R points to their record, C is the CRI
// config that they were made from and V what Get and List show of them.
type Entries[S lifecycle.State, R Recorded[S], C proto.Message, V any] struct {
	cfg     Config[V]
	records journal.ConfigTable[R, C]

	mu   sync.RWMutex
	byID map[string]*Entry[S, R, C, V]
	live map[string]*Entry[S, R, C, V] // by key, those that have not ended
	// taken has the IDs of byID by what no other ID may have in common with them.
	taken map[string]string
	// groups has the entries of byID by their group, without those that have none.
	groups map[string][]*Entry[S, R, C, V]

	background chansync.WaitGroup
	closing    context.Context
	close      context.CancelFunc
}

// New returns entries of one kind. There are none before Load.
func New[S lifecycle.State, R Recorded[S], C proto.Message, V any](cfg Config[V]) *Entries[S, R, C, V] {
	s := &Entries[S, R, C, V]{
		cfg:     cfg,
		records: journal.NewConfigTable[R, C](cfg.Journal, cfg.Kind),
		byID:    map[string]*Entry[S, R, C, V]{},
		live:    map[string]*Entry[S, R, C, V]{},
		taken:   map[string]string{},
		groups:  map[string][]*Entry[S, R, C, V]{},
	}
	s.closing, s.close = context.WithCancel(context.Background())
	return s
}

// Load reads the recorded entries, which restore makes with NewEntry. Records that can't be read
// are set aside and returned as errors.
func (s *Entries[S, R, C, V]) Load(restore func(id string, config C, rec R) *Entry[S, R, C, V]) []error {
	return s.records.Load(func(id string, config C, rec R) error {
		var null R // what JSON's null is decoded to
		switch {
		case !pod.ValidID(id):
			return fmt.Errorf("not a %s ID", s.cfg.Kind)
		case rec == null:
			return errors.New("it is null")
		}
		state, table := rec.Common().State, rec.Table()
		if table.To[state] == nil {
			return fmt.Errorf("state %q is unknown", state)
		}
		e := restore(id, config, rec)
		close(e.created)
		e.publish()
		s.add(e)
		if _, _, removable := table.Next(state, table.Remove); removable {
			e.closeEnded()
		} else {
			s.live[e.key] = e
		}
		return nil
	})
}

// Join returns the live entry with that key. If there is none, it adds the entry that fresh makes
// for a new ID and reports true.
func (s *Entries[S, R, C, V]) Join(key string, fresh func(id string) *Entry[S, R, C, V]) (*Entry[S, R, C, V], bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.live[key]; e != nil {
		return e, false
	}
	e := fresh(s.newID())
	e.publish()
	s.add(e)
	s.live[key] = e
	return e, true
}

// add makes an entry known by its ID and its group. The caller holds s.mu, except during Load.
func (s *Entries[S, R, C, V]) add(e *Entry[S, R, C, V]) {
	s.byID[e.ID], s.taken[pod.Distinct(e.ID)] = e, e.ID
	if e.Group != "" {
		s.groups[e.Group] = append(s.groups[e.Group], e)
	}
}

// newID returns an ID whose derived names no entry has. The caller holds s.mu.
func (s *Entries[S, R, C, V]) newID() string {
	for {
		id := pod.NewID()
		if _, clash := s.taken[pod.Distinct(id)]; !clash {
			return id
		}
	}
}

// Find returns the entry with that ID, or an error of kind errdefs.ErrNotFound.
func (s *Entries[S, R, C, V]) Find(id string) (*Entry[S, R, C, V], error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if e := s.byID[id]; e != nil {
		return e, nil
	}
	return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s %s not found", s.cfg.Kind, pod.Short(id)))
}

// Get returns the view of the entry with that ID.
func (s *Entries[S, R, C, V]) Get(id string) (V, error) {
	e, err := s.Find(id)
	if err != nil {
		var none V
		return none, err
	}
	return e.Status(), nil
}

// All returns all entries, in no order.
func (s *Entries[S, R, C, V]) All() []*Entry[S, R, C, V] {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Collect(maps.Values(s.byID))
}

// Views yields the views of all entries, in no order. It copies none of them, so they must not be
// changed. It never waits for an entry that is being changed.
func (s *Entries[S, R, C, V]) Views() iter.Seq[*V] {
	return func(yield func(*V) bool) {
		for _, e := range s.All() {
			if !yield(e.published.Load()) {
				return
			}
		}
	}
}

// List returns the views of all entries, newest first.
func (s *Entries[S, R, C, V]) List() []V { return newest(s.All(), nil) }

// Select returns the views for which keep returns true, newest first. It copies no others.
func (s *Entries[S, R, C, V]) Select(keep func(*V) bool) []V { return newest(s.All(), keep) }

// ListGroup returns the views of the entries of a group, newest first. It takes no longer, and
// allocates no more, if there are entries of other groups.
func (s *Entries[S, R, C, V]) ListGroup(group string) []V {
	s.mu.RLock()
	members := slices.Clone(s.groups[group])
	s.mu.RUnlock()
	return newest(members, nil)
}

// newest returns the views of entries, newest first, or those for which keep returns true.
func newest[S lifecycle.State, R Recorded[S], C proto.Message, V any](all []*Entry[S, R, C, V], keep func(*V) bool) []V {
	type dated struct {
		created time.Time
		view    *V
	}
	kept := make([]dated, 0, len(all))
	for _, e := range all {
		if v := e.published.Load(); keep == nil || keep(v) {
			kept = append(kept, dated{e.Rec.Common().Created, v})
		}
	}
	slices.SortFunc(kept, func(a, b dated) int { return b.created.Compare(a.created) })
	list := make([]V, len(kept))
	for i, d := range kept {
		list[i] = *d.view
	}
	return list
}

// Closing is done once Close was called.
func (s *Entries[S, R, C, V]) Closing() context.Context { return s.closing }

// Go runs fn in a goroutine that Close waits for.
func (s *Entries[S, R, C, V]) Go(fn func()) { s.background.Go(fn) }

// Close waits until the calls in flight have come to a safe point. What the entries stand for is
// left running.
func (s *Entries[S, R, C, V]) Close() {
	s.close()
	s.background.Wait()
}

// forget drops an entry that was removed.
func (s *Entries[S, R, C, V]) forget(e *Entry[S, R, C, V]) {
	s.freeKey(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byID, e.ID)
	if s.taken[pod.Distinct(e.ID)] == e.ID {
		delete(s.taken, pod.Distinct(e.ID))
	}
	if e.Group == "" {
		return
	}
	left := slices.DeleteFunc(s.groups[e.Group], func(other *Entry[S, R, C, V]) bool { return other == e })
	if len(left) == 0 {
		delete(s.groups, e.Group)
	} else {
		s.groups[e.Group] = left
	}
}

// freeKey lets a new entry have the key of e, which has ended.
func (s *Entries[S, R, C, V]) freeKey(e *Entry[S, R, C, V]) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[e.key] == e {
		delete(s.live, e.key)
	}
}
