package nodes

import (
	"net/netip"
	"slices"
	"time"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
)

// Status is what the controller knows and has done.
type Status struct {
	// Known is false until the registry has answered.
	Known bool
	Self  peer.Node
	Links []backend.Link
	MTU   int // of pods
	Peers []Peer
	// Unsummed are the VXLAN links whose checksum offloading is off.
	Unsummed []string
	// Notes say what isn't as it should be. Error is why the last pass failed.
	Notes []string
	Error string
}

// Peer is the state of one other node.
type Peer struct {
	Name      string
	Addresses []netip.Addr
	Blocks    []netip.Prefix
	Way       backend.Way // empty if there is none
	Why       string      // why there is no way or not the preferred one
	MTU       int
	Since     time.Time // when Way became what it is
	Routes    []plan.Route
	Plan      *backend.Peer // not to be modified
	Health    heartbeat.Health
}

// Silent reports whether the peer has stopped answering, if that is to be reported after some time.
func (p *Peer) Silent(now time.Time, silence time.Duration) bool {
	return p.Way != "" && p.Health.Answered && now.Sub(p.Health.Last) > silence
}

// Store returns the kind of registry in which the nodes find each other.
func (c *Controller) Store() string { return c.cfg.Store }

// Backend returns the configured backend.
func (c *Controller) Backend() backend.Backend { return c.cfg.Backend }

// Status returns the present state.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := Status{
		Known: c.state.known, Self: c.state.self, Links: c.state.plan.Links, MTU: c.state.plan.MTU, Unsummed: c.state.unsummed,
		Notes: slices.Clone(c.state.notes), Error: c.state.failure,
	}
	health := c.cfg.Prober.Health()
	for i, n := range c.state.peers {
		p := c.state.plan.Peers[i]
		s.Peers = append(s.Peers, Peer{Name: n.Name, Addresses: n.Addresses, Blocks: n.Blocks, Way: p.Way, Why: p.Why, MTU: p.MTU,
			Since: c.state.since[i], Routes: p.Routes, Plan: p, Health: health[n.Name]})
	}
	return s
}

// Silence returns after which time without an answer a peer is to be reported.
func (s Status) Silence() time.Duration { return heartbeat.Silence(len(s.Peers)) }

// state is what Status is made of. Invariant: peers, plan.Peers and since have the same order, that
// of the names.
type state struct {
	known   bool
	self    peer.Node
	plan    backend.Plan
	peers   []*peer.Node
	since   []time.Time
	notes   []string
	failure string
	// unsummed is Status.Unsummed.
	unsummed []string
}

// next returns the state after a pass. peers are in the order of p.Peers.
func (s *state) next(self peer.Node, p backend.Plan, peers []*peer.Node, notes []string, now time.Time) state {
	out := state{known: true, self: self, plan: p, peers: peers, notes: notes, since: s.since}
	if slices.EqualFunc(s.plan.Peers, p.Peers, func(a, b *backend.Peer) bool { return a == b || a.Name == b.Name && a.Way == b.Way }) {
		return out
	}
	out.since = make([]time.Time, len(peers))
	old := 0
	for i := range peers {
		for old < len(s.peers) && s.peers[old].Name < peers[i].Name {
			old++
		}
		out.since[i] = now
		if old < len(s.peers) && s.peers[old].Name == peers[i].Name && s.plan.Peers[old].Way == p.Peers[i].Way {
			out.since[i] = s.since[old]
		}
	}
	return out
}
