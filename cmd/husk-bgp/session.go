package main

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"

	"github.com/huskd/husk/internal/network/bgp"
)

// session returns the state of a session, and whether the peer has sent all its routes.
func (s *speaker) session(p *api.Peer) (out bgp.Session, complete bool) {
	address, _ := netip.ParseAddr(p.State.NeighborAddress)
	out = bgp.Session{Address: address, AS: p.Conf.PeerAsn}
	if p.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED {
		out.Up = true
		if !s.since[address].IsZero() {
			s.since[address] = time.Now()
		}
		return out, s.sent.all(p)
	}
	if m := p.State.DisconnectMessage; m != "" {
		s.why[address] = m
	}
	switch {
	case p.State.AdminState == api.PeerState_ADMIN_STATE_PFX_CT:
		out.Down = fmt.Sprintf("it announced more than %d prefixes, so the session was closed", maxPrefixes)
	case time.Since(s.since[address]) < graceTime:
	case s.why[address] != "":
		out.Down = s.why[address]
	default:
		out.Down = "it doesn't answer: is a speaker there, does it know this node, and has it the same password?"
	}
	return out, out.Down != ""
}

// sentFamilies are the families of which peers have said, since their sessions came up, that they
// have sent all routes (RFC 4724). gobgp has that too, but takes it for said by a peer that has
// restarted itself.
type sentFamilies struct {
	mu       sync.Mutex
	families map[netip.Addr]map[wire.Family]bool // Invariant: guarded by mu.
}

func newSentFamilies() *sentFamilies {
	return &sentFamilies{families: map[netip.Addr]map[wire.Family]bool{}}
}

func (s *sentFamilies) add(peer netip.Addr, f wire.Family) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.families[peer] == nil {
		s.families[peer] = map[wire.Family]bool{}
	}
	s.families[peer][f] = true
}

func (s *sentFamilies) reset(peer netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.families, peer)
}

// all reports whether a peer whose session is up has sent all its routes. One with graceful restart
// says so for each family, even for one of which it keeps no routes as it restarts.
func (s *sentFamilies) all(p *api.Peer) bool {
	remote, _ := apiutil.UnmarshalCapabilities(p.State.RemoteCap)
	says := false
	var both []wire.Family
	for _, c := range remote {
		switch c := c.(type) {
		case *wire.CapGracefulRestart:
			says = true
		case *wire.CapMultiProtocol:
			if slices.Contains(families, c.CapValue) {
				both = append(both, c.CapValue)
			}
		}
	}
	if !says {
		return time.Since(p.Timers.State.Uptime.AsTime()) > quietTime
	}
	address, _ := netip.ParseAddr(p.State.NeighborAddress)
	s.mu.Lock()
	defer s.mu.Unlock()
	return !slices.ContainsFunc(both, func(f wire.Family) bool { return !s.families[address][f] })
}
