// Package backend decides how a node's packets reach the pods of other nodes: which way to use for
// each peer, and the links, neighbours, forwarding entries and routes that it consists of. It is
// pure; network/overlay applies its plans.
//
// A way is one of the backends' methods towards one peer. Direct is a route by the peer's address,
// without any encapsulation; it needs a link that both nodes are on. VXLAN, IPIP and WireGuard send
// packets inside packets from node to node. With BGP, routers exchange the routes.
package backend

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Way is how packets reach a peer.
type Way string

// The ways.
const (
	Direct    Way = "direct"
	VXLAN     Way = "vxlan"
	IPIP      Way = "ipip"
	WireGuard Way = "wireguard"
	BGP       Way = "bgp"
)

// Backend is the configured choice of ways.
type Backend string

// The backends. Their names are flannel's and Calico's.
const (
	// Auto uses Direct where it can, then VXLAN, then IPIP, then WireGuard.
	Auto Backend = "auto"
	// HostGW uses Direct only.
	HostGW Backend = "host-gw"
	// OnlyVXLAN and the others use Direct for peers on the same link, except for WireGuard, which
	// encrypts all packets.
	OnlyVXLAN     Backend = "vxlan"
	OnlyIPIP      Backend = "ipip"
	OnlyWireGuard Backend = "wireguard"
	// OnlyBGP leaves the routes to a BGP speaker.
	OnlyBGP Backend = "bgp"
)

// Backends are all backends.
var Backends = []Backend{Auto, HostGW, OnlyVXLAN, OnlyIPIP, OnlyWireGuard, OnlyBGP}

// Ways are the backend's, the preferred first.
func (b Backend) Ways() []Way {
	switch b {
	case HostGW:
		return []Way{Direct}
	case OnlyVXLAN:
		return []Way{Direct, VXLAN}
	case OnlyIPIP:
		return []Way{Direct, IPIP}
	case OnlyWireGuard:
		return []Way{WireGuard}
	case OnlyBGP:
		return []Way{BGP}
	default:
		return []Way{Direct, VXLAN, IPIP, WireGuard}
	}
}

// Overhead is how many bytes a way adds to a packet of the underlay's family.
func (w Way) Overhead(six bool) int {
	overhead := map[Way]int{VXLAN: 50, IPIP: 20, WireGuard: 60}[w]
	if six && overhead > 0 {
		overhead += 20
	}
	return overhead
}

// Carrier names the packets in which a way sends those of pods, for people; empty if it sends them
// as they are.
func (w Way) Carrier() string {
	return map[Way]string{VXLAN: fmt.Sprint("UDP port ", plan.VXLANPort), WireGuard: fmt.Sprint("UDP port ", plan.WireGuardPort), IPIP: "IP protocol 4"}[w]
}

// Underlay is one of the node's own addresses and the link that has it.
type Underlay struct {
	Link    string
	Address netip.Prefix // with the length of the subnet on the link
	MTU     int
	// Links are the names of the links by which packets to the address come, with spaces between them:
	// Link, and those beside it in the same subnet, as the kernel answers for all addresses on each of
	// them. It is empty if they may come by any link.
	Links string
}

// Self is the node for which a plan is made.
type Self struct {
	Instance pod.Instance
	Backend  Backend
	Record   peer.Node // what it tells the others
	Underlay []Underlay
	// Cluster are the pod subnets of all nodes.
	Cluster []netip.Prefix
	// Learned are the next hops that BGP knows for blocks.
	Learned map[netip.Prefix][]netip.Addr
	// Broken are the ways to peers that were found not to carry packets, and Limits the sizes of the
	// largest packets that reach a peer, by the peer's name.
	Broken map[string][]Way
	Limits map[string]int
	// Second are the peers to which WireGuard's packets go by the second link, by name. See
	// Self.BySecond.
	Second map[string]bool
}

// underlay returns the node's address of a family.
func (s Self) underlay(six bool) (Underlay, bool) {
	i := slices.IndexFunc(s.Underlay, func(u Underlay) bool { return u.Address.Addr().Is6() == six })
	if i < 0 {
		return Underlay{}, false
	}
	return s.Underlay[i], true
}

// Plan is the part of a node's network that depends on other nodes.
type Plan struct {
	// Links are those of the node's backends. They exist before the first peer.
	Links []Link
	Peers []*Peer // in the order of their names
	// MTU is the largest for which no packet between pods is fragmented.
	MTU int
}

// Link is a link through which packets leave encapsulated.
type Link struct {
	Way   Way
	Name  string
	MAC   plan.MAC // of VXLAN
	MTU   int
	Local netip.Addr // the address that packets are sent from
	Under string     // the link that has it
	VNI   uint32
	Port  uint16   // of VXLAN and WireGuard
	Key   peer.Key // of WireGuard
	// Optional means that everything works without the link, if it can't be made.
	Optional bool
	// Address is an IPv4 address of the link, the first of the node's first block, if it has one.
	// Without an address the kernel would drop packets by reverse path filtering, even if it is
	// loose, from a peer to which this node uses another way (__fib_validate_source).
	Address netip.Addr
}

// Peer is how packets reach one other node.
type Peer struct {
	Name string
	Way  Way // empty if there is none
	// Why says why there is no way or not the preferred one.
	Why        string
	MTU        int
	Endpoint   netip.Addr // the peer's address that packets are sent to
	Neighbours []plan.Neighbour
	Forwards   []Forward
	Tunnels    []Tunnel
	Routes     []plan.Route
	// Paths are all ways by which the peer can be reached, the preferred first.
	Paths []Path
}

// Path is where packets by a way go first: to a link and there, if it is of Ethernet, to a MAC or
// to a neighbour.
type Path struct {
	Way  Way
	Link string
	MAC  plan.MAC
	Via  netip.Addr
}

// Forward sends Ethernet frames to a MAC, inside UDP packets, to an address. It is an entry of a
// VXLAN link's forwarding database.
type Forward struct {
	Link string
	MAC  plan.MAC
	To   netip.Addr
}

// String returns the entry as iproute2 writes it.
func (f Forward) String() string {
	return fmt.Sprintf("fdb %v dev %s dst %v", f.MAC, f.Link, f.To)
}

// Tunnel is a peer of a WireGuard link.
type Tunnel struct {
	Link     string
	Key      peer.Key
	Endpoint netip.AddrPort
	Allowed  []netip.Prefix
	// Keepalive is after how many seconds without a packet one is sent, for the sake of a NAT in
	// between; 0 is never.
	Keepalive int
}

// String returns the tunnel as people know it.
func (t Tunnel) String() string { return fmt.Sprintf("wireguard peer %v dev %s", t.Key, t.Link) }

// LinkPrefix is the prefix of the names of an instance's links to other nodes.
func LinkPrefix(i pod.Instance) string { return "hn" + string(i) }

// Tag returns the number that identifies an instance's links and routes to other nodes, as the
// group of the links and the metric of the routes: "hn" and the instance's digits. It differs from
// plan.Tag, so that a route to a block of a peer and the unreachable route of a block of this node
// never replace each other when a block changes hands.
func Tag(i pod.Instance) uint32 {
	tag, _ := plan.Tag(i) // the caller has checked the instance
	return 'h'<<24 | 'n'<<16 | tag&0xffff
}

// LinkName returns the name of the link of a way, over an underlay of a family.
func LinkName(i pod.Instance, w Way, six bool) string {
	kind := ""
	switch w {
	case VXLAN:
		kind = "vx"
	case IPIP:
		kind = "ip"
	case WireGuard:
		kind = "wg"
	}
	if six {
		kind += "6"
	}
	return "hn" + string(i) + kind
}

// VXLANOf returns how a node receives VXLAN packets. The MAC is derived from the node's name alone,
// so that it stays the same when the link is made again, and peers that know only the name can
// compute it.
func VXLANOf(node string) *peer.VXLAN {
	return &peer.VXLAN{VNI: 1, Port: peer.VXLANPort, MAC: peer.MAC(plan.DerivedMAC(node, "vxlan"))}
}

// For returns the plan of a node for its peers, which peer.Accept has accepted.
func For(self Self, peers []*peer.Node) Plan { return new(Planner).Plan(self, peers) }

// mtu returns the MTU of pods: what every way that the backend may use can carry, so that falling
// back to another one doesn't make packets too large.
func (s Self) mtu() int {
	smallest := 0
	for _, u := range s.Underlay {
		for _, w := range s.Backend.Ways() {
			if !s.offers(w) {
				continue
			}
			if m := u.MTU - w.Overhead(u.Address.Addr().Is6()); smallest == 0 || m < smallest {
				smallest = m
			}
		}
	}
	return smallest
}

// offers reports whether the node itself can use a way.
func (s Self) offers(w Way) bool {
	switch w {
	case VXLAN:
		return s.Record.VXLAN != nil
	case IPIP:
		return s.Record.IPIP
	case WireGuard:
		return len(s.Record.WireGuard) > 0
	default:
		return true
	}
}

// links returns the links of the backend, without a second one of WireGuard: one of VXLAN for each
// family of the underlay, of the same VNI, as flannel's have: the kernel tells them apart by the
// family. Those of WireGuard serve both families, and those of IPIP only IPv4.
func (s Self) links() (out []Link) {
	for _, w := range s.Backend.Ways() {
		if w != VXLAN && w != IPIP && w != WireGuard || !s.offers(w) {
			continue
		}
		for i, u := range s.Underlay {
			if six := u.Address.Addr().Is6(); w == IPIP && six || w == WireGuard && i > 0 {
				continue
			}
			out = append(out, s.link(w, u))
		}
	}
	return out
}

func (s Self) link(w Way, u Underlay) Link {
	six := u.Address.Addr().Is6()
	l := Link{Way: w, Name: LinkName(s.Instance, w, six && w == VXLAN), MTU: u.MTU - w.Overhead(six), Local: u.Address.Addr(), Under: u.Link}
	switch w {
	case VXLAN:
		v := s.Record.VXLAN
		l.VNI, l.Port, l.MAC = v.VNI, v.Port, plan.MAC(v.MAC)
		if six && v.MAC6 != (peer.MAC{}) {
			l.MAC = plan.MAC(v.MAC6)
		}
	case WireGuard:
		newest := s.Record.WireGuard[len(s.Record.WireGuard)-1]
		l.Port, l.Key = newest.Port, newest.Key
	}
	if b := slices.IndexFunc(s.Record.Blocks, func(b netip.Prefix) bool { return b.Addr().Is4() }); b >= 0 {
		l.Address = s.Record.Blocks[b].Addr()
	}
	return l
}

// peer returns how n is reached: by the first way that is possible and not broken or, if all are
// broken, by the first that is possible. The entries of the other possible ways are there too, but
// no routes lead to them: this way they can be probed.
func (s Self) peer(n peer.Node) Peer {
	var possible []Peer
	use := -1 // the index of the way to use
	var reasons []string
	because := func(w Way, why any) {
		if use < 0 {
			reasons = append(reasons, fmt.Sprintf("not %s: %v", w, why))
		}
	}
	for _, w := range s.Backend.Ways() {
		p, err := s.by(w, n)
		if err != nil {
			because(w, err)
			continue
		}
		possible = append(possible, p)
		if slices.Contains(s.Broken[n.Name], w) {
			because(w, "no answer from the peer by it")
		} else if use < 0 {
			use = len(possible) - 1
		}
	}
	if len(possible) == 0 {
		return Peer{Name: n.Name, Why: strings.Join(reasons, "; ")}
	}
	if use < 0 {
		use = 0
		reasons = append(reasons, fmt.Sprintf("so it stays %s", possible[0].Way))
	}
	out := possible[use]
	out.Why = strings.Join(reasons, "; ")
	if limit := s.Limits[n.Name]; limit > 0 {
		out.MTU = min(out.MTU, limit)
	}
	for i, p := range possible {
		out.Paths = append(out.Paths, p.path())
		if i != use {
			out.Forwards = append(out.Forwards, p.Forwards...)
			out.Tunnels = append(out.Tunnels, p.Tunnels...)
		}
	}
	return out
}

// path returns where packets by the peer's way go first.
func (p Peer) path() Path {
	out := Path{Way: p.Way}
	switch {
	case len(p.Forwards) > 0:
		out.Link, out.MAC = p.Forwards[0].Link, p.Forwards[0].MAC
	case len(p.Tunnels) > 0:
		out.Link = p.Tunnels[0].Link
	case len(p.Routes) > 0:
		out.Link = p.Routes[0].Link
		if p.Way == Direct {
			out.Via = p.Routes[0].Via
		}
	}
	return out
}
