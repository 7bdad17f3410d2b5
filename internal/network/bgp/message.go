// Package bgp is huskd's side of husk-bgp, the program that speaks BGP with other nodes and with
// routers. The program is on its own so that its sessions outlive huskd, and so that only nodes
// that use it have its size.
//
// The two exchange lines of JSON through a socket. huskd sends a Desired, which is complete, and
// the program answers with a State now and whenever that changes. Of several connections, the
// program serves the newest.
package bgp

import (
	"net/netip"
	"slices"
)

// Version is the version of the messages. A program of another version is replaced.
const Version = 3

// Desired is what the program is to do.
type Desired struct {
	Version int `json:"v"`
	// Stop ends the program and its sessions. The peers remove the routes at once.
	Stop     bool       `json:"stop,omitempty"`
	AS       uint32     `json:"as"`
	RouterID netip.Addr `json:"routerID"`
	// Local are the node's addresses, at most one of each family. They are the next hops, an IPv6
	// address also of IPv4 prefixes if there is no other (RFC 8950).
	Local    []netip.Addr   `json:"local"`
	Prefixes []netip.Prefix `json:"prefixes"`
	// Inside are the subnets of which routes are of interest.
	Inside []netip.Prefix `json:"inside"`
	Peers  []Peer         `json:"peers"`
}

// Peer is another speaker.
//
// All packets to it have a TTL or hop limit of 255, which routers may require (RFC 5082).
type Peer struct {
	Address  netip.Addr `json:"address"`
	AS       uint32     `json:"as"`
	Password string     `json:"password,omitempty"` // of TCP-MD5, RFC 2385
	// Passive leaves it to the peer to connect. Of two nodes one is passive: two that start at the
	// same time would connect to each other at the same times, and both connections be closed.
	Passive bool `json:"passive,omitempty"`
	// BFD ends the session within a second if the path to the peer is dead (RFC 5881).
	BFD bool `json:"bfd,omitempty"`
	// GTSM requires 255 of its packets too: it is on the same link, and what a router has forwarded,
	// such as the packets of its pods, isn't from it (RFC 5082).
	GTSM bool `json:"gtsm,omitempty"`
	// Node is what the peer may announce if it is a node; nil if it is a router, which may announce
	// everything.
	Node *Node `json:"node,omitempty"`
}

// SameSession reports whether two peers differ at most in what they may announce.
func (p Peer) SameSession(o Peer) bool {
	p.Node, o.Node = nil, nil
	return p == o
}

func (p Peer) equal(o Peer) bool {
	sameNode := p.Node == o.Node || p.Node != nil && o.Node != nil && slices.Equal(p.Node.Blocks, o.Node.Blocks) && slices.Equal(p.Node.Addresses, o.Node.Addresses)
	return sameNode && p.SameSession(o)
}

// Node is what a node may announce: the blocks of its record, by the addresses of its record.
type Node struct {
	Blocks    []netip.Prefix `json:"blocks"`
	Addresses []netip.Addr   `json:"addresses"`
}

// Announced returns for which of the node's blocks an announcement counts. If there is none, it
// isn't for the node to make, which can also mean that its record is older.
//
// A larger prefix counts for the node's own blocks in it. It may have become one of adjacent blocks
// before others have the record with all of them.
func (n *Node) Announced(prefix netip.Prefix, via netip.Addr) (blocks []netip.Prefix) {
	if !slices.Contains(n.Addresses, via) {
		return nil
	}
	for _, b := range n.Blocks {
		if prefix.Bits() <= b.Bits() && prefix.Contains(b.Addr()) {
			blocks = append(blocks, b)
		}
	}
	return blocks
}

// State is what the program has.
type State struct {
	Version int `json:"v"`
	// Settled is false after the program has started, until its peers have sent all their routes or
	// had the time to. Until then a route that is missing isn't one that was withdrawn.
	Settled  bool      `json:"settled"`
	Routes   []Route   `json:"routes"`   // in the order of their prefixes
	Sessions []Session `json:"sessions"` // in the order of their addresses
	// Error is why the program can't do what is desired.
	Error string `json:"error,omitempty"`
}

// Route is what was learned: the best next hops of a prefix, several if they are equally good.
type Route struct {
	Prefix netip.Prefix `json:"prefix"`
	Via    []netip.Addr `json:"via"`
}

// Session is the state of a session with a peer.
type Session struct {
	Address netip.Addr `json:"address"`
	AS      uint32     `json:"as"`
	Up      bool       `json:"up"`
	// Why says why there has been no session for a while, other than a short one, or what one that
	// is up lacks.
	Why string `json:"why,omitempty"`
}

// Equal reports whether two states are the same.
func (s State) Equal(o State) bool {
	return s.Version == o.Version && s.Settled == o.Settled && s.Error == o.Error && slices.Equal(s.Sessions, o.Sessions) &&
		slices.EqualFunc(s.Routes, o.Routes, func(a, b Route) bool { return a.Prefix == b.Prefix && slices.Equal(a.Via, b.Via) })
}

// Equal reports whether two messages ask for the same.
func (d Desired) Equal(o Desired) bool {
	return d.Version == o.Version && d.Stop == o.Stop && d.AS == o.AS && d.RouterID == o.RouterID && slices.Equal(d.Local, o.Local) &&
		slices.Equal(d.Prefixes, o.Prefixes) && slices.Equal(d.Inside, o.Inside) && slices.EqualFunc(d.Peers, o.Peers, Peer.equal)
}
