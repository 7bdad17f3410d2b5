package heartbeat

import (
	"maps"
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

// Probe is a packet to send. It is as large as the largest that pods send, so that a path which
// only lets smaller ones pass counts as broken.
type Probe struct {
	Peer string
	Way  backend.Way
	Seq  uint32
	Size int // of the whole packet
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
}

// The protocol's times and counts.
const (
	// Period is how often the way in use is probed, for up to maxRate/2 peers.
	Period = 400 * time.Millisecond
	// maxRate is how many probes of ways in use are sent per second.
	maxRate = 400
	// patience is how long an answer may take.
	patience = 400 * time.Millisecond
	// misses is how many probes in a row may get no answer.
	misses = 4
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

// sizes are what is tried when the largest packets don't pass, by any way: what is left of common
// MTUs inside common tunnels, down to the minimum of IPv6.
var sizes = []int{8950, 1450, 1400, 1370, 1330, 1280}

// Monitor decides which probes to send, and from their answers which ways are broken. It is pure:
// the caller passes the time, and sends what Due returns.
//
// A way is broken if it doesn't answer while another one does. If no way answers, smaller packets
// are tried. If these get no answer either, the peer itself is probably down, and nothing would be
// gained by another way.
type Monitor struct {
	peers map[string]*watched
	seq   uint32
	sent  map[uint32]sentProbe
}

type sentProbe struct {
	Probe
	at time.Time
}

type watched struct {
	target   Target
	ways     map[backend.Way]*path
	health   Health
	outcomes []bool // of the last probes by the way in use
	turn     int    // of the sizes, see size
	// suspect means that a small probe was answered when large ones weren't, since the last answer to
	// a large one.
	suspect bool
}

// path is the state of a way to a peer.
type path struct {
	next      time.Time // when to probe it
	missed    int       // probes in a row without an answer
	broken    bool
	goodSince time.Time // since when it has answered without a miss; zero if it doesn't
	hold      time.Duration
	broke     time.Time
}

// NewMonitor returns a monitor without peers.
func NewMonitor() *Monitor {
	return &Monitor{peers: map[string]*watched{}, sent: map[uint32]sentProbe{}}
}

// Watch replaces the peers to watch. What is known of those that stay is kept.
func (m *Monitor) Watch(targets []Target) {
	stay := make(map[string]bool, len(targets))
	for _, t := range targets {
		m.Put(t)
		stay[t.Name] = true
	}
	maps.DeleteFunc(m.peers, func(name string, _ *watched) bool { return !stay[name] })
}

// Put adds a peer to watch, or changes it and keeps what is known of it.
func (m *Monitor) Put(t Target) {
	w := m.peers[t.Name]
	if w == nil {
		w = &watched{ways: map[backend.Way]*path{}}
		m.peers[t.Name] = w
	}
	if w.target.Way != t.Way || w.target.MTU != t.MTU {
		w.health.Limit = 0
		w.outcomes, w.health.RTT, w.health.Loss = nil, 0, 0
	}
	w.target = t
	for _, way := range t.Ways {
		if w.ways[way] == nil {
			w.ways[way] = &path{hold: firstHold}
		}
	}
	maps.DeleteFunc(w.ways, func(way backend.Way, _ *path) bool { return !slices.Contains(t.Ways, way) })
}

// Remove ends watching a peer.
func (m *Monitor) Remove(name string) { delete(m.peers, name) }

// Health returns what is known of each peer.
func (m *Monitor) Health() map[string]Health {
	out := make(map[string]Health, len(m.peers))
	for name, w := range m.peers {
		out[name] = w.health
	}
	return out
}

// Impaired returns which peers have broken ways or a limit.
func (m *Monitor) Impaired() map[string]Health {
	out := map[string]Health{}
	for name, w := range m.peers {
		if len(w.health.Broken) > 0 || w.health.Limit > 0 {
			out[name] = w.health
		}
	}
	return out
}

// period is how often each way in use is probed.
func (m *Monitor) period() time.Duration { return Interval(len(m.peers)) }

// Interval returns how often each of a number of peers is probed by the way in use.
func Interval(peers int) time.Duration {
	return max(Period, time.Duration(peers)*time.Second/maxRate)
}

// Silence returns after which time without an answer one of so many peers is to be reported.
func Silence(peers int) time.Duration { return max(10*time.Second, (misses+1)*Interval(peers)) }

// Due returns the probes to send now.
func (m *Monitor) Due(now time.Time) (due []Probe) {
	for name, w := range m.peers {
		for way, p := range w.ways {
			if now.Before(p.next) || !w.wants(way) {
				continue
			}
			p.next = now.Add(m.period())
			if way != w.target.Way && p.broken {
				p.next = now.Add(retryPeriod)
			}
			m.seq++
			probe := Probe{Peer: name, Way: way, Seq: m.seq, Size: w.size(way)}
			m.sent[m.seq] = sentProbe{probe, now}
			if due = append(due, probe); len(due) == burst {
				return due
			}
		}
	}
	return due
}

// wants reports whether a way is to be probed: the one in use, broken ones, and all others once the
// one in use doesn't answer.
func (w *watched) wants(way backend.Way) bool {
	p := w.ways[way]
	if way == w.target.Way || p.broken {
		return true
	}
	current := w.ways[w.target.Way]
	return current != nil && current.missed >= misses-1
}

// size returns the size of the next probe by a way. Once the way in use is silent, sizes take
// turns. With a limit, every fifth probe is larger, to see whether the limit is gone.
func (w *watched) size(way backend.Way) int {
	full := w.target.MTU
	if way != w.target.Way {
		return full
	}
	w.turn++
	turn, above := w.turn, 0
	if limit := w.health.Limit; limit > 0 {
		if w.turn%5 != 0 {
			return limit
		}
		turn, above = w.turn/5, limit
	} else if w.ways[way].missed <= misses {
		return full
	}
	candidates := []int{full}
	for _, s := range sizes {
		if s < full && s > above {
			candidates = append(candidates, s)
		}
	}
	return candidates[turn%len(candidates)]
}

// limit learns from the answer to a probe of the way in use how large packets may be.
func (w *watched) limit(size int) (changed bool) {
	was := w.health.Limit
	switch {
	case size >= w.target.MTU:
		w.health.Limit = 0
	case w.ways[w.target.Way].missed > misses && !w.suspect:
		w.suspect = true // a busy network loses packets of all sizes: it must happen twice
	case w.ways[w.target.Way].missed > misses, size > was && was > 0:
		w.health.Limit = size
	}
	w.suspect = w.suspect && size < w.target.MTU
	return w.health.Limit != was
}

// Answer takes the answer to a probe. It reports whether Broken or Limit of a peer has
// changed.
func (m *Monitor) Answer(seq uint32, now time.Time) (changed bool) {
	s, ok := m.sent[seq]
	w := m.peers[s.Peer]
	if !ok || w == nil || w.ways[s.Way] == nil {
		return false
	}
	delete(m.sent, seq)
	p := w.ways[s.Way]
	if s.Way == w.target.Way {
		changed = w.limit(s.Size)
	}
	p.missed = 0
	if p.goodSince.IsZero() {
		p.goodSince = now
	}
	w.health.Answered, w.health.Last = true, now
	if s.Way == w.target.Way {
		w.outcome(true)
		rtt := now.Sub(s.at)
		if w.health.RTT > 0 {
			rtt = (7*w.health.RTT + rtt) / 8 // as TCP smooths it (RFC 6298)
		}
		w.health.RTT = rtt
	}
	if p.broken && now.Sub(p.goodSince) >= p.hold {
		p.broken = false
		changed = w.listBroken() || changed
	}
	return changed
}

// Expire takes the probes that got no answer in time. It reports whether Broken of a peer has
// changed.
func (m *Monitor) Expire(now time.Time) (changed bool) {
	for seq, s := range m.sent {
		if now.Sub(s.at) < patience {
			continue
		}
		delete(m.sent, seq)
		w := m.peers[s.Peer]
		if w == nil || w.ways[s.Way] == nil {
			continue
		}
		if w.health.Limit > 0 && s.Size > w.health.Limit {
			continue // it was only to see whether the limit is gone
		}
		p := w.ways[s.Way]
		p.missed++
		p.goodSince = time.Time{}
		if s.Way == w.target.Way {
			w.outcome(false)
			changed = w.breakSilent(s.at, now) || changed
		}
	}
	return changed
}

// breakSilent marks the way in use broken if it doesn't answer and another one does. The other one
// must have answered before the last unanswered probe was sent: a peer that comes back answers one
// way before the other.
func (w *watched) breakSilent(sent, now time.Time) (changed bool) {
	current := w.ways[w.target.Way]
	if current == nil || current.missed < misses || current.broken {
		return false
	}
	works := func(way backend.Way) bool {
		p := w.ways[way]
		return way != w.target.Way && !p.broken && !p.goodSince.IsZero() && !p.goodSince.After(sent)
	}
	if !slices.ContainsFunc(w.target.Ways, works) {
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
	for _, way := range w.target.Ways {
		if w.ways[way].broken {
			broken = append(broken, way)
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
