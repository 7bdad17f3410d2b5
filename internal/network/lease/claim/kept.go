package claim

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// kept is what a node had in the store when that lost it. Others go on with it until the node has
// registered again, as its pods are still there. Because the node itself may know of nothing and go
// on giving out addresses until its session would have ended, they write it into the store again.
type kept struct {
	record Record
	blocks []netip.Prefix // those that are neither bound to the node's session again nor another's
	// until is when the session would end at the latest.
	until time.Duration
	// restoreAt is when to write it into the store, unless the node has done so; 0 if never.
	restoreAt time.Duration
	// registered is when the node had another session; 0 if it has none. Then its blocks are its
	// own business, and kept only while it claims them again.
	registered time.Duration
	name       string // by which it has registered
	// there means that its record is in the store, as others have written it there. When it goes
	// again, it was deleted.
	there bool
}

const (
	// restoreAfter and restoreWithin are when nodes begin to write what the store has lost, and how
	// much later the last of them does: nodes that are well are faster, and blocks can't be claimed
	// for the first time.
	restoreAfter, restoreWithin = 10 * time.Second, 10 * time.Second
	// claimTime is how long a node that has registered again takes at most to claim its blocks.
	claimTime = time.Minute
)

// memory is what the node knows of others that the store may have lost.
type memory struct {
	kept  []kept
	heard time.Duration // when the store is known to have had what is in the snapshot
}

// remember keeps what a snapshot has lost since the last one, but for what is the node's own. What
// is no longer there after a TTL without the store may have ended.
func (m *memory) remember(node string, last, next Snapshot, now, ttl time.Duration) {
	if next.Rewinds <= last.Rewinds || now >= m.heard+ttl {
		return
	}
	restoreAt := func(name string) time.Duration {
		return now + restoreAfter + time.Duration(spread(node+name, 0)*float64(restoreWithin))
	}
	before := map[string]bool{}
	for i := range m.kept {
		if k := &m.kept[i]; k.registered == 0 {
			before[k.name], k.restoreAt, k.there = true, restoreAt(k.name), false
		}
	}
	bound, claims := bySession(last.Claims), bySession(next.Claims)
	for _, r := range last.Records {
		name := r.Node.Name
		if name == node || before[name] {
			continue
		}
		missing := func(b netip.Prefix) bool { return !slices.Contains(claims[r.Session], b) }
		if is := next.record(name); is != nil && is.Session == r.Session && !slices.ContainsFunc(bound[r.Session], missing) {
			continue
		}
		m.kept = append(m.kept, kept{record: *r, blocks: bound[r.Session], until: now + ttl, restoreAt: restoreAt(name), name: name})
	}
}

// forget drops what needn't be kept any more.
func (m *memory) forget(snap Snapshot, now time.Duration) {
	if len(m.kept) == 0 {
		return
	}
	taken := make(map[netip.Prefix]bool, len(snap.Claims))
	for _, c := range snap.Claims {
		taken[c.Block] = true
	}
	at := map[netip.Addr]*Record{}
	for _, r := range snap.Records {
		for _, a := range r.Node.Addresses {
			at[a] = r
		}
	}
	m.kept = slices.DeleteFunc(m.kept, func(k kept) bool { return now >= k.until })
	for i := range m.kept {
		k := &m.kept[i]
		k.blocks = slices.DeleteFunc(slices.Clone(k.blocks), func(b netip.Prefix) bool { return taken[b] })
		r := snap.record(k.record.Node.Name)
		for _, a := range k.record.Node.Addresses {
			if r == nil {
				r = at[a] // it has another name
			}
		}
		if r != nil && r.Session != k.record.Session && k.registered == 0 {
			k.registered, k.name, k.restoreAt = now, r.Node.Name, 0
		}
	}
	m.kept = slices.DeleteFunc(m.kept, func(k kept) bool {
		there := snap.record(k.name) != nil
		return there && len(k.blocks) == 0 || !there && k.there || k.registered > 0 && now >= k.registered+claimTime
	})
	for i := range m.kept {
		m.kept[i].there = snap.record(m.kept[i].name) != nil
	}
}

// record returns the record of a name; nil if there is none.
func (s *Snapshot) record(name string) *Record {
	if i, ok := s.find(name); ok {
		return s.Records[i]
	}
	return nil
}

// restore returns how to write something into the store that it has lost, if it is time for that,
// and otherwise when it is; 0 is never.
func (m *memory) restore(snap Snapshot, now time.Duration) Action {
	var next Action
	for _, k := range m.kept {
		switch {
		case k.restoreAt == 0:
		case now >= k.restoreAt:
			a := Action{Do: Restore, Session: k.record.Session, Record: k.record.Node, Blocks: k.blocks}
			if r := snap.record(k.record.Node.Name); r != nil {
				a.Revision = r.Revision
			}
			return a
		case next.At == 0 || k.restoreAt < next.At:
			next.At = k.restoreAt
		}
	}
	return next
}

// Restored takes what the store answered to Restore. The next snapshot shows what is there now.
func (s *State) Restored(a Action, now time.Duration, err error) {
	taken := new(TakenError)
	if answer := errors.Is(err, ErrConflict) || errors.Is(err, ErrLost) || errors.As(err, &taken); !answer && s.failed(now, err) {
		return
	}
	for i := range s.memory.kept {
		if k := &s.memory.kept[i]; k.record.Node.Name == a.Record.Name {
			k.restoreAt = 0
		}
	}
}

// blocks returns the blocks that nodes have besides those in the store, by the nodes' names.
func (m *memory) blocks() map[string][]netip.Prefix {
	if len(m.kept) == 0 {
		return nil
	}
	out := make(map[string][]netip.Prefix, len(m.kept))
	for _, k := range m.kept {
		out[k.name] = append(out[k.name], k.blocks...)
	}
	return out
}

// records returns the records of the snapshot and those that are kept, in the order of their names.
func (m *memory) records(snap Snapshot) []*Record {
	out := snap.Records
	for i := range m.kept {
		if k := &m.kept[i]; k.registered == 0 && snap.record(k.name) == nil {
			record := k.record
			out = append(slices.Clip(out), &record)
		}
	}
	if len(out) > len(snap.Records) {
		slices.SortFunc(out, func(a, b *Record) int { return cmp.Compare(a.Node.Name, b.Node.Name) })
	}
	return out
}

// loss says that the store has lost something and what follows. It is the same line until it loses
// something again, and empty once nothing is kept any more.
func (m *memory) loss(store string) string {
	if len(m.kept) == 0 {
		return ""
	}
	return fmt.Sprintf("%s had lost what nodes wrote into it: the nodes and blocks that were known stay in force until they are there again, or their leases would have ended", store)
}

// withKept returns the blocks of a node together with those that are kept for it.
func withKept(bound, kept []netip.Prefix) []netip.Prefix {
	if len(kept) == 0 {
		return bound
	}
	out := slices.Concat(bound, kept)
	slices.SortFunc(out, netip.Prefix.Compare)
	return slices.Compact(out)
}
