package backend

import (
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/peer"
)

// A node changes its key of WireGuard without losing a packet by means of a second link. A link has
// one key, and for each address one peer whose packets it accepts. So for a moment, both nodes need
// two links each, and exchange packets by one while the other one changes:
//
//	            first link   second link   packets go by
//	before      old key      -             the first
//	begun       old key      new key       the second, once its handshake has succeeded
//	switched    new key      new key       the first, once its handshake has succeeded
//	ended       new key      -             the first
//
// The peers make second links too, with their own keys. Each direction between each two nodes
// changes by itself, and a node goes on once no packets come by the link that it needs.

// SecondLink returns the name of the second WireGuard link.
func (s Self) SecondLink() string { return LinkName(s.Instance, WireGuard, false) + "2" }

// TunnelID identifies a peer of a WireGuard link.
type TunnelID struct {
	Link string
	Key  peer.Key
}

// ID returns what identifies the tunnel.
func (t Tunnel) ID() TunnelID { return TunnelID{t.Link, t.Key} }

// Session is what a WireGuard link knows of a peer.
type Session struct {
	// Alive means that packets can be exchanged: there was a handshake lately, with the key Own of the
	// link itself.
	Alive    bool
	Own      peer.Key
	Received int64 // bytes
}

// rotationKeepalive is how many seconds may pass without a packet by the link to be used next, so
// that handshakes take place although no packets go there yet. A failed one is repeated after five
// seconds anyway.
const rotationKeepalive = 5

// HasSecond reports whether there is a second WireGuard link to a peer.
func (s Self) HasSecond(n *peer.Node) bool {
	return len(n.WireGuard) > 0 && s.Record.Rotation != nil && n.Rotation != nil && (s.Record.Rotating() || n.Rotating())
}

// prefersSecond reports whether packets to a peer are to go by the second link: as long as one of
// the nodes has its old key on the first.
func (s Self) prefersSecond(n *peer.Node) bool {
	begun := func(n *peer.Node) bool { return n.Rotating() && n.Rotation.Key != n.Key() }
	return s.HasSecond(n) && (begun(&s.Record) || begun(n))
}

// BySecond returns the names of the peers to which packets are to go by the second WireGuard link,
// as sessions are.
func (s Self) BySecond(peers []*peer.Node, sessions map[TunnelID]Session) map[string]bool {
	out := map[string]bool{}
	for _, n := range peers {
		if !s.HasSecond(n) {
			continue
		}
		first, second := s.Tunnels(n)
		bySecond, byFirst := sessions[second.ID()], sessions[first.ID()]
		// When this node gives the first link its new key, sessions with the old one are still there.
		byFirst.Alive = byFirst.Alive && byFirst.Own == s.Record.Key()
		bySecond.Alive = bySecond.Alive && bySecond.Own == s.secondKey()
		if bySecond.Alive && (s.prefersSecond(n) || !byFirst.Alive) {
			out[n.Name] = true
		}
	}
	return out
}

// Tunnels returns the tunnels to a peer by the first and the second link, without their endpoints'
// addresses. The peer must have WireGuard, and the second one exists only if HasSecond.
func (s Self) Tunnels(n *peer.Node) (first, second Tunnel) {
	newest := n.WireGuard[len(n.WireGuard)-1]
	first = Tunnel{Link: LinkName(s.Instance, WireGuard, false), Key: newest.Key, Endpoint: netip.AddrPortFrom(netip.Addr{}, newest.Port), Allowed: n.Blocks}
	if !s.HasSecond(n) {
		return first, second
	}
	second = Tunnel{Link: s.SecondLink(), Key: newest.Key, Endpoint: netip.AddrPortFrom(netip.Addr{}, n.Rotation.Port), Allowed: n.Blocks}
	if n.Rotating() {
		second.Key = n.Rotation.Key
	}
	if s.prefersSecond(n) {
		second.Keepalive = rotationKeepalive
	} else {
		first.Keepalive = rotationKeepalive
	}
	return first, second
}

// tunnels returns the tunnels to a peer, the one to use first.
func (s Self) tunnels(n *peer.Node, endpoint netip.Addr) []Tunnel {
	first, second := s.Tunnels(n)
	out := []Tunnel{first}
	if s.HasSecond(n) {
		out = append(out, second)
	}
	if s.Second[n.Name] && len(out) > 1 {
		slices.Reverse(out)
	}
	for i := range out {
		out[i].Endpoint = netip.AddrPortFrom(endpoint, out[i].Endpoint.Port())
	}
	return out
}

// secondLink returns the second WireGuard link if there is one.
func (s Self) secondLink(peers []*peer.Node) []Link {
	if s.Record.Rotation == nil || len(s.Underlay) == 0 || !s.offers(WireGuard) || !slices.Contains(s.Backend.Ways(), WireGuard) {
		return nil
	}
	needed := s.Record.Rotating()
	for _, n := range peers {
		needed = needed || n.Rotating()
	}
	if !needed {
		return nil
	}
	l := s.link(WireGuard, s.Underlay[0])
	l.Name, l.Port, l.Key, l.Optional = s.SecondLink(), s.Record.Rotation.Port, s.secondKey(), true
	return []Link{l}
}

// secondKey returns the key of the second link.
func (s Self) secondKey() peer.Key {
	if s.Record.Rotating() {
		return s.Record.Rotation.Key
	}
	return s.Record.Key()
}
