package leasetest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// Run tests an implementation of lease.Store. Each store that open returns is empty, and its
// sessions end after ttl, which is at most some seconds.
func Run(t *testing.T, ttl time.Duration, open func(t *testing.T) lease.Store) {
	for name, test := range map[string]func(*suite){
		"Sessions": testSessions, "Blocks": testBlocks, "Overlaps": testOverlaps, "Race": testRace,
		"Records": testRecords, "Follow": testFollow, "Move": testMove, "Revive": testRevive, "Expiry": testExpiry, "Canceled": testCanceled,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			test(&suite{T: t, Store: open(t), ttl: ttl, ctx: ctx})
		})
	}
}

type suite struct {
	*testing.T
	lease.Store
	ttl time.Duration
	ctx context.Context
}

var (
	four = netip.MustParsePrefix("10.201.7.0/24")
	six  = netip.MustParsePrefix("fd68:7573:6b00:7::/64")
)

// begin begins a session.
func (s *suite) begin() claim.Session {
	s.Helper()
	kept, err := s.Keep(s.ctx, "", nil)
	if err != nil {
		s.Fatal(err)
	}
	if kept.Session == "" || kept.TTL < s.ttl || len(kept.Bound) > 0 {
		s.Errorf("began %+v, want a session of at least %v", kept, s.ttl)
	}
	return kept.Session
}

// bind binds a block for a node, and fails unless the error is as wanted: nil, "taken" or an error.
func (s *suite) bind(session claim.Session, node string, block netip.Prefix, want error) {
	s.Helper()
	err := s.Bind(s.ctx, claim.Claim{Block: block, Node: node, Session: session}, false)
	if !errors.Is(err, want) && want != errTaken {
		s.Errorf("node %s claims %v: %v, want %v", node, block, err, want)
	}
	taken := new(claim.TakenError)
	if want == errTaken && (!errors.As(err, &taken) || !taken.By.Block.Overlaps(block) || taken.By.Node == node) {
		s.Errorf("node %s claims %v: %v, want a TakenError that names the holder", node, block, err)
	}
}

var errTaken = errors.New("any TakenError")

// bound fails unless those blocks of all that are asked for are bound to the session.
func (s *suite) bound(session claim.Session, want ...netip.Prefix) {
	s.Helper()
	kept, err := s.Keep(s.ctx, session, []netip.Prefix{four, six})
	if err != nil || !slices.Equal(kept.Bound, want) || kept.Session != session {
		s.Errorf("kept %+v, %v, want blocks %v bound to %s", kept, err, want, session)
	}
}

func testSessions(s *suite) {
	a, b := s.begin(), s.begin()
	if a == b {
		s.Errorf("two sessions are %s", a)
	}
	s.bound(a)
	if err := s.End(s.ctx, a); err != nil {
		s.Error(err)
	}
	if err := s.End(s.ctx, a); err != nil {
		s.Errorf("end a session again: %v", err)
	}
	if kept, err := s.Keep(s.ctx, a, nil); !errors.Is(err, claim.ErrLost) {
		s.Errorf("keep a session that ended: %+v, %v, want ErrLost", kept, err)
	}
	s.bound(b)
}

func testBlocks(s *suite) {
	a, b := s.begin(), s.begin()
	s.bind(a, "a", four, nil)
	s.bind(a, "a", four, nil)
	s.bind(b, "b", four, errTaken)
	s.bind(b, "b", six, nil)
	s.bound(a, four)
	s.bound(b, six)
	if err := s.Free(s.ctx, b, four); err != nil {
		s.Error(err)
	}
	s.bound(a, four)
	for range 2 {
		if err := s.Free(s.ctx, a, four); err != nil {
			s.Error(err)
		}
	}
	s.bound(a)
	s.bind(b, "b", four, nil)
	s.bound(b, four, six)
	if err := s.End(s.ctx, b); err != nil {
		s.Error(err)
	}
	s.bind(a, "a", four, nil)
	s.bind(b, "b", six, claim.ErrLost)
}

func testOverlaps(s *suite) {
	a, b := s.begin(), s.begin()
	s.bind(a, "a", four, nil)
	s.bind(a, "a", six, nil)
	for _, c := range []string{"10.201.7.0/25", "10.201.7.128/25", "10.201.7.255/32", "10.201.6.0/23", "10.201.0.0/16", "10.0.0.0/8",
		"fd68:7573:6b00::/48", "fd68:7573:6b00:7::/80", "fd68:7573:6b00:7:ffff::/112"} {
		s.bind(b, "b", netip.MustParsePrefix(c), errTaken)
	}
	for _, c := range []string{"10.201.8.0/25", "10.201.6.0/24", "10.20.0.0/16", "10.201.70.0/24", "fd68:7573:6b00:8::/64", "fd68:7573:6b00:70::/60"} {
		s.bind(b, "b", netip.MustParsePrefix(c), nil)
	}
}

// testRace: of all nodes that want a block at the same time, one gets it.
func testRace(s *suite) {
	const nodes = 16
	var mu sync.Mutex
	won := 0
	var wg sync.WaitGroup
	for n := range nodes {
		session := s.begin()
		wg.Go(func() {
			err := s.Bind(s.ctx, claim.Claim{Block: four, Node: fmt.Sprint("n", n), Session: session}, false)
			taken := new(claim.TakenError)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.As(err, &taken) {
				s.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		s.Errorf("%d of %d nodes got the block", won, nodes)
	}
}

func record(name string, mtu int) peer.Node {
	return peer.Node{Version: peer.Version, Name: name, Boot: "boot", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, MTU: mtu}
}

func testRecords(s *suite) {
	a, b := s.begin(), s.begin()
	write := func(session claim.Session, mtu int, revision int64, want error) int64 {
		s.Helper()
		got, err := s.Write(s.ctx, session, record("n", mtu), revision)
		if !errors.Is(err, want) || err == nil && got == revision {
			s.Errorf("write at revision %d: %d, %v, want %v", revision, got, err, want)
		}
		return got
	}
	first := write(a, 1400, 0, nil)
	write(b, 1401, 0, claim.ErrConflict)
	second := write(a, 1402, first, nil)
	write(a, 1403, first, claim.ErrConflict)
	third := write(b, 1404, second, nil) // another session of the same node
	if err := s.End(s.ctx, a); err != nil {
		s.Error(err)
	}
	f := s.follow()
	snap := f.wait("the record", func(snap claim.Snapshot) bool { return len(snap.Records) == 1 })
	if r := snap.Records[0]; r.Revision != third || r.Session != b || !r.Node.Equal(record("n", 1404)) {
		s.Errorf("the record is %+v", r)
	}
	write(a, 1405, third, claim.ErrLost)
	if err := s.End(s.ctx, b); err != nil {
		s.Error(err)
	}
	f.wait("no record", func(snap claim.Snapshot) bool { return len(snap.Records) == 0 })
	write(s.begin(), 1406, 0, nil)
}

// follower collects snapshots.
type follower struct {
	s     *suite
	snaps chan claim.Snapshot
	last  claim.Snapshot
}

func (s *suite) follow() *follower {
	f := &follower{s: s, snaps: make(chan claim.Snapshot, 1000)}
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Follow(ctx, func(snap claim.Snapshot) { f.snaps <- snap }); ctx.Err() == nil {
			s.Errorf("Follow ended: %v", err)
		}
	}()
	s.Cleanup(func() { cancel(); <-done })
	return f
}

func (f *follower) wait(what string, ok func(claim.Snapshot) bool) claim.Snapshot {
	f.s.Helper()
	for {
		select {
		case f.last = <-f.snaps:
			if ok(f.last) {
				return f.last
			}
		case <-f.s.ctx.Done():
			f.s.Fatalf("no snapshot with %s; the last is %+v", what, f.last)
		}
	}
}

func testFollow(s *suite) {
	f := s.follow()
	f.wait("nothing", func(snap claim.Snapshot) bool { return len(snap.Claims) == 0 && len(snap.Records) == 0 })
	a, b := s.begin(), s.begin()
	s.bind(a, "a", four, nil)
	s.bind(b, "b", six, nil)
	for _, name := range []string{"c", "a", "b"} {
		if _, err := s.Write(s.ctx, a, record(name, 1500), 0); err != nil {
			s.Error(err)
		}
	}
	whole := func(snap claim.Snapshot) bool {
		return slices.Equal(snap.Claims, []claim.Claim{{Block: four, Node: "a", Session: a}, {Block: six, Node: "b", Session: b}}) &&
			len(snap.Records) == 3 && snap.Records[0].Node.Name == "a" && snap.Records[2].Node.Name == "c" && len(snap.Notes) == 0
	}
	f.wait("two claims and three records", whole)
	late := s.follow()
	if snap := late.wait("anything", func(claim.Snapshot) bool { return true }); !whole(snap) {
		s.Errorf("the first snapshot isn't whole: %+v", snap)
	}
	if err := s.Free(s.ctx, b, six); err != nil {
		s.Error(err)
	}
	f.wait("one claim", func(snap claim.Snapshot) bool { return len(snap.Claims) == 1 })
	if err := s.End(s.ctx, a); err != nil {
		s.Error(err)
	}
	late.wait("nothing", func(snap claim.Snapshot) bool { return len(snap.Claims) == 0 && len(snap.Records) == 0 })
}

// testMove: what a node has under one name goes to another in one step, or not at all.
func testMove(s *suite) {
	a, b, other := s.begin(), s.begin(), s.begin()
	write := func(session claim.Session, name string) int64 {
		revision, err := s.Write(s.ctx, session, record(name, 1500), 0)
		if err != nil {
			s.Error(err)
		}
		return revision
	}
	revision, others := write(a, "a"), write(other, "o")
	s.bind(a, "a", four, nil)
	s.bind(other, "o", six, nil)
	from := claim.From{Node: "a", Session: a, Revision: revision, Blocks: []netip.Prefix{four}}
	for what, wrong := range map[string]claim.From{
		"another's record":    {Node: "o", Session: a, Revision: others, Blocks: from.Blocks},
		"a record that isn't": {Node: "x", Session: a, Blocks: from.Blocks},
		"a former revision":   {Node: "a", Session: a, Revision: revision - 1, Blocks: from.Blocks},
		"another's block":     {Node: "a", Session: a, Revision: revision, Blocks: []netip.Prefix{six}},
	} {
		if _, err := s.Move(s.ctx, b, record("b", 1500), 0, wrong); !errors.Is(err, claim.ErrConflict) {
			s.Errorf("move %s: %v, want ErrConflict", what, err)
		}
	}
	if _, err := s.Move(s.ctx, b, record("o", 1500), 0, from); !errors.Is(err, claim.ErrConflict) {
		s.Errorf("move to another node's name: %v, want ErrConflict", err)
	}
	if ago, err := s.Prolonged(s.ctx, a); err != nil || ago < 0 || ago > s.ttl {
		s.Errorf("prolonged %v ago, %v", ago, err)
	}
	f := s.follow()
	now, err := s.Move(s.ctx, b, record("b", 1500), 0, from)
	if err != nil || now == revision {
		s.Errorf("moved at revision %d: %d, %v", revision, now, err)
	}
	moved := false
	f.wait("the new name", func(snap claim.Snapshot) bool {
		var names []string
		for _, r := range snap.Records {
			names = append(names, r.Node.Name)
		}
		before := slices.Equal(names, []string{"a", "o"}) && snap.Claims[0].Session == a
		moved = slices.Equal(names, []string{"b", "o"}) && snap.Claims[0].Block == four && snap.Claims[0].Session == b
		if !before && !moved {
			s.Errorf("between the names, there are records of %v, and claims %v", names, snap.Claims)
		}
		return moved
	})
	s.bound(b, four)
	s.bound(other, six)
	if _, err := s.Keep(s.ctx, a, nil); !errors.Is(err, claim.ErrLost) {
		s.Errorf("keep the former session: %v, want ErrLost", err)
	}
	if _, err := s.Prolonged(s.ctx, a); !errors.Is(err, claim.ErrLost) {
		s.Errorf("the former session: %v, want ErrLost", err)
	}
	if _, err := s.Move(s.ctx, b, record("b", 1500), now, from); !errors.Is(err, claim.ErrConflict) {
		s.Errorf("move again: %v, want ErrConflict", err)
	}
}

// testRevive: a session that is gone can be begun again by its name, with nothing bound to it, and
// goes on like any other.
func testRevive(s *suite) {
	a, b := s.begin(), s.begin()
	s.bind(a, "a", four, nil)
	if err := s.Revive(s.ctx, a); err != nil {
		s.Errorf("revive a session that is there: %v", err)
	}
	s.bound(a, four)
	if err := s.End(s.ctx, a); err != nil {
		s.Error(err)
	}
	for range 2 {
		if err := s.Revive(s.ctx, a); err != nil {
			s.Error(err)
		}
	}
	s.bound(a)
	s.bind(b, "b", four, nil)
	s.bind(a, "a", four, errTaken)
	s.bind(a, "a", six, nil)
	s.bound(a, six)
	if _, err := s.Write(s.ctx, a, record("a", 1500), 0); err != nil {
		s.Error(err)
	}
	if err := s.End(s.ctx, a); err != nil {
		s.Error(err)
	}
	s.bind(b, "b", six, nil)
}

// testExpiry: a session that isn't prolonged ends with all that is bound to it, but not early.
func testExpiry(s *suite) {
	f := s.follow()
	a, b := s.begin(), s.begin()
	s.bind(a, "a", four, nil)
	if _, err := s.Write(s.ctx, a, record("a", 1500), 0); err != nil {
		s.Error(err)
	}
	sent := time.Now()
	s.bound(a, four)
	for {
		snap := f.wait("anything", func(claim.Snapshot) bool { return true })
		if len(snap.Records) == 1 {
			break
		}
	}
	done := make(chan struct{})
	go func() { // the other session goes on
		defer close(done)
		f.wait("nothing", func(snap claim.Snapshot) bool { return len(snap.Claims) == 0 && len(snap.Records) == 0 })
	}()
	for gone := false; !gone; {
		select {
		case <-done:
			gone = true
		case <-time.After(s.ttl / 4):
			s.bound(b)
		}
	}
	if after := time.Since(sent); after < s.ttl {
		s.Errorf("the session ended %v after it was prolonged, before its TTL of %v", after, s.ttl)
	}
	if _, err := s.Keep(s.ctx, a, nil); !errors.Is(err, claim.ErrLost) {
		s.Errorf("keep: %v, want ErrLost", err)
	}
	s.bind(a, "a", four, claim.ErrLost)
	s.bind(b, "b", four, nil)
}

// testCanceled: no call outlives its context.
func testCanceled(s *suite) {
	session := s.begin()
	ctx, cancel := context.WithCancel(s.ctx)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Follow(ctx, func(claim.Snapshot) {}) }()
	cancel()
	<-done
	began := time.Now()
	_, _ = s.Keep(ctx, session, nil)
	_, _ = s.Write(ctx, session, record("n", 1500), 0)
	_ = s.Bind(ctx, claim.Claim{Block: four, Node: "a", Session: session}, false)
	_ = s.Free(ctx, session, four)
	_ = s.End(ctx, session)
	_, _ = s.Prolonged(ctx, session)
	_ = s.Revive(ctx, session)
	_, _ = s.Move(ctx, session, record("n", 1500), 0, claim.From{Node: "a", Session: session})
	if took := time.Since(began); took > 10*time.Second {
		s.Errorf("eight calls with a canceled context took %v", took)
	}
}
