package main

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/huskd/husk/internal/network/bfd"
	"github.com/huskd/husk/internal/network/bgp"
)

// bfdTimes are those of BFD. A router may want longer intervals.
var bfdTimes = bfd.Config{Interval: 200 * time.Millisecond, Multiplier: 3}

// setBFD begins the sessions of BFD that are missing. Those of removed peers have ended.
func (s *speaker) setBFD(want map[netip.Addr]bgp.Peer) error {
	wanted := false
	for a, p := range want {
		local := s.local(a.Is6())
		if !p.BFD || !local.IsValid() {
			continue
		}
		wanted = true
		if s.bfd == nil {
			d, err := bfd.Listen(bfdTimes, s.desired.Local, nearbyOnly, s.nudge)
			if err != nil {
				return err
			}
			s.bfd = d
		}
		if err := s.bfd.Add(local, a); err != nil {
			return err
		}
	}
	if !wanted {
		s.stopBFD()
	}
	return nil
}

func (s *speaker) stopBFD() {
	if s.bfd != nil {
		s.bfd.Close()
		s.bfd = nil
	}
}

// endDead ends the sessions of peers that BFD has found to be dead, and drops the routes that are
// kept of them for a graceful restart. A session that has come up since stays: the peer was reached
// after BFD last saw it. One that only comes up has nothing to lose, and would be kept from coming
// up by a router that begins BFD later.
func (s *speaker) endDead() {
	if s.bfd == nil {
		return
	}
	for _, f := range s.bfd.Failures() {
		p := s.peers[f.Peer]
		if p == nil || p.removed {
			continue
		}
		if since := s.tries.established(f.Peer); since.IsZero() || since.After(f.Seen) {
			continue
		}
		p.why = "BFD has ended the session: " + f.Why
		s.tries.forget(f.Peer)
		if err := s.again(p); err != nil {
			s.err = cmp.Or(s.err, fmt.Errorf("end the session with peer %v, which is dead by BFD: %w", f.Peer, err))
		}
	}
}
