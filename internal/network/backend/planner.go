package backend

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/peer"
)

// Planner makes plans, and keeps what it has decided about a peer for as long as nothing changes on
// which that depends. For thousands of peers, deciding anew takes longer than changing the kernel.
type Planner struct {
	// The last plan and what it was made of.
	self    Self
	records []*peer.Node
	plan    Plan
}

// Plan returns the plan of a node for its peers, which peer.Accept has accepted. The caller must
// modify neither the arguments nor the plan afterwards. A Peer that hasn't changed has the same
// address in memory as in the last plan.
func (p *Planner) Plan(self Self, peers []*peer.Node) Plan {
	old, decided := p.records, p.plan.Peers
	if !self.sameForAll(p.self) {
		old, decided = nil, nil
	}
	next := Plan{Links: append(self.links(), self.secondLink(peers)...), Peers: make([]*Peer, 0, len(peers)), MTU: self.mtu()}
	for _, n := range peers {
		for len(old) > 0 && old[0].Name < n.Name {
			old, decided = old[1:], decided[1:]
		}
		if len(old) > 0 && (old[0] == n || old[0].Equal(*n)) && self.sameFor(p.self, n.Name) {
			next.Peers = append(next.Peers, decided[0])
			continue
		}
		decision := self.peer(*n)
		if decision.MTU > 0 && decision.MTU < next.MTU {
			for i := range decision.Routes { // pods learn it from the node, by ICMP
				decision.Routes[i].MTU = decision.MTU
			}
		}
		next.Peers = append(next.Peers, &decision)
	}
	p.self, p.records, p.plan = self, peers, next
	return next
}

// sameForAll reports whether two Selves differ at most in what concerns single peers.
func (s Self) sameForAll(o Self) bool {
	return s.Instance == o.Instance && s.Backend == o.Backend && s.Record.Equal(o.Record) && slices.Equal(s.Underlay, o.Underlay) &&
		slices.Equal(s.Cluster, o.Cluster) && maps.EqualFunc(s.Learned, o.Learned, slices.Equal[[]netip.Addr])
}

// sameFor reports whether two Selves have the same about a peer.
func (s Self) sameFor(o Self, name string) bool {
	return s.Limits[name] == o.Limits[name] && s.Second[name] == o.Second[name] && slices.Equal(s.Broken[name], o.Broken[name])
}
