// Package leasetest tests implementations of lease.Store, and has one that is in memory.
package leasetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// Fake is a lease.Store in memory.
type Fake struct {
	TTL time.Duration
	// Rate is how fast the store's clock runs; 0 means 1.
	Rate float64
	// Settle is how long blocks aren't claimed for the first time after Restore.
	Settle time.Duration
	// BlindRenew is a bug: whoever prolongs a session gets all of its blocks back, even if they are
	// somebody else's by now.
	BlindRenew bool

	mu       sync.Mutex // Invariant: guards the fields below.
	began    time.Time
	revision int64
	settled  time.Time
	rewinds  int
	changed  chan struct{} // closed at the next change
	last     int           // number of sessions
	content
}

// content is what a backup has.
type content struct {
	sessions map[claim.Session]time.Duration // when they end, on the store's clock
	claims   map[netip.Prefix]claim.Claim
	records  map[string]claim.Record
}

var _ lease.Store = (*Fake)(nil)

func (c content) clone() content {
	return content{maps.Clone(c.sessions), maps.Clone(c.claims), maps.Clone(c.records)}
}

// lock locks f after ending the sessions whose time is up. It returns the time on the store's
// clock.
func (f *Fake) lock() time.Duration {
	f.mu.Lock()
	if f.changed == nil {
		f.began, f.changed = time.Now(), make(chan struct{})
		f.content = content{map[claim.Session]time.Duration{}, map[netip.Prefix]claim.Claim{}, map[string]claim.Record{}}
	}
	now := time.Duration(float64(time.Since(f.began)) * cmp.Or(f.Rate, 1))
	for session, ends := range f.sessions {
		if now >= ends {
			f.end(session)
		}
	}
	return now
}

func (f *Fake) end(session claim.Session) {
	delete(f.sessions, session)
	maps.DeleteFunc(f.claims, func(_ netip.Prefix, c claim.Claim) bool { return c.Session == session })
	maps.DeleteFunc(f.records, func(_ string, r claim.Record) bool { return r.Session == session })
	f.change()
}

func (f *Fake) change() {
	f.revision++
	close(f.changed)
	f.changed = make(chan struct{})
}

// Keep implements lease.Store.
func (f *Fake) Keep(_ context.Context, session claim.Session, blocks []netip.Prefix) (claim.Kept, error) {
	now := f.lock()
	defer f.mu.Unlock()
	if session == "" {
		f.last++
		session = claim.Session(fmt.Sprintf("s%d", f.last))
	} else if _, ok := f.sessions[session]; !ok && !f.BlindRenew {
		return claim.Kept{}, claim.ErrLost
	}
	f.sessions[session] = now + f.TTL
	kept := claim.Kept{Session: session, TTL: f.TTL}
	for _, b := range blocks {
		if f.BlindRenew {
			f.claims[b] = claim.Claim{Block: b, Session: session}
		}
		if f.claims[b].Session == session {
			kept.Bound = append(kept.Bound, b)
		}
	}
	return kept, nil
}

// Write implements lease.Store.
func (f *Fake) Write(_ context.Context, session claim.Session, record peer.Node, revision int64) (int64, error) {
	f.lock()
	defer f.mu.Unlock()
	if _, ok := f.sessions[session]; !ok {
		return 0, claim.ErrLost
	}
	if f.records[record.Name].Revision != revision {
		return 0, claim.ErrConflict
	}
	f.change()
	record.Blocks = nil
	f.records[record.Name] = claim.Record{Node: record, Session: session, Revision: f.revision}
	return f.revision, nil
}

// Prolonged implements lease.Store.
func (f *Fake) Prolonged(_ context.Context, session claim.Session) (time.Duration, error) {
	now := f.lock()
	defer f.mu.Unlock()
	ends, ok := f.sessions[session]
	if !ok {
		return 0, claim.ErrLost
	}
	return f.TTL - (ends - now), nil
}

// Move implements lease.Store.
func (f *Fake) Move(_ context.Context, session claim.Session, record peer.Node, revision int64, from claim.From) (int64, error) {
	f.lock()
	defer f.mu.Unlock()
	if _, ok := f.sessions[session]; !ok {
		return 0, claim.ErrLost
	}
	former := f.records[from.Node]
	foreign := func(b netip.Prefix) bool { return f.claims[b].Session != from.Session }
	if f.records[record.Name].Revision != revision || former.Revision != from.Revision || former.Session != from.Session || slices.ContainsFunc(from.Blocks, foreign) {
		return 0, claim.ErrConflict
	}
	for _, b := range from.Blocks {
		f.claims[b] = claim.Claim{Block: b, Node: record.Name, Session: session}
	}
	record.Blocks = nil
	f.records[record.Name] = claim.Record{Node: record, Session: session, Revision: f.revision + 1}
	f.end(from.Session)
	return f.revision, nil
}

// Bind implements lease.Store.
func (f *Fake) Bind(_ context.Context, c claim.Claim, again bool) error {
	f.lock()
	defer f.mu.Unlock()
	if _, ok := f.sessions[c.Session]; !ok {
		return claim.ErrLost
	}
	if f.claims[c.Block].Session == c.Session {
		return nil
	}
	for b, other := range f.claims {
		if b.Overlaps(c.Block) {
			return &claim.TakenError{By: other}
		}
	}
	if !again && time.Now().Before(f.settled) {
		return claim.ErrSettling
	}
	f.claims[c.Block] = c
	f.change()
	return nil
}

// Free implements lease.Store.
func (f *Fake) Free(_ context.Context, session claim.Session, block netip.Prefix) error {
	f.lock()
	defer f.mu.Unlock()
	if f.claims[block].Session == session {
		f.remove(block)
	}
	return nil
}

func (f *Fake) remove(block netip.Prefix) {
	delete(f.claims, block)
	f.change()
}

// End implements lease.Store.
func (f *Fake) End(_ context.Context, session claim.Session) error {
	f.lock()
	defer f.mu.Unlock()
	f.end(session)
	return nil
}

// Revive implements lease.Store.
func (f *Fake) Revive(_ context.Context, session claim.Session) error {
	now := f.lock()
	defer f.mu.Unlock()
	if _, ok := f.sessions[session]; !ok {
		f.sessions[session] = now + f.TTL
	}
	return nil
}

// Follow implements lease.Store.
func (f *Fake) Follow(ctx context.Context, update func(claim.Snapshot)) error {
	told := int64(-1)
	for ctx.Err() == nil {
		now := f.lock()
		s, changed, revision := f.snapshot(), f.changed, f.revision
		next := time.Hour
		for _, ends := range f.sessions {
			next = min(next, ends-now)
		}
		f.mu.Unlock()
		if revision != told {
			update(s)
			told = revision
			continue
		}
		t := time.NewTimer(time.Duration(float64(next)/cmp.Or(f.Rate, 1)) + time.Millisecond)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
	}
	return ctx.Err()
}

func (f *Fake) snapshot() (s claim.Snapshot) {
	s.Rewinds = f.rewinds
	for _, name := range slices.Sorted(maps.Keys(f.records)) {
		record := f.records[name]
		s.Records = append(s.Records, &record)
	}
	for _, b := range slices.SortedFunc(maps.Keys(f.claims), netip.Prefix.Compare) {
		s.Claims = append(s.Claims, f.claims[b])
	}
	return s
}

// Delete removes a key behind everybody's back: the claim to a block, or a node's record.
func (f *Fake) Delete(block netip.Prefix, node string) {
	f.lock()
	defer f.mu.Unlock()
	delete(f.records, node)
	f.remove(block)
}

// Holder returns who has a block.
func (f *Fake) Holder(block netip.Prefix) claim.Claim {
	f.lock()
	defer f.mu.Unlock()
	return f.claims[block]
}

// Claims returns all claims, in the order of their blocks.
func (f *Fake) Claims() []claim.Claim {
	f.lock()
	defer f.mu.Unlock()
	return f.snapshot().Claims
}

// Backup returns a function that restores what the store has now. All sessions then have their
// whole TTL again.
func (f *Fake) Backup() (restore func()) {
	f.lock()
	defer f.mu.Unlock()
	backup := f.clone()
	return func() {
		now := f.lock()
		defer f.mu.Unlock()
		f.content = backup.clone()
		for s := range f.sessions {
			f.sessions[s] = now + f.TTL
		}
		f.rewind()
	}
}

func (f *Fake) rewind() {
	f.settled = time.Now().Add(f.Settle)
	f.rewinds++
	f.change()
}

// Wipe makes the store empty, as when all of its data is lost.
func (f *Fake) Wipe() {
	f.lock()
	defer f.mu.Unlock()
	clear(f.sessions)
	clear(f.claims)
	clear(f.records)
	f.rewind()
}
