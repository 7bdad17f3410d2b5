package owner

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	"github.com/huskd/husk/internal/chansync"
	"github.com/huskd/husk/internal/crashpoint"
	"github.com/huskd/husk/internal/lifecycle"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/trace"
)

// ActionTimeout bounds one action. The caller's own deadline doesn't cut an action short.
const ActionTimeout = 2 * time.Minute

// The pause before something is retried doubles from minPause to maxPause.
const (
	minPause = time.Second
	maxPause = time.Minute
)

// Entry is one sandbox or container.
type Entry[S lifecycle.State, R Recorded[S], C proto.Message, V any] struct {
	ID     string
	Config C
	// Group is what ListGroup finds the entry by, such as the sandbox of a container; empty for none.
	// Invariant: it doesn't change once Load or Join has added the entry.
	Group string

	Mu chansync.Mutex
	// Rec points to the entry's record. Invariant: the record changes only while Mu is held.
	Rec R

	owner  *Entries[S, R, C, V]
	object Object[S, V]
	key    string

	// Invariant: steps and retrying change only while Mu is held.
	steps    []pod.Step // that this huskd has taken
	retrying bool       // a goroutine retries to take the entry down

	// upCtx is the context of actions on the way up. cancelUp ends it when the entry is to be stopped.
	upCtx    context.Context
	cancelUp context.CancelFunc

	created   chan struct{} // closed when the attempt to create the entry has ended
	createErr error         // Invariant: it is read only after created is closed.
	ended     chan struct{} // closed in the table's Ended state
	endedOnce sync.Once

	published atomic.Pointer[V]
}

// NewEntry returns an entry that Load or Join then adds.
func (s *Entries[S, R, C, V]) NewEntry(id, key string, config C, rec R, object Object[S, V]) *Entry[S, R, C, V] {
	e := &Entry[S, R, C, V]{
		ID: id, Config: config, Mu: chansync.NewMutex(), Rec: rec, owner: s, object: object, key: key,
		created: make(chan struct{}), ended: make(chan struct{}),
	}
	e.upCtx, e.cancelUp = context.WithCancel(s.closing)
	return e
}

// Object returns the part of the entry that depends on its kind.
func (e *Entry[S, R, C, V]) Object() Object[S, V] { return e.object }

// Status returns the view that was published last.
func (e *Entry[S, R, C, V]) Status() V { return *e.published.Load() }

// Steps returns the steps that this huskd has taken with the entry, in order. The caller holds
// e.Mu.
func (e *Entry[S, R, C, V]) Steps() []pod.Step { return slices.Clip(e.steps) }

// CancelCreate ends the actions on the way up.
func (e *Entry[S, R, C, V]) CancelCreate() { e.cancelUp() }

// Created is closed when the attempt to create the entry has ended.
func (e *Entry[S, R, C, V]) Created() <-chan struct{} { return e.created }

// Ended is closed when nothing is left of the entry but its record.
func (e *Entry[S, R, C, V]) Ended() <-chan struct{} { return e.ended }

// AwaitCreated waits for Create and returns its result.
func (e *Entry[S, R, C, V]) AwaitCreated(ctx context.Context) (V, error) {
	select {
	case <-e.created:
		return e.Status(), e.createErr
	case <-ctx.Done():
		var none V
		return none, fmt.Errorf("%s: still being created, ask again: %w", e.object, ctx.Err())
	}
}

// Create journals the entry and drives it up, then calls created with e.Mu held. If that fails, it
// takes the entry down again and removes it.
func (e *Entry[S, R, C, V]) Create(ctx context.Context, created func()) {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	defer close(e.created)
	rec, table := e.Rec.Common(), e.Rec.Table()
	ev := table.Create
	var failed error
	if rec.State == table.Reserved { // else it was stopped before
		if err := e.owner.records.Create(e.ID, e.Config, e.Rec); err != nil {
			failed = fmt.Errorf("%s: %w", e.object, err)
			e.object.Failed(failed)
			ev = table.Fail
		}
	}
	if e.createErr = errors.Join(failed, e.Drive(ctx, ev)); e.createErr == nil {
		created()
		return
	}
	rec.Unwanted = true
	if rec.State == table.Ended {
		e.createErr = errors.Join(e.createErr, e.Drive(ctx, table.Remove))
	}
}

// Change runs fn, which changes the entry, to its end. If ctx ends first, Change returns an error:
// the entry is "still being" done, such as "stopped".
func (e *Entry[S, R, C, V]) Change(ctx context.Context, done string, fn func() error) error {
	result := make(chan error, 1)
	e.owner.Go(func() { result <- fn() })
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%s: still being %s, ask again: %w", e.object, done, ctx.Err())
	}
}

// Remove removes an entry that has ended.
func (e *Entry[S, R, C, V]) Remove(ctx context.Context) error {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	if table := e.Rec.Table(); e.Rec.Common().State != table.Removed {
		return e.Drive(ctx, table.Remove)
	}
	return nil
}

// Save journals and publishes a record that has changed without a change of state. The caller holds
// e.Mu.
func (e *Entry[S, R, C, V]) Save() error {
	err := e.owner.records.Put(e.ID, e.Rec)
	e.publish()
	return err
}

// publish makes the record what Get and List show.
func (e *Entry[S, R, C, V]) publish() {
	v := e.object.View()
	e.published.Store(&v)
	if e.owner.cfg.Changed != nil {
		e.owner.cfg.Changed(v)
	}
}

func (e *Entry[S, R, C, V]) closeEnded() { e.endedOnce.Do(func() { close(e.ended) }) }

// Drive applies ev and performs the actions that follow: see lifecycle.Drive. Spans are children of
// ctx's, but the end of ctx doesn't cut actions short. What fails on the way down is retried in the
// background. The caller holds e.Mu.
func (e *Entry[S, R, C, V]) Drive(ctx context.Context, ev lifecycle.Event) error {
	table := e.Rec.Table()
	err := lifecycle.Drive(table, walk[S, R, C, V]{e, ctx}, ev)
	if err != nil && table.Owes(e.Rec.Common().State) && !e.retrying {
		e.retrying = true
		e.owner.Go(e.retry)
	}
	return err
}

// walk drives an entry on behalf of a caller, whose context is asked.
type walk[S lifecycle.State, R Recorded[S], C proto.Message, V any] struct {
	e     *Entry[S, R, C, V]
	asked context.Context
}

func (w walk[S, R, C, V]) String() string { return w.e.object.String() }

func (w walk[S, R, C, V]) State() S { return w.e.Rec.Common().State }

func (w walk[S, R, C, V]) Failed(err error) { w.e.object.Failed(err) }

// Enter journals the state, and only then makes it the entry's. On the way down, a record that
// can't be written stops nothing: the state on disk then allows for more, and repeating its action
// is harmless.
func (w walk[S, R, C, V]) Enter(to S) error {
	e := w.e
	if err := e.object.Entering(w.asked, to); err != nil {
		return err
	}
	rec, table := e.Rec.Common(), e.Rec.Table()
	from := rec.State
	rec.State = to
	var err error
	switch {
	case to == table.Removed:
		err = e.owner.records.Delete(e.ID)
	case to.Down():
		err = e.owner.records.PutUsingReserve(e.ID, e.Rec)
	default:
		err = e.owner.records.Put(e.ID, e.Rec)
	}
	if err != nil && !to.Down() {
		rec.State = from
		return fmt.Errorf("%s: %w", e.object, err)
	}
	if err != nil {
		e.object.Log().Warn(e.owner.cfg.Kind+": can't write the journal", "state", to, "error", err)
	}
	switch to {
	case table.Ended:
		e.owner.freeKey(e)
	case table.Removed:
		e.owner.forget(e)
	}
	e.publish()
	if to == table.Ended { // after publish, so that waiters find it in the status
		e.closeEnded()
	}
	return nil
}

func (w walk[S, R, C, V]) Act(in S, do lifecycle.Action) error {
	e := w.e
	ctx := e.upCtx
	if in.Down() {
		ctx = context.Background() // cleaning up is never cut short
	}
	point := e.owner.cfg.Kind + "/" + string(in)
	crashpoint.Hit(point + "/begin")
	began := time.Now()
	err := e.object.Act(trace.Follow(ctx, w.asked), in, do)
	crashpoint.Hit(point + "/end")
	step := pod.Step{Name: string(do), Took: time.Since(began)}
	if e.owner.cfg.Stepped != nil {
		e.owner.cfg.Stepped(step, err)
	}
	if err == nil {
		e.steps = append(e.steps, step)
	}
	return err
}

// retry goes on taking the entry down, with a growing pause, until it succeeds or huskd ends.
func (e *Entry[S, R, C, V]) retry() {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		select {
		case <-time.After(pause):
		case <-e.owner.closing.Done():
			return
		}
		if e.retryOnce() {
			return
		}
	}
}

// retryOnce reports whether nothing is left to retry.
func (e *Entry[S, R, C, V]) retryOnce() bool {
	e.Mu.Lock()
	defer e.Mu.Unlock()
	rec, table := e.Rec.Common(), e.Rec.Table()
	var err error
	if _, _, stoppable := table.Next(rec.State, table.Stop); stoppable && table.Owes(rec.State) {
		err = e.Drive(e.owner.closing, table.Stop)
	}
	if err == nil && (table.Owes(rec.State) || rec.State == table.Ended && rec.Unwanted) {
		err = e.Drive(e.owner.closing, table.Remove)
	}
	e.WarnTeardown(err)
	e.retrying = err != nil
	return err == nil
}

// WarnTeardown logs err, if any, of a step of the way down. The step is retried in the background.
func (e *Entry[S, R, C, V]) WarnTeardown(err error) {
	if err != nil {
		e.object.Log().Warn(e.owner.cfg.Kind+": teardown failed, it will be retried", "error", err)
	}
}

// Interruption returns the event that ended the last huskd: a restart of huskd or a reboot of the
// host.
func (e *Entry[S, R, C, V]) Interruption() lifecycle.Event {
	if e.Rec.Common().Boot == e.owner.cfg.BootID {
		return e.Rec.Table().Lost
	}
	return e.Rec.Table().Reboot
}

// TakeDown continues, after a restart, to take down an entry that is not up. It calls prepare,
// which notes the reason in the record and returns the event to apply, and does the rest in the
// background without giving up e.Mu in between. When it returns, Get and List show that the entry
// goes down, so that nothing is started in it.
func (e *Entry[S, R, C, V]) TakeDown(prepare func() lifecycle.Event) {
	e.Mu.Lock()
	ev := prepare()
	rec, table := e.Rec.Common(), e.Rec.Table()
	rec.Boot = e.owner.cfg.BootID
	if to, _, ok := table.Next(rec.State, ev); ok {
		from := rec.State
		rec.State = to
		e.publish()
		rec.State = from
	}
	e.owner.Go(func() {
		err := e.Drive(e.owner.closing, ev)
		if err == nil && rec.Unwanted && rec.State == table.Ended {
			err = e.Drive(e.owner.closing, table.Remove)
		}
		e.Mu.Unlock()
		e.WarnTeardown(err)
	})
}

// AwaitExit waits for the end of the entry's process. It calls wait again after errors that say
// nothing about the process, such as too many open files. It returns an error if the runtime
// doesn't know the process, which is errdefs.ErrNotFound, or can only delete it, which is
// errdefs.ErrDataLoss, or if huskd ends.
func (e *Entry[S, R, C, V]) AwaitExit(wait func(ctx context.Context, id string) (oci.Exit, error)) (oci.Exit, error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		exit, err := wait(e.owner.closing, e.ID)
		if err == nil || e.owner.closing.Err() != nil || errdefs.IsNotFound(err) || errdefs.IsDataLoss(err) {
			return exit, err
		}
		e.object.Log().Warn(e.owner.cfg.Kind+": can't wait for its process, will try again", "error", err)
		select {
		case <-time.After(pause):
		case <-e.ended:
			return exit, err
		case <-e.owner.closing.Done():
			return exit, err
		}
	}
}
