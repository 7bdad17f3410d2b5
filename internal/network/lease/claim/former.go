package claim

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// former is what the node has in the store under the name that it had before. It takes that over,
// unless another machine with a copy of its disk uses it.
//
// Only a record with an address of this node is its own: another machine can't have that at the
// same time. Even then, nobody else may have prolonged the session since this node did.
type former struct {
	saved  Saved // as read from disk, and kept there until the node has taken everything over
	record Record
	// mine means that nobody else prolongs the session, and others that somebody does.
	mine, others bool

	looked  bool
	renewed time.Duration // since the boot: when the session was last prolonged by others
	quiet   time.Duration // since when nobody has prolonged it, as far as was seen
	lookAt  time.Duration
}

// From is what a node takes over from its former name.
type From struct {
	Node     string
	Session  Session
	Revision int64          // of the record
	Blocks   []netip.Prefix // that are bound to the session
}

// slack is how much later than this node asked for it a session can have been prolonged, and by how
// much the store's answer about that may be wrong.
const slack = 10 * time.Second

func newFormer(saved Saved) *former {
	if saved.Node == "" || saved.Session == "" {
		return nil
	}
	return &former{saved: saved}
}

// sent returns when this node last asked to prolong the session, since this boot, and false if that
// isn't known.
func (f *former) sent(boot string, now Instant) (time.Duration, bool) {
	switch {
	case f.saved.Boot == boot:
		return f.saved.Until - Until(0, f.saved.TTL), f.saved.Until > 0
	case f.saved.Sent.IsZero() || now.Wall.Before(f.saved.Sent): // or the clock isn't synchronized
		return 0, false
	}
	return now.Boot - now.Wall.Sub(f.saved.Sent), true
}

// window is how long nobody must have prolonged the session, if it isn't clear whether this node
// was the last to do it.
func (f *former) window() time.Duration { return keepInterval(f.saved.TTL) + slack }

func (f *former) look(now time.Duration) Action {
	if now < f.lookAt {
		return Action{At: f.lookAt}
	}
	return Action{Do: Look, Session: f.saved.Session}
}

// recognize compares the node with the record of its former name.
func (s *State) recognize() {
	f := s.former
	if f == nil || !s.announced || !s.known {
		return
	}
	i, ok := s.snap.find(f.saved.Node)
	if !ok || s.snap.Records[i].Session != f.saved.Session {
		s.former = nil
		if r, ok := s.find(); ok && s.session != "" && r.Session == s.session {
			// Move has succeeded, but its answer was lost.
			s.joined = true
			s.takeOver(s.bound[s.session])
		} else if !ok && shareAddress(f.saved.Addresses, s.record.Addresses) {
			// The session has ended, or the store has lost it: the blocks may still be free.
			for _, b := range slices.Concat(f.saved.Blocks, f.saved.Unbound) {
				s.own = append(s.own, own{block: b})
			}
		}
		return
	}
	f.record = *s.snap.Records[i]
	there := f.record.Node.Addresses
	switch shared := shareAddress(there, s.record.Addresses); {
	case s.refused != "":
	case shared && f.others:
		s.refused = fmt.Sprintf("this node was node %s before, but another machine still prolongs the claims of that node: if it is a copy of this one, give it other addresses and remove its huskd's root directory; to go on as node %s, set node-name to that",
			f.saved.Node, f.saved.Node)
	case shared:
	case f.record.Node.Boot == s.record.Boot:
		s.refused = fmt.Sprintf("this node was node %s with addresses %v before, and is node %s with addresses %v now: set node-name to %s until its record has the new addresses, then change the name; if this machine is a copy of another one, remove its huskd's root directory; if node %s is gone, delete its key nodes/%s from %s",
			f.saved.Node, there, s.cfg.Node, s.record.Addresses, f.saved.Node, f.saved.Node, f.saved.Node, s.cfg.Store)
	default:
		s.former = nil // another machine, of whose disk this one has a copy
	}
}

// Looked takes what the store answered to Look: how long ago the session was last prolonged.
func (s *State) Looked(ago time.Duration, now Instant, err error) {
	f := s.former
	switch {
	case f == nil:
		return
	case errors.Is(err, ErrLost):
		f.lookAt = now.Boot + slack // the record goes with it, which the next snapshot shows
		return
	case s.failed(now.Boot, err):
		return
	}
	renewed := now.Boot - ago
	if sent, known := f.sent(s.cfg.Boot, now); known && renewed <= sent+slack && !f.looked {
		f.mine = true
		return
	}
	if !f.looked || renewed > f.renewed+slack/2 {
		f.others = f.looked
		f.looked, f.renewed, f.quiet = true, renewed, now.Boot
	} else if now.Boot >= f.quiet+f.window() {
		f.mine, f.others = true, false
	}
	f.lookAt = f.quiet + f.window()
	s.identify()
}

// move returns how to take over what the node has under its former name, whose record has a
// revision under the present name.
func (s *State) move(revision int64) Action {
	f := s.former
	return Action{Do: Move, Session: s.session, Record: s.record, Revision: revision, From: From{
		Node: f.saved.Node, Session: f.saved.Session, Revision: f.record.Revision, Blocks: s.bound[f.saved.Session],
	}}
}

// Moved takes what the store answered to Move.
func (s *State) Moved(a Action, revision int64, now time.Duration, err error) {
	switch {
	case errors.Is(err, ErrConflict):
		s.conflict = true
	case errors.Is(err, ErrLost):
		s.keepAt = now
	case !s.failed(now, err):
		s.former, s.joined = nil, true
		s.snap.Records = slices.DeleteFunc(slices.Clone(s.snap.Records), func(r *Record) bool { return r.Node.Name == a.From.Node })
		s.put(Record{Node: a.Record, Session: a.Session, Revision: revision})
		for _, b := range a.From.Blocks {
			s.addClaim(Claim{Block: b, Node: s.cfg.Node, Session: a.Session})
		}
		s.bound = bySession(s.snap.Claims)
		s.takeOver(a.From.Blocks)
	}
}

// takeOver adds blocks that are bound to the session.
func (s *State) takeOver(blocks []netip.Prefix) {
	for _, b := range blocks {
		if i := s.own.index(b); i >= 0 {
			s.own[i].held, s.own[i].fresh = true, false
			continue
		}
		s.own = append(s.own, own{block: b, held: true})
	}
}

// put adds to the snapshot what the next one will have.
func (s *State) put(r Record) {
	i, ok := s.snap.find(r.Node.Name)
	s.snap.Records = slices.Clone(s.snap.Records)
	if !ok {
		s.snap.Records = slices.Insert(s.snap.Records, i, nil)
	}
	s.snap.Records[i] = &r
}

func (s *Snapshot) find(name string) (int, bool) {
	return slices.BinarySearchFunc(s.Records, name, func(r *Record, name string) int { return cmp.Compare(r.Node.Name, name) })
}

// keepInterval is how often a session is prolonged.
func keepInterval(ttl time.Duration) time.Duration { return min(keepEvery, ttl/6) }
