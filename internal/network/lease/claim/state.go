package claim

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/network/peer"
)

const (
	// maxBlocks is how many blocks of a family a node claims.
	maxBlocks = 8
	// spareFor is how long a block must be empty until it is given back.
	spareFor = time.Hour
	// keepEvery is how often a session is prolonged, or more often if its TTL is short.
	keepEvery = time.Minute
)

// Config is what a node knows before anything happens.
type Config struct {
	Node string // its name
	Boot string // ID of its boot
	Pool Pool
	// Store is what the store is called in messages, such as "etcd at https://192.0.2.1:2379".
	Store string
}

// State is the protocol's state on one node.
type State struct {
	// Fence returns until when a session can be relied on that was asked for at sent, and confirmed
	// at answered. Simulations plant bugs here.
	Fence func(sent, answered, ttl time.Duration) time.Duration

	cfg   Config
	saved Saved // as read from disk

	term
	calls
	memory memory
	own    blocks
	lost   []Claim // blocks that were this node's, with the new holder
	told   int     // calls of Used
	// used are the blocks of which pods have addresses: the node's own, those that it has lost, and
	// those around addresses from before it had blocks.
	used []netip.Prefix

	snap   Snapshot
	bound  map[Session][]netip.Prefix // the blocks of snap by session; never modified
	known  bool                       // snap is there
	record peer.Node
	// announced means that record is there.
	announced bool
	// joined means that the record in the store was this process's own.
	joined bool
	// refused says why the node can't take part; empty if it can.
	refused string
	former  *former // nil once nothing of the node has another name in the store
}

// term is for how long the node has a session.
type term struct {
	session Session
	ended   Session // the last one that ended
	sent    Instant // when session was last prolonged
	ttl     time.Duration
	until   time.Duration
}

// since returns when the session was last prolonged.
func (t term) since() string {
	if t.sent.Wall.IsZero() {
		return "the start"
	}
	return t.sent.Wall.UTC().Format(time.RFC3339)
}

// calls is what came of the calls of the store, and when to call it again.
type calls struct {
	keepAt, retryAt, claimAt time.Duration
	conflict                 bool // wait for the next snapshot
	settling                 bool // no blocks are claimed for the first time
	failures                 int
	failure, unfollowed      string // why calls and Follow fail
}

// New returns the state of a node that has just started.
func New(cfg Config, saved Saved, now Instant) *State {
	s := &State{cfg: cfg, Fence: func(sent, _, ttl time.Duration) time.Duration { return Until(sent, ttl) }}
	if saved.Node != cfg.Node {
		s.former = newFormer(saved)
		return s
	}
	s.saved, s.session, s.ttl = saved, saved.Session, saved.TTL
	for _, b := range saved.Blocks {
		s.own = append(s.own, own{block: b, held: true})
	}
	for _, b := range saved.Unbound {
		s.own = append(s.own, own{block: b})
	}
	if saved.Boot == cfg.Boot {
		s.until = saved.Until
		s.sent = Instant{Boot: now.Boot, Wall: saved.Sent}
	}
	return s
}

// Copy returns a copy, which the original doesn't change.
func (s *State) Copy() *State {
	c := *s
	c.own, c.lost, c.memory.kept = slices.Clone(s.own), slices.Clone(s.lost), slices.Clone(s.memory.kept)
	if s.former != nil {
		f := *s.former
		c.former = &f
	}
	return &c
}

// Saved returns what must be on disk before the next action.
func (s *State) Saved() Saved {
	if s.former != nil {
		return s.former.saved
	}
	saved := Saved{Node: s.cfg.Node, Boot: s.cfg.Boot, Addresses: s.record.Addresses, Session: s.session, Until: s.until, Sent: s.sent.Wall, TTL: s.ttl}
	for _, o := range s.own {
		switch {
		case o.fresh || o.retiring:
		case o.held:
			saved.Blocks = append(saved.Blocks, o.block)
		default:
			saved.Unbound = append(saved.Unbound, o.block)
		}
	}
	return saved
}

// Kind is what to do.
type Kind int

// Kinds of actions.
const (
	Wait    Kind = iota
	Keep         // prolong the session, or begin one if it is empty
	Write        // write the record
	Bind         // claim the block
	Look         // ask when the session was last prolonged
	Move         // take over what the node has under its former name
	Retire       // stop using the block: call Retired
	Free         // give the block back
	Restore      // write the record and blocks of another node that the store has lost
)

// Action is what to do next.
type Action struct {
	Do      Kind
	At      time.Duration // when to ask again at the latest, for Wait; 0 is never
	Session Session
	Block   netip.Prefix
	// Again means that pods may have addresses of the block already.
	Again    bool
	Blocks   []netip.Prefix // for Keep: which must be bound
	Record   peer.Node
	Revision int64 // the record's that is in the store; 0 if there is none
	From     From  // for Move
}

// Next returns what to do next.
func (s *State) Next(now time.Duration) Action {
	switch {
	case !s.known || !s.announced || s.refused != "" && (s.former == nil || !s.former.others):
		return Action{}
	case now < s.retryAt:
		return Action{At: s.retryAt}
	case s.former != nil && !s.former.mine:
		return s.former.look(now)
	case s.session == "" || now >= s.keepAt:
		a := Action{Do: Keep, Session: s.session}
		for _, o := range s.own {
			a.Blocks = append(a.Blocks, o.block)
		}
		return a
	}
	if r, written := s.written(); !written || s.former != nil {
		if s.conflict {
			return Action{At: s.keepAt}
		}
		if s.former != nil {
			return s.move(r.Revision)
		}
		return Action{Do: Write, Session: s.session, Record: s.record, Revision: r.Revision}
	}
	if a := s.giveBack(now); a.Do != Wait {
		return a
	}
	at := s.keepAt
	if now < s.claimAt {
		at = min(at, s.claimAt)
	} else if a := s.claimNext(); a.Do != Wait {
		return a
	}
	restore := s.memory.restore(s.snap, now)
	if restore.Do != Wait {
		return restore
	}
	if restore.At > 0 {
		at = min(at, restore.At)
	}
	for _, o := range s.own {
		if o.empty > now-spareFor {
			at = min(at, o.empty+spareFor)
		}
	}
	return Action{At: at}
}

// written returns the node's record in the store, and whether it is as it should be.
func (s *State) written() (Record, bool) {
	r, ok := s.find()
	return r, ok && r.Session == s.session && r.Node.Equal(s.record)
}

func (s *State) find() (Record, bool) {
	i, ok := s.snap.find(s.cfg.Node)
	if !ok || s.snap.Records[i].Session == s.ended && s.ended != "" {
		return Record{}, false
	}
	return *s.snap.Records[i], true
}

// giveBack returns how to give a block back, if there is one to give back.
func (s *State) giveBack(now time.Duration) Action {
	for _, o := range s.own {
		if o.retiring && s.told > o.retired && o.usage.Used == 0 {
			return Action{Do: Free, Session: s.session, Block: o.block}
		}
	}
	for _, c := range s.snap.Claims { // what was asked for before a restart, or what a backup has
		if c.Session == s.session && s.own.index(c.Block) < 0 {
			return Action{Do: Free, Session: s.session, Block: c.Block}
		}
	}
	for _, o := range slices.Backward(s.own) {
		empty := !o.retiring && !o.fresh && o.usage.Size > 0 && o.usage.Used == 0
		if outside := !s.cfg.Pool.contains(o.block); empty && outside {
			return Action{Do: Retire, Block: o.block}
		}
		if empty && now-o.empty >= spareFor {
			if rest := s.own.usages(s.cfg.Pool, o.block.Addr().Is6(), o.block); len(rest) > 0 && !full(rest) {
				return Action{Do: Retire, Block: o.block}
			}
		}
	}
	return Action{}
}

// claimNext returns which block to claim, if there is one to claim.
func (s *State) claimNext() Action {
	for _, o := range s.own {
		if !o.held && !o.retiring {
			return Action{Do: Bind, Session: s.session, Block: o.block, Again: !o.fresh}
		}
	}
	for _, six := range s.cfg.Pool.families() {
		if !s.wants(six) {
			continue
		}
		if block, ok := s.cfg.Pool.Next(six, s.cfg.Node, s.taken()); ok {
			return Action{Do: Bind, Session: s.session, Block: block}
		}
	}
	return Action{}
}

// wants reports whether the node needs another block of a family.
func (s *State) wants(six bool) bool {
	blocks := s.own.usages(s.cfg.Pool, six, netip.Prefix{})
	unknown := slices.ContainsFunc(blocks, func(u peer.Usage) bool { return u.Size == 0 })
	return len(blocks) == 0 || len(blocks) < maxBlocks && !unknown && full(blocks)
}

func (s *State) taken() []netip.Prefix {
	out := make([]netip.Prefix, 0, len(s.snap.Claims)+len(s.own))
	for _, c := range s.snap.Claims {
		out = append(out, c.Block)
	}
	for _, k := range s.memory.kept {
		out = append(out, k.blocks...)
	}
	for _, o := range s.own {
		out = append(out, o.block)
	}
	return out
}

// Announce sets the record that the other nodes should have.
func (s *State) Announce(record peer.Node, now Instant) {
	record.Version, record.Name, record.Blocks = peer.Version, s.cfg.Node, nil
	record.Boot = cmp.Or(record.Boot, s.cfg.Boot)
	if first := !s.announced; first && s.saved.Boot != "" && s.saved.Boot != s.cfg.Boot && shareAddress(record.Addresses, s.saved.Addresses) {
		// The address shows that this disk isn't a copy in another machine.
		s.sent.Wall = s.saved.Sent
		s.until = now.Boot + afterReboot(s.saved.Sent, now.Wall, s.saved.TTL)
	}
	s.record, s.announced, s.conflict = record, true, false
	s.identify()
}

func shareAddress(a, b []netip.Addr) bool {
	return slices.ContainsFunc(a, func(x netip.Addr) bool { return slices.Contains(b, x) })
}

// Snapshot sets what the store has. It may be older than the latest answers.
func (s *State) Snapshot(snap Snapshot, now time.Duration) {
	if s.known {
		s.memory.remember(s.cfg.Node, s.snap, snap, now, s.ttl)
	}
	if !slices.Equal(snap.Claims, s.snap.Claims) {
		s.bound = bySession(snap.Claims)
	}
	s.snap, s.known, s.conflict, s.unfollowed, s.memory.heard = snap, true, false, "", now
	s.memory.forget(snap, now)
	s.identify()
	s.own = s.own.adopt(s.used, s.cfg.Pool, s.taken())
	if _, written := s.written(); s.joined && !written {
		s.keepAt = now
	}
	bound := map[netip.Prefix]bool{}
	for _, c := range snap.Claims {
		if c.Session == s.session {
			bound[c.Block] = true
		}
	}
	for _, o := range s.own {
		if o.held && !bound[o.block] {
			s.keepAt = now // ask whether it is gone, or the snapshot is old
		}
	}
}

// identify compares the node with the records that have its name, and its former name.
func (s *State) identify() {
	s.refused = ""
	s.compare()
	s.recognize()
}

// compare compares the node with the record that has its name. A machine with another address that
// didn't boot at the same time is another machine.
func (s *State) compare() {
	r, ok := s.find()
	if !s.announced || !ok {
		return
	}
	if r.Node.Boot != s.record.Boot && !shareAddress(r.Node.Addresses, s.record.Addresses) {
		s.refused = fmt.Sprintf("two machines have the node name %s: one with addresses %v and boot ID %s, and this one with addresses %v and boot ID %s: rename one of them; if the other one is gone, delete its key nodes/%s from %s",
			s.cfg.Node, r.Node.Addresses, r.Node.Boot, s.record.Addresses, s.record.Boot, s.cfg.Node, s.cfg.Store)
		return
	}
	if r.Session == "" || r.Session == s.session || s.joined && s.session != "" {
		return
	}
	// An earlier process of this machine began the session, or other nodes wrote it into the store
	// again that had lost it.
	s.session, s.keepAt = r.Session, 0
	for i := range s.own {
		s.own[i].held = false
	}
	for _, c := range s.snap.Claims {
		// A node that knows which blocks it has gives back all others: if the store was restored from
		// a backup, they may be another node's by now.
		if forgot := s.sent.Boot == 0 && s.saved.Node == ""; forgot && c.Session == s.session && s.own.index(c.Block) < 0 {
			s.own = append(s.own, own{block: c.Block})
		}
	}
}

// Used sets how full blocks are. What isn't in it isn't in use.
func (s *State) Used(blocks []peer.Usage, now time.Duration) {
	s.told++
	s.used = nil
	for _, u := range blocks {
		block := u.Block
		if block.IsSingleIP() {
			block = netip.PrefixFrom(block.Addr(), s.cfg.Pool.length(block.Addr().Is6())).Masked()
		}
		if u.Used > 0 {
			s.used = append(s.used, block)
		}
	}
	if s.known {
		s.own = s.own.adopt(s.used, s.cfg.Pool, s.taken())
	}
	used := func(b netip.Prefix) bool {
		return slices.ContainsFunc(blocks, func(u peer.Usage) bool { return b.Overlaps(u.Block) && u.Used > 0 })
	}
	s.lost = slices.DeleteFunc(s.lost, func(c Claim) bool { return !used(c.Block) })
	for i := range s.own {
		o := &s.own[i]
		was := o.usage
		if n := slices.IndexFunc(blocks, func(u peer.Usage) bool { return u.Block == o.block }); n >= 0 {
			o.usage = blocks[n]
		} else {
			o.usage = peer.Usage{Block: o.block, Size: was.Size}
		}
		if o.usage.Used > 0 {
			o.retiring = false
		} else if was.Used > 0 || was.Size == 0 {
			o.empty = now
		}
	}
}

// Kept takes what the store answered to Keep.
func (s *State) Kept(sent Instant, answered time.Duration, kept Kept, err error) {
	if errors.Is(err, ErrLost) {
		s.ended, s.session = s.session, ""
		s.own = slices.DeleteFunc(s.own, func(o own) bool { return o.fresh || o.retiring })
		for i := range s.own {
			s.own[i].held = false
		}
		s.until, s.failure, s.conflict, s.joined = 0, "", false, false
		return
	}
	if s.failed(answered, err) {
		return
	}
	began := s.session == ""
	if !began {
		s.memory.heard = sent.Boot
	}
	s.session, s.sent, s.ttl = kept.Session, sent, kept.TTL
	s.until = s.Fence(sent.Boot, answered, kept.TTL)
	s.keepAt = answered + keepInterval(kept.TTL)
	for i := range s.own {
		o := &s.own[i]
		o.held = !began && slices.Contains(kept.Bound, o.block)
		if o.held {
			o.fresh = false
		}
	}
	s.own = slices.DeleteFunc(s.own, func(o own) bool { return o.retiring && !o.held })
}

// failed takes note of a call that failed for no reason of the protocol, and of one that didn't.
func (s *State) failed(now time.Duration, err error) bool {
	if err == nil {
		s.failures, s.failure = 0, ""
		return false
	}
	s.failures++
	delay := backoff.Wait(time.Second, s.failures, spread(s.cfg.Node, s.failures))
	if s.ttl > 0 {
		delay = min(delay, s.ttl/10)
	}
	s.retryAt, s.failure = now+delay, err.Error()
	return true
}

// spread returns a number from 0 to 1, which depends on the node.
func spread(node string, failures int) float64 {
	hash := fnv.New32a()
	fmt.Fprint(hash, node, failures)
	return float64(hash.Sum32()) / (1 << 32)
}

// Wrote takes what the store answered to Write.
func (s *State) Wrote(a Action, revision int64, now time.Duration, err error) {
	switch {
	case errors.Is(err, ErrConflict):
		s.conflict, s.ended = true, "" // the next snapshot shows which record is there
	case errors.Is(err, ErrLost):
		s.keepAt = now
	case !s.failed(now, err):
		s.joined = true
		// The next snapshot has it too, but nothing needs to wait for that.
		s.put(Record{Node: a.Record, Session: a.Session, Revision: revision})
	}
}

// Bound takes what the store answered to Bind.
func (s *State) Bound(a Action, now time.Duration, err error) {
	i := s.own.index(a.Block)
	taken := new(TakenError)
	s.settling = false
	switch {
	case errors.As(err, &taken):
		if i >= 0 {
			if s.own = slices.Delete(s.own, i, i+1); a.Again {
				s.lost = append(without(s.lost, a.Block), Claim{Block: a.Block, Node: taken.By.Node})
			}
		}
		s.addClaim(taken.By)
	case errors.Is(err, ErrLost):
		s.keepAt = now
	case errors.Is(err, ErrSettling):
		s.settling, s.claimAt = true, now+2*time.Second
	default:
		if i < 0 {
			s.own, i = append(s.own, own{block: a.Block, fresh: true}), len(s.own)
		}
		if s.failed(now, err) {
			return // it may have been claimed nevertheless
		}
		s.own[i].held, s.own[i].fresh = true, false
		s.lost = without(s.lost, a.Block)
		s.addClaim(Claim{Block: a.Block, Node: s.cfg.Node, Session: s.session})
	}
}

// without returns claims without those to a block.
func without(claims []Claim, b netip.Prefix) []Claim {
	return slices.DeleteFunc(claims, func(c Claim) bool { return c.Block == b })
}

// addClaim adds to the snapshot what the next one will have.
func (s *State) addClaim(c Claim) {
	s.snap.Claims = append(without(slices.Clone(s.snap.Claims), c.Block), c)
}

// Retired takes note that a block isn't used any more. Once Used has said so too, it is given back.
func (s *State) Retired(b netip.Prefix) {
	if i := s.own.index(b); i >= 0 {
		s.own[i].retiring, s.own[i].retired = true, s.told
	}
}

// Freed takes what the store answered to Free.
func (s *State) Freed(a Action, now time.Duration, err error) {
	if s.failed(now, err) {
		return
	}
	s.own = slices.DeleteFunc(s.own, func(o own) bool { return o.block == a.Block })
	s.snap.Claims = slices.DeleteFunc(slices.Clone(s.snap.Claims), func(c Claim) bool { return c.Block == a.Block && c.Session == a.Session })
}

// Lost takes note that the store can't be followed.
func (c *calls) Lost(err error) { c.unfollowed = err.Error() }

// Failure returns why the store couldn't be asked the last time, and "" if it could.
func (c *calls) Failure() string { return cmp.Or(c.failure, c.unfollowed) }

// May returns nil if an address of the block may be given to a pod now. For the zero Prefix it
// returns why the node has no block.
func (s *State) May(b netip.Prefix, now time.Duration) error {
	i := s.own.index(b)
	unavailable := func(format string, args ...any) error {
		return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf(format, args...))
	}
	switch {
	case !b.IsValid():
		return unavailable("%s", s.missing())
	case i < 0 && s.former != nil:
		return unavailable("block %v: %s", b, s.missing())
	case i < 0:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("block %v isn't one of this node's", b))
	case s.refused != "":
		return errdefs.ErrFailedPrecondition.WithMessage(s.refused)
	case s.own[i].retiring:
		return unavailable("block %v is empty and on its way back to %s", b, s.cfg.Store)
	case !s.own[i].held || s.own[i].fresh:
		return unavailable("block %v: waits for %s to confirm that it is this node's%s", b, s.cfg.Store, s.because())
	case now >= s.until:
		return unavailable("block %v: %s hasn't confirmed since %s that it is this node's, and may give it to another%s", b, s.cfg.Store, s.since(), s.because())
	}
	return nil
}

// missing returns why the node has no block.
func (s *State) missing() string {
	switch {
	case s.refused != "":
		return s.refused
	case s.Failure() != "" || !s.known:
		return fmt.Sprintf("this node waits for %s to give it a block of pod addresses%s", s.cfg.Store, s.because())
	}
	if !s.announced {
		return "this node doesn't know yet by which addresses other nodes reach it"
	}
	if f := s.former; f != nil {
		return fmt.Sprintf("this node was node %s before, and waits up to %v to take its blocks over from that name in %s, in case another machine uses them", f.saved.Node, f.window(), s.cfg.Store)
	}
	if notes := s.notes(); len(notes) > 0 {
		return notes[0]
	}
	return fmt.Sprintf("this node waits for %s to give it a block of pod addresses", s.cfg.Store)
}

func (c *calls) because() string {
	if why := c.Failure(); why != "" {
		return ": " + why
	}
	return ""
}
