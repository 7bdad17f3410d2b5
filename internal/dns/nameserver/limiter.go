package nameserver

import (
	"cmp"
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"
)

// What a client may ask: questions and beginnings of connections, a second. The kernel drops what
// exceeds twice that before it arrives, see package datapath. Others have such limits, too: the
// resolver of AWS takes 1024 packets a second of an interface.
const (
	Rate  = 1000
	burst = 1000
	// episodeTime is how long a client must keep within its limit until it counts as one that does.
	episodeTime = time.Minute
)

// limiter admits what clients ask, up to the rate of each. What is more gets no answer, as if it
// was lost on its way: any answer costs about as much as the right one.
type limiter struct {
	log   *slog.Logger
	began func(client string) // may be nil

	mu      sync.Mutex
	of      map[string]*asking
	answers uint64
	dropped uint64
}

// asking is what a client asks.
type asking struct {
	left float64   // questions that it may ask at once
	at   time.Time // when left was that
	// excess is the present time in which the client asks too much. Its Since is zero without.
	excess Excess
	last   time.Time // when it last asked too much
}

// Excess says of a client that it asks too much.
type Excess struct {
	Client  string
	Since   time.Time
	Dropped uint64 // questions
}

// admits reports whether a client gets an answer to one more question.
func (l *limiter) admits(client string, now time.Time) bool {
	l.mu.Lock()
	c := l.of[client]
	if c == nil {
		c = &asking{left: burst, at: now}
		l.of[client] = c
	}
	c.left = min(burst, c.left+now.Sub(c.at).Seconds()*Rate)
	c.at = now
	if c.left >= 1 {
		c.left--
		l.answers++
		l.mu.Unlock()
		return true
	}
	begins := c.excess.Since.IsZero()
	if begins {
		c.excess = Excess{Client: client, Since: now}
	}
	c.last = now
	c.excess.Dropped++
	l.dropped++
	l.mu.Unlock()
	if begins {
		l.log.Warn("dns: a client asks too much; what exceeds the rate gets no answer", "client", client, "rate", Rate)
		if l.began != nil {
			l.began(client)
		}
	}
	return false
}

// run ends the excess of clients that have kept within their limit, and forgets clients that ask
// nothing, until ctx ends.
func (l *limiter) run(ctx context.Context) {
	tick := time.NewTicker(episodeTime / 6)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			l.forget(time.Now())
		}
	}
}

func (l *limiter) forget(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for client, c := range l.of {
		e := c.excess
		if !e.Since.IsZero() && now.Sub(c.last) >= episodeTime {
			l.log.Info("dns: a client keeps within the rate again", "client", client, "dropped", e.Dropped)
			c.excess = Excess{}
		}
		if c.excess.Since.IsZero() && now.Sub(c.at).Seconds()*Rate >= burst {
			delete(l.of, client)
		}
	}
}

// Usage is what the server was asked since it was made.
type Usage struct {
	Answers uint64 // admitted questions, and connections
	Dropped uint64 // what was too much
	// Excesses are of the clients that ask too much, or did within the last minute.
	Excesses []Excess
}

// Usage returns what the server was asked.
func (s *Server) Usage() Usage {
	l := &s.limiter
	l.mu.Lock()
	defer l.mu.Unlock()
	out := Usage{Answers: l.answers, Dropped: l.dropped}
	for c := range maps.Values(l.of) {
		if !c.excess.Since.IsZero() {
			out.Excesses = append(out.Excesses, c.excess)
		}
	}
	slices.SortFunc(out.Excesses, func(a, b Excess) int { return cmp.Compare(a.Client, b.Client) })
	return out
}
