package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	wire "github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/bgp"
)

// peer is a desired peer and what became of its sessions.
type peer struct {
	bgp.Peer
	up  time.Time // when its session was up last, or began to be wanted
	bfd time.Time // when the session last had the BFD it should have, or didn't need it
	why string    // why the last session ended
	// closed is when its session was closed because of maxPrefixes or, later, tried again. It is zero
	// again when the peer has sent all its routes in another session.
	closed  time.Time
	removed bool // gobgp doesn't have the peer until the session is tried again
	// refused is since when it has announced what isn't its own; zero if it doesn't.
	refused time.Time
	// waiting is since when it hasn't connected; zero if it has.
	waiting       time.Time
	known, dialed bool // it has had a session, and this node connects to it though it is passive
}

// mustDial reports whether to stop waiting for the peer to connect. gobgp forgets the routes of a
// peer when its configuration changes, so that is done only if it can't have any any more.
func (p *peer) mustDial(now time.Time) bool {
	limit := patience
	if p.known {
		limit = restartTime * time.Second
	}
	return p.Passive && !p.dialed && !p.removed && !p.waiting.IsZero() && now.Sub(p.waiting) >= limit
}

// dial connects to a passive peer.
func (s *speaker) dial(p *peer) error {
	p.dialed = true
	if err := s.again(p); err != nil {
		return fmt.Errorf("connect to peer %v: %w", p.Address, err)
	}
	return nil
}

// await takes note of whether the peer has connected.
func (p *peer) await(state api.PeerState_SessionState, now time.Time) {
	switch state {
	case api.PeerState_SESSION_STATE_ESTABLISHED, api.PeerState_SESSION_STATE_OPENSENT, api.PeerState_SESSION_STATE_OPENCONFIRM:
		p.waiting = time.Time{}
		p.known = p.known || state == api.PeerState_SESSION_STATE_ESTABLISHED
	default:
		if p.waiting.IsZero() {
			p.waiting = now
		}
	}
}

// sayRefused adds to sessions of nodes what these announce although it isn't theirs. It is said
// only after a while: a node may announce a block before others have its new record.
func (s *speaker) sayRefused(sessions []bgp.Session, refused map[netip.Addr]string) {
	for i := range sessions {
		session, p := &sessions[i], s.peers[sessions[i].Address]
		example, ok := refused[session.Address]
		switch {
		case !ok:
			p.refused = time.Time{}
		case p.refused.IsZero():
			p.refused = time.Now()
		case time.Since(p.refused) > graceTime && session.Up:
			session.Why = fmt.Sprintf("it announces %s, but that isn't a block and an address of its node's record: ignored", example)
		}
	}
}

// reopen reports whether it is time to try a closed session again.
func (p *peer) reopen(now time.Time) bool { return p.removed && now.Sub(p.closed) >= reopenTime }

// tooMany says why a session was closed.
var tooMany = fmt.Sprintf("it announced more than %d prefixes, so the session was closed; it is tried again every %v", maxPrefixes, reopenTime)

// removeExceeded removes peers that have announced too many prefixes. gobgp has closed their
// sessions, but keeps the routes as after a graceful restart.
func (s *speaker) removeExceeded(exceeded []netip.Addr) error {
	for _, address := range exceeded {
		if err := s.bgp.DeletePeer(context.Background(), &api.DeletePeerRequest{Address: address.String()}); err != nil {
			return fmt.Errorf("remove peer %v: %w", address, err)
		}
		p := s.peers[address]
		p.closed, p.removed = time.Now(), true
	}
	return nil
}

// session returns the state of a session, and whether the peer has sent all its routes.
func (s *speaker) session(p *peer, state *api.Peer) (out bgp.Session, complete bool) {
	now := time.Now()
	out = bgp.Session{Address: p.Address, AS: p.AS}
	out.Up = state.State.SessionState == api.PeerState_SESSION_STATE_ESTABLISHED
	p.await(state.State.SessionState, now)
	if !p.BFD || !out.Up || s.bfd != nil && s.bfd.Up(p.Address) {
		p.bfd = now
	}
	if out.Up {
		p.up, complete = now, s.sent.all(state)
		if complete {
			p.closed = time.Time{}
		}
		out.Why = s.lacks(p, state)
	}
	if m := state.State.DisconnectMessage; !out.Up && m != "" {
		p.why = m
	}
	switch {
	case !p.closed.IsZero():
		out.Up, out.Why = false, tooMany
	case out.Up, now.Sub(p.up) < graceTime:
	default:
		out.Why = p.down(s.tries.failure(p.Address))
	}
	return out, complete || !out.Up && out.Why != ""
}

// down says why there is no session: how the last one ended, and why the last attempt to connect
// failed, which is empty if it hasn't.
func (p *peer) down(failure string) string {
	switch {
	case strings.HasSuffix(failure, unix.ECONNREFUSED.Error()):
		failure = "it refuses connections: does a BGP speaker run there?"
	case failure == closesEarly:
	case p.known && failure != "":
		failure = "it doesn't answer"
	case p.why == "" && p.known:
		failure = "it doesn't connect"
	case p.why == "":
		failure = "it doesn't answer: is a speaker there, does it know this node, and has it the same password?"
	}
	if p.why != "" && failure != "" {
		return p.why + "; " + failure
	}
	return p.why + failure
}

// lacks returns what a session that is up lacks.
func (s *speaker) lacks(p *peer, state *api.Peer) string {
	mixed := false
	for prefix, via := range s.prefixes {
		mixed = mixed || prefix.Addr().Is4() && via.Is6()
	}
	switch {
	case mixed && !takesMixed(state):
		return "it takes no IPv4 routes with IPv6 next hops (RFC 8950): enable them there"
	case time.Since(p.bfd) > graceTime:
		return fmt.Sprintf("it doesn't answer BFD, so a dead path is found after %v only: enable BFD there", holdTime*time.Second)
	}
	return ""
}

// takesMixed reports whether a peer takes IPv4 routes with IPv6 next hops.
func takesMixed(state *api.Peer) bool {
	remote, _ := apiutil.UnmarshalCapabilities(state.State.RemoteCap)
	return slices.ContainsFunc(remote, func(c wire.ParameterCapabilityInterface) bool {
		n, ok := c.(*wire.CapExtendedNexthop)
		return ok && slices.ContainsFunc(n.Tuples, func(t *wire.CapExtendedNexthopTuple) bool {
			return t.NLRIAFI == wire.AFI_IP && t.NLRISAFI == wire.SAFI_UNICAST && t.NexthopAFI == wire.AFI_IP6
		})
	})
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
