package heartbeat

import "time"

// Most probes are small: that a way carries packets, and how long they take, they find as well as
// large ones, at a fifteenth of the cost. A network may carry small packets and drop large ones
// without a word, so large probes go:
//
//   - first, when a peer is new, and when another way to it or another MTU is in use;
//   - as long as the last probe of the way in use wasn't answered;
//   - by ways that aren't in use, as only a large answer makes such a way better than the one in use;
//   - and otherwise every largePeriod.
//
// What hasn't answered for long, or is broken, gets small probes, and large ones once it answers
// them. Small answers alone never make a way good.
const (
	// small is the size of these packets. No answer is larger.
	small = 100
	// largeTime and largeTurns are how often a peer that answers gets a large probe: after this time,
	// and at most in one turn of so many.
	largeTime  = 15 * time.Second
	largeTurns = 10
	// spread is over how many parts of that time the peers are spread.
	spread = 64
	// tries is how many large probes follow the small answer of a peer that was silent: each of sizes
	// is among them at least twice.
	tries = 2 * (7 + 1)
)

// LargePeriod returns how often each of a number of peers that answer gets a probe of the size of
// pods' packets. It is how long a way that carries only small packets may stay unnoticed, but for
// the few seconds that finding a broken way takes.
func LargePeriod(peers int) time.Duration { return max(largeTime, largeTurns*Interval(peers)) }

// sizes are what is tried when the largest packets don't pass, by any way: what is left of common
// MTUs inside common tunnels, down to the minimum of IPv6.
var sizes = []int{8950, 1450, 1400, 1370, 1330, 1280}

// silent reports whether the way in use hasn't answered for long.
func (w *watched) silent(p *path) bool { return p.way == w.target.Way && p.missed >= quickMisses }

// size returns the size of the next probe by a way. Once the way in use is silent, sizes take
// turns. With a limit, every third probe is larger, to see whether the limit is gone.
func (w *watched) size(p *path, now time.Time, period time.Duration) int {
	full, limit := w.target.MTU, w.health.Limit
	if p.way != w.target.Way {
		current := w.by(w.target.Way)
		if p.goodSince.IsZero() && (p.broken || current != nil && w.silent(current)) {
			return small
		}
		return full
	}
	w.turn++
	turn, above := w.turn, 0
	switch {
	case w.silent(p) && w.tries == 0:
		return small
	case w.silent(p):
		w.tries--
	case p.missed == 0 && now.Before(p.large) && (limit == 0 || w.turn%3 != 0):
		return small
	}
	if limit > 0 && w.turn%3 == 0 {
		turn, above = w.turn/3, limit
	} else {
		w.schedule(p, now, period)
		switch {
		case limit > 0:
			return limit
		case p.missed <= misses:
			return full
		}
	}
	candidates := []int{full}
	for _, s := range sizes {
		if s < full && s > above {
			candidates = append(candidates, s)
		}
	}
	return candidates[turn%len(candidates)]
}

// schedule sets when the next large probe goes. After one out of turn it is another time for each
// peer: many peers may be new, or have come back, at once.
func (w *watched) schedule(p *path, now time.Time, period time.Duration) {
	if p.large.IsZero() || p.missed > 0 {
		period = period * time.Duration(w.at%spread+1) / spread
	}
	p.large = now.Add(period)
}

// limit learns from the answer to a large probe of the way in use how large packets may be.
func (w *watched) limit(size int) (changed bool) {
	was := w.health.Limit
	switch {
	case size >= w.target.MTU:
		w.health.Limit = 0
	case w.by(w.target.Way).missed > misses && !w.suspect:
		w.suspect = true // a busy network loses packets of all sizes: it must happen twice
	case w.by(w.target.Way).missed > misses, size > was && was > 0:
		w.health.Limit = size
	}
	w.suspect = w.suspect && size < w.target.MTU
	return w.health.Limit != was
}
