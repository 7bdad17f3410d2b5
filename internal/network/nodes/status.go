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
	Health    heartbeat.Health
}

// Store returns the kind of registry in which the nodes find each other.
func (c *Controller) Store() string { return c.cfg.Store }

// Backend returns the configured backend.
func (c *Controller) Backend() backend.Backend { return c.cfg.Backend }

// Status returns the present state.
func (c *Controller) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.status
	s.Peers, s.Notes = slices.Clone(s.Peers), slices.Clone(s.Notes)
	health := c.cfg.Prober.Health()
	for i, p := range s.Peers {
		s.Peers[i].Health = health[p.Name]
	}
	return s
}

// next returns the status after a pass. peers are in the order of p.Peers.
func (s Status) next(self peer.Node, p backend.Plan, peers []peer.Node, notes []string, now time.Time) Status {
	before := make(map[string]Peer, len(s.Peers))
	for _, one := range s.Peers {
		before[one.Name] = one
	}
	out := Status{Known: true, Self: self, Links: p.Links, MTU: p.MTU, Notes: notes, Peers: make([]Peer, 0, len(peers))}
	for i, n := range peers {
		one := Peer{Name: n.Name, Addresses: n.Addresses, Blocks: n.Blocks, Way: p.Peers[i].Way, Why: p.Peers[i].Why, MTU: p.Peers[i].MTU, Since: now, Routes: p.Peers[i].Routes}
		if was, ok := before[n.Name]; ok && was.Way == one.Way {
			one.Since = was.Since
		}
		out.Peers = append(out.Peers, one)
	}
	return out
}
