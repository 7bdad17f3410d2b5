package heartbeat

import (
	"slices"
	"time"

	"github.com/huskd/husk/internal/network/backend"
)

// Target is a peer to watch.
type Target struct {
	Name string
	Ways []backend.Way // by which it can be reached, the preferred first
	Way  backend.Way   // by which it is reached now
	MTU  int           // of the largest packets that pods send
}

// Probe is a packet to send. Some are as large as the largest that pods send, so that a path which
// only lets smaller ones pass counts as broken.
type Probe struct {
	Peer string
	Way  backend.Way
	Seq  uint32
	Size int // of the whole packet
	// Summed means that the packet is sent with its checksum, which is otherwise left to the network
	// card or to the link of the way.
	Summed bool
}

// Health is what the monitor knows of a peer.
type Health struct {
	// Answered is false as long as the peer has never answered. It may not speak this protocol.
	Answered bool
	// RTT is a moving average of the round-trip time by the way in use; 0 until there is one.
	RTT time.Duration
	// Loss is the share of the last probes by the way in use that got no answer, 0 to 1.
	Loss float64
	// Last is when the peer last answered, by any way.
	Last time.Time
	// Broken are the ways that were found not to carry packets.
	Broken []backend.Way
	// Limit is the size of the largest packets that pass; 0 if all do. Pods learn it from the node,
	// by ICMP, while the path itself drops larger packets without a word.
	Limit int
	// Checksums says whether the network gets the checksums of VXLAN packets wrong.
	Checksums Checksums
}

// Impaired reports whether the peer has broken ways, a limit or wrong checksums.
func (h Health) Impaired() bool {
	return len(h.Broken) > 0 || h.Limit > 0 || h.Checksums != ChecksumsFine
}

// The protocol's times and counts.
const (
	// Period is how often each peer is probed that answers, for up to maxRate peers.
	Period = time.Second
	// maxRate is how many probes per second are sent to peers that answer, and to those that haven't
	// for long. It bounds what heartbeats cost a node of thousands of peers.
	maxRate = 400
	// quick is how often a peer is probed that has just not answered, or is new.
	quick = 300 * time.Millisecond
	// patience is how long an answer may take.
	patience = 400 * time.Millisecond
	// misses is how many probes in a row may get no answer.
	misses = 4
	// quickMisses is after how many misses a peer is probed as often as others again.
	quickMisses = 4 * misses
	// retryPeriod is how often a broken way is probed.
	retryPeriod = 2 * time.Second
	// firstHold and lastHold are how long a broken way must answer without a miss before it is used
	// again: the longer, the more often it broke before.
	firstHold, lastHold = 10 * time.Second, 5 * time.Minute
	// calm is how long a way must last to be trusted like a new one.
	calm = 10 * time.Minute
	// window is how many probes Loss is about.
	window = 20
	// burst is how many probes are sent at once.
	burst = 100
)

// Monitor decides which probes to send, and from their answers which ways are broken. It is pure:
// the caller passes the time, and sends what Due returns.
//
// A way is broken if it doesn't answer while another one does. If no way answers, smaller packets
// are tried. If these get no answer either, the peer itself is probably down, and nothing would be
// gained by another way.
type Monitor struct {
	peers    map[string]*watched
	impaired map[string]*watched // see Health.Impaired

	// order has all peers, which are probed in turns, and next is the index of the one whose turn it
	// is. They have had their turns up to the time turned.
	order  []*watched
	next   int
	turned time.Time
	// restless are the peers that are probed more often; see watched.restless.
	restless []*watched

	// sent are the last probes in the order in which they were sent, and first is the sequence number
	// of the first one. The answered ones are empty.
	sent  []sentProbe
	first uint32
}

type sentProbe struct {
	to     *watched // nil if it was answered
	way    backend.Way
	size   int
	at     time.Time
	summed bool
}

type watched struct {
	target   Target
	at       int    // index in Monitor.order
	listed   bool   // in Monitor.restless
	ways     []path // in the order of target.Ways
	health   Health
	outcomes []bool // of the last probes by the way in use
	turn     int    // of the sizes, see size
	tries    int    // large probes to send although the way in use is silent
	sums     sums
	// suspect means that a small probe was answered when large ones weren't, since the last answer to
	// a large one.
	suspect bool
}

// path is the state of a way to a peer.
type path struct {
	way       backend.Way
	next      time.Time // when to probe it
	large     time.Time // when to send a large probe, if it is in use; zero is at once
	missed    int       // probes in a row without an answer
	broken    bool
	goodSince time.Time // since when it has answered without a miss; zero if it doesn't
	carries   bool      // large packets too, since goodSince
	hold      time.Duration
	broke     time.Time
}

// by returns the state of a way; nil if it isn't the peer's.
func (w *watched) by(way backend.Way) *path {
	for i := range w.ways {
		if w.ways[i].way == way {
			return &w.ways[i]
		}
	}
	return nil
}

// NewMonitor returns a monitor without peers.
func NewMonitor() *Monitor {
	return &Monitor{peers: map[string]*watched{}, impaired: map[string]*watched{}}
}

// Watch replaces the peers to watch. What is known of those that stay is kept.
func (m *Monitor) Watch(targets []Target) {
	stay := make(map[string]bool, len(targets))
	for _, t := range targets {
		m.Put(t)
		stay[t.Name] = true
	}
	for name := range m.peers {
		if !stay[name] {
			m.Remove(name)
		}
	}
}

// Put adds a peer to watch, or changes it and keeps what is known of it.
func (m *Monitor) Put(t Target) {
	w := m.peers[t.Name]
	if w == nil {
		w = &watched{at: len(m.order)}
		m.peers[t.Name], m.order = w, append(m.order, w)
	}
	anew := w.target.Way != t.Way || w.target.MTU != t.MTU
	if anew {
		w.health.Limit = 0
		w.outcomes, w.health.RTT, w.health.Loss = nil, 0, 0
		w.tries = 0
		w.sums.stop(w)
	}
	w.target = t
	ways := make([]path, len(t.Ways))
	for i, way := range t.Ways {
		if known := w.by(way); known != nil {
			ways[i] = *known
		} else {
			ways[i] = path{way: way, hold: firstHold}
		}
		if anew {
			ways[i].large = time.Time{}
		}
	}
	w.ways = ways
	m.list(w)
}

// Remove ends watching a peer.
func (m *Monitor) Remove(name string) {
	w := m.peers[name]
	if w == nil {
		return
	}
	last := m.order[len(m.order)-1]
	m.order[w.at], last.at = last, w.at
	m.order = m.order[:len(m.order)-1]
	delete(m.peers, name)
	delete(m.impaired, name)
}

// list adds a peer to the lists that it belongs to.
func (m *Monitor) list(w *watched) {
	if w.health.Impaired() {
		m.impaired[w.target.Name] = w
	} else {
		delete(m.impaired, w.target.Name)
	}
	if !w.listed && w.restless() {
		m.restless, w.listed = append(m.restless, w), true
	}
}

// restless reports whether a peer is to be probed more often than others: it is new, or has begun
// not to answer, or has just answered a small probe after a long silence.
func (w *watched) restless() bool {
	p := w.by(w.target.Way)
	return p != nil && (p.missed < quickMisses && (p.missed > 0 || !w.health.Answered) || w.silent(p) && w.tries == tries)
}

// Health returns what is known of each peer.
func (m *Monitor) Health() map[string]Health {
	out := make(map[string]Health, len(m.peers))
	for name, w := range m.peers {
		out[name] = w.health
	}
	return out
}

// Impaired returns which peers are impaired.
func (m *Monitor) Impaired() map[string]Health {
	out := make(map[string]Health, len(m.impaired))
	for name, w := range m.impaired {
		out[name] = w.health
	}
	return out
}

// Interval returns how often each of a number of peers is probed as long as it answers.
func Interval(peers int) time.Duration {
	return max(Period, time.Duration(peers)*time.Second/maxRate)
}

// Silence returns after which time without an answer one of so many peers is to be reported.
func Silence(peers int) time.Duration { return max(10*time.Second, 2*Interval(peers)) }

// Due returns the probes to send now. How long it takes depends on how many these are.
func (m *Monitor) Due(now time.Time) (due []Probe) {
	for i := 0; i < len(m.restless); {
		w := m.restless[i]
		switch {
		case len(due) >= burst: // the others come first the next time
			m.restless = slices.Concat(m.restless[i:], m.restless[:i])
			return due
		case w.restless() && m.peers[w.target.Name] == w:
			due = m.probe(due, w, now, quick)
			i++
		default:
			w.listed = false
			m.restless = slices.Delete(m.restless, i, i+1)
		}
	}
	return m.turns(due, now)
}

// turns adds the probes of the peers whose turn it is.
func (m *Monitor) turns(due []Probe, now time.Time) []Probe {
	if len(m.order) == 0 {
		return due
	}
	each := Interval(len(m.order)) / time.Duration(len(m.order))
	if now.Sub(m.turned) > 2*Period { // what wasn't possible isn't made up for
		m.turned = now.Add(-each)
	}
	for range m.order {
		if now.Sub(m.turned) < each {
			break
		}
		m.next = (m.next + 1) % len(m.order)
		w, before := m.order[m.next], len(due)
		if !w.restless() {
			due = m.probe(due, w, now, 0)
		}
		// Probes of broken ways only count once there are too many of all.
		m.turned = m.turned.Add(max(each, time.Duration(len(due)-before)*time.Second/maxRate))
	}
	return due
}

// probe adds the probes of a peer that are due, with a time between those of one way.
func (m *Monitor) probe(due []Probe, w *watched, now time.Time, between time.Duration) []Probe {
	summed := w.target.MTU
	for i := range w.ways {
		p := &w.ways[i]
		if now.Before(p.next) || !w.wants(p) {
			continue
		}
		p.next = now.Add(between)
		if p.way != w.target.Way && p.broken {
			p.next = now.Add(retryPeriod)
		}
		size := w.size(p, now, LargePeriod(len(m.order)))
		if p.way == w.target.Way && size == small {
			summed = small
		}
		due = append(due, m.send(w, p.way, size, now, false))
	}
	if w.wantsSummed(now) {
		w.sums.next = now.Add(between)
		due = append(due, m.send(w, w.target.Way, summed, now, true))
	}
	return due
}

// send returns a probe, and remembers it.
func (m *Monitor) send(w *watched, way backend.Way, size int, now time.Time, summed bool) Probe {
	m.sent = append(m.sent, sentProbe{w, way, size, now, summed})
	return Probe{Peer: w.target.Name, Way: way, Seq: m.first + uint32(len(m.sent)) - 1, Size: size, Summed: summed}
}

// wants reports whether a way is to be probed: the one in use, broken ones, and all others once the
// one in use doesn't answer.
func (w *watched) wants(p *path) bool {
	if p.way == w.target.Way || p.broken {
		return true
	}
	current := w.by(w.target.Way)
	return current != nil && current.missed > 0
}

// Answer takes the answer to a probe, which the peer has sent some time after it had received the
// probe. It reports whether Broken or Limit of a peer has changed.
func (m *Monitor) Answer(seq uint32, held time.Duration, now time.Time) (changed bool) {
	i := seq - m.first
	if i >= uint32(len(m.sent)) {
		return false
	}
	s := m.sent[i]
	m.sent[i].to = nil
	w, p := m.probed(s)
	if p == nil {
		return false
	}
	if s.summed {
		w.sums.answered++
		if s.size != small {
			w.health.Answered, w.health.Last = true, now
		}
		return false
	}
	if s.way == w.target.Way {
		changed = w.sums.good(w)
		if s.size == small && p.missed > 0 {
			if w.silent(p) && w.tries == 0 {
				w.tries, p.next = tries, time.Time{}
			}
			m.list(w)
			return changed
		}
		w.tries = 0
		if s.size != small {
			changed = w.limit(s.size) || changed
		}
	}
	p.missed, p.carries = 0, p.carries || s.size != small
	if p.goodSince.IsZero() {
		p.goodSince = now
	}
	if s.way == w.target.Way || s.size != small {
		w.health.Answered, w.health.Last = true, now
	}
	if s.way == w.target.Way {
		w.outcome(true)
		rtt := max(0, now.Sub(s.at)-held)
		if w.health.RTT > 0 {
			rtt = (7*w.health.RTT + rtt) / 8 // as TCP smooths it (RFC 6298)
		}
		w.health.RTT = rtt
	}
	if p.broken && p.carries && now.Sub(p.goodSince) >= p.hold {
		p.broken = false
		changed = w.listBroken() || changed
	}
	if changed {
		m.list(w)
	}
	return changed
}

// probed returns the peer that a probe was sent to and the state of its way; nil if it was answered
// or one of them is gone.
func (m *Monitor) probed(s sentProbe) (*watched, *path) {
	if s.to == nil || m.peers[s.to.target.Name] != s.to {
		return nil, nil
	}
	return s.to, s.to.by(s.way)
}

// Expire takes the probes that got no answer in time. It reports whether Broken of a peer has
// changed.
func (m *Monitor) Expire(now time.Time) (changed bool) {
	for len(m.sent) > 0 && now.Sub(m.sent[0].at) >= patience {
		s := m.sent[0]
		m.sent, m.first = m.sent[1:], m.first+1
		w, p := m.probed(s)
		if p == nil {
			continue
		}
		if w.health.Limit > 0 && s.size > w.health.Limit {
			continue // it was only to see whether the limit is gone
		}
		if s.summed {
			w.sums.answered = 0
			continue
		}
		p.missed++
		p.goodSince, p.carries = time.Time{}, false
		if s.way == w.target.Way {
			w.outcome(false)
			found, wait := w.sums.silent(w, now)
			changed = changed || found
			if !wait {
				changed = w.breakSilent(s.at, now) || changed
			}
		}
		m.list(w)
	}
	return changed
}

// breakSilent marks the way in use broken if it doesn't answer and another one does. The other one
// must have answered before the last unanswered probe was sent: a peer that comes back answers one
// way before the other.
func (w *watched) breakSilent(sent, now time.Time) (changed bool) {
	current := w.by(w.target.Way)
	if current == nil || current.missed < misses || current.broken {
		return false
	}
	works := func(p path) bool {
		return p.way != w.target.Way && !p.broken && p.carries && !p.goodSince.After(sent)
	}
	if !slices.ContainsFunc(w.ways, works) {
		return false
	}
	current.hold = min(2*current.hold, lastHold)
	if current.broke.IsZero() || now.Sub(current.broke) > calm {
		current.hold = firstHold
	}
	current.broken, current.broke, current.goodSince = true, now, time.Time{}
	return w.listBroken()
}

func (w *watched) listBroken() (changed bool) {
	var broken []backend.Way
	for _, p := range w.ways {
		if p.broken {
			broken = append(broken, p.way)
		}
	}
	changed = !slices.Equal(broken, w.health.Broken)
	w.health.Broken = broken
	return changed
}

func (w *watched) outcome(answered bool) {
	w.outcomes = append(w.outcomes, answered)
	if len(w.outcomes) > window {
		w.outcomes = w.outcomes[1:]
	}
	lost := 0
	for _, ok := range w.outcomes {
		if !ok {
			lost++
		}
	}
	w.health.Loss = float64(lost) / float64(len(w.outcomes))
}
