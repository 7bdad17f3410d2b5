package bfd

import (
	"fmt"
	"time"
)

// idleInterval is the least time between packets of a session that isn't up (RFC 5880, section
// 6.8.3).
const idleInterval = time.Second

// session is the state machine of RFC 5880, section 6.8, in asynchronous mode. It has no clock and
// no socket.
type session struct {
	cfg   Config
	mine  uint32 // discriminator
	state state
	diag  diagnostic
	poll  bool // the peer hasn't confirmed the present interval yet

	// What the peer has said last. It is zero until there is a packet and after none came for long.
	yours        uint32
	remote       state
	minTx, minRx time.Duration
	multiplier   uint8
	demand       bool

	heard time.Time // when the last packet came
	// seen is when the last packet came that found the session up and left it so.
	seen time.Time
}

func newSession(cfg Config, discriminator uint32) *session {
	// A peer that hasn't said how fast it can receive is taken to receive anything (section 6.8.1).
	return &session{cfg: cfg, mine: discriminator, state: down, minRx: time.Microsecond}
}

// receive takes a packet. It returns whether to answer at once, and why the session has failed,
// which is empty if it hasn't. A session that the peer has ended on purpose hasn't failed: that
// says nothing about the path (RFC 5882, section 4.2).
func (s *session) receive(p packet, now time.Time) (answer bool, failure string) {
	if p.yours != 0 && p.yours != s.mine {
		return false, ""
	}
	s.yours, s.remote, s.minTx, s.minRx, s.multiplier, s.demand = p.mine, p.state, p.minTx, p.minRx, p.multiplier, p.demand
	s.heard = now
	if p.final {
		s.poll = false
	}
	switch {
	case p.state == adminDown:
		if s.state != down {
			s.set(down, diagNeighborDown)
		}
	case s.state == down && p.state == down:
		s.set(initial, diagNone)
	case s.state == down && p.state == initial, s.state == initial && p.state >= initial:
		s.set(up, diagNone)
	case s.state == up && p.state == down:
		s.set(down, diagNeighborDown)
		failure = p.diag.why()
	}
	if s.state == up {
		s.seen = now
	}
	return p.poll, failure
}

// expire takes note that no packet has come until deadline. It returns why the session has failed,
// which is empty if it wasn't up.
func (s *session) expire() (failure string) {
	if s.state == up {
		failure = "it stopped sending packets of BFD"
	}
	if s.state != down {
		s.set(down, diagExpired)
	}
	s.yours, s.minRx, s.demand, s.heard = 0, time.Microsecond, false, time.Time{}
	return failure
}

// why says why a peer's session went down that was up here.
func (d diagnostic) why() string {
	switch d {
	case diagNone:
		return "it has begun BFD anew"
	case diagExpired:
		return "it no longer gets this node's packets of BFD"
	}
	return fmt.Sprintf("its BFD says so, with diagnostic %d", d)
}

func (s *session) set(to state, why diagnostic) {
	// The interval changes, which is announced by a poll.
	s.poll = to == up
	s.state, s.diag = to, why
}

// deadline returns when the session expires; it is zero before the first packet.
func (s *session) deadline() time.Time {
	if s.heard.IsZero() {
		return time.Time{}
	}
	return s.heard.Add(time.Duration(s.multiplier) * max(s.cfg.Interval, s.minTx))
}

// interval returns the time between two packets, before jitter. It is 0 if none are to be sent.
func (s *session) interval() time.Duration {
	if s.minRx == 0 || s.demand && s.state == up && s.remote == up && !s.poll {
		return 0
	}
	return max(s.desired(), s.minRx)
}

func (s *session) desired() time.Duration {
	if s.state == up {
		return s.cfg.Interval
	}
	return max(s.cfg.Interval, idleInterval)
}

// packet returns the packet to send now, as an answer to a poll or on its own.
func (s *session) packet(answer bool) packet {
	return packet{
		diag: s.diag, state: s.state, poll: s.poll && !answer, final: answer, multiplier: s.cfg.Multiplier,
		mine: s.mine, yours: s.yours, minTx: s.desired(), minRx: s.cfg.Interval,
	}
}
