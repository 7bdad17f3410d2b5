package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/pod"
)

// Ports on which nodes receive what other nodes send to them.
const (
	VXLANPort     = 8472 // Linux's default and flannel's, not IANA's 4789
	ProbePort     = 8473
	WireGuardPort = 51820
	// RotationPort is that of a second WireGuard link while a key is being changed. It isn't 51821,
	// which others use for IPv6.
	RotationPort = 51822
	BGPPort      = 179
	BFDPort      = 3784 // RFC 5881
)

// Numbers of IP protocols.
const (
	ipip = 4
	tcp  = 6
	udp  = 17
	sixp = 41 // IPv6 in IP
)

// Senders are those from whom a node takes the packets to a NodePort.
type Senders int

// The senders. None of them is a pod.
const (
	// FromNodes are other nodes, by the addresses in their records.
	FromNodes Senders = iota
	// FromRouters are other nodes, and the configured routers that speak BGP.
	FromRouters
	// FromAnybody is for packets that are authenticated. A node behind a NAT has another address than
	// in its record.
	FromAnybody
)

// NodePort is a port, or a whole IP protocol, on which nodes receive what other nodes send to them.
type NodePort struct {
	Protocol uint8  // IP's number
	Port     uint16 // 0 if it is the whole protocol
	From     Senders
}

// NodePorts are those of a node with others, which may have other backends than this one. Those of
// BGP are there only if this node speaks it: otherwise the port is free for other programs.
func NodePorts(bgp bool) []NodePort {
	out := []NodePort{
		{udp, VXLANPort, FromNodes}, {udp, ProbePort, FromNodes}, {udp, WireGuardPort, FromAnybody}, {udp, RotationPort, FromAnybody},
		{ipip, 0, FromNodes}, {sixp, 0, FromNodes},
	}
	if bgp {
		out = append(out, NodePort{tcp, BGPPort, FromRouters}, NodePort{udp, BFDPort, FromRouters})
	}
	return out
}

// HostPorts returns an error if one of a pod's host ports is one of NodePorts. Whether anything
// listens there at the moment doesn't count: the pod would get what is sent to a speaker of BGP
// that is being restarted, or to the link for a key of WireGuard that is to come.
func (t Table) HostPorts(ports []pod.PortMapping) error {
	numbers := map[pod.Protocol]uint8{pod.TCP: tcp, pod.UDP: udp}
	for _, m := range ports {
		if slices.ContainsFunc(t.NodePorts, func(n NodePort) bool { return n.Port != 0 && n.Port == m.HostPort && n.Protocol == numbers[m.Protocol] }) {
			return &pod.PortInUseError{Port: m, By: "nodes talk to each other by it; use another hostPort"}
		}
	}
	return nil
}

// Nodes are the addresses by which nodes know each other, and the links between them.
type Nodes struct {
	// Self are this node's addresses to which other nodes send.
	Self []netip.Addr
	// Others are those from which they send.
	Others []netip.Addr
	// Links are those by which packets of other nodes' pods may come as they are. None means any.
	Links []string
}

// Kinds of the sets of Nodes: nodes4, nodes6, …
const (
	Others   = "nodes"    // Nodes.Others
	Self     = "self"     // Nodes.Self
	Underlay = "underlay" // Nodes.Links, the same for both families
)

// NodeSets returns the sets of the table whose elements are those of Nodes.
func NodeSets() (out []Set) {
	for _, six := range []bool{false, true} {
		out = append(out, Set{Others, six, []Field{FieldAddr}, nil}, Set{Self, six, []Field{FieldAddr}, nil}, Set{Underlay, six, []Field{FieldLink}, nil})
	}
	return out
}

// Elements returns the elements that stand for n, none if it is nil.
func (n *Nodes) Elements() (out []Element) {
	if n == nil {
		return nil
	}
	for _, a := range n.Self {
		out = append(out, Element{Set: setName(Self, a.Is6()), Addr: a})
	}
	for _, a := range n.Others {
		out = append(out, Element{Set: setName(Others, a.Is6()), Addr: a})
	}
	for _, l := range n.Links {
		out = append(out, Element{Set: setName(Underlay, false), Link: l}, Element{Set: setName(Underlay, true), Link: l})
	}
	return out
}

// NodesOf is the inverse of Elements. It returns nil if there is no address of this node.
func NodesOf(elements []Element) *Nodes {
	n := &Nodes{}
	for _, e := range elements {
		switch e.Set {
		case setName(Self, false), setName(Self, true):
			n.Self = append(n.Self, e.Addr)
		case setName(Others, false), setName(Others, true):
			n.Others = append(n.Others, e.Addr)
		case setName(Underlay, false):
			n.Links = append(n.Links, e.Link)
		}
	}
	if len(n.Self) == 0 {
		return nil
	}
	n.Sort()
	return n
}

// Sort orders the addresses and links, and drops duplicates.
func (n *Nodes) Sort() {
	for _, list := range []*[]netip.Addr{&n.Self, &n.Others} {
		slices.SortFunc(*list, netip.Addr.Compare)
		*list = slices.Compact(*list)
	}
	slices.Sort(n.Links)
	n.Links = slices.Compact(n.Links)
}

// Equal reports whether n and o are the same. Both are sorted.
func (n *Nodes) Equal(o *Nodes) bool {
	if n == nil || o == nil {
		return n == o
	}
	return slices.Equal(n.Self, o.Self) && slices.Equal(n.Others, o.Others) && slices.Equal(n.Links, o.Links)
}

// Packet is one of a flow's first.
type Packet struct {
	From, To netip.Addr
	Protocol uint8 // IP's number
	Port     uint16
	FromPod  bool // of this node
	Local    bool // To is an address of this node
}

// Refuses returns why the table drops a packet to an address of a node because of NodePorts; empty
// if it doesn't.
func (t Table) Refuses(p Packet) string {
	i := slices.IndexFunc(t.NodePorts, func(n NodePort) bool { return n.Protocol == p.Protocol && (n.Port == 0 || n.Port == p.Port) })
	if i < 0 {
		return ""
	}
	other := t.Nodes != nil && slices.Contains(t.Nodes.Others, p.To) || t.NodePorts[i].From == FromRouters && slices.Contains(t.Routers, p.To)
	if !p.Local && !other {
		return ""
	}
	name := fmt.Sprintf("port %d", p.Port)
	if t.NodePorts[i].Port == 0 {
		name = fmt.Sprintf("protocol %d", p.Protocol)
	}
	if p.FromPod {
		return fmt.Sprintf("nodes talk to each other by %s, which pods don't reach at the address of a node or router", name)
	}
	if !p.Local || t.Nodes == nil || t.NodePorts[i].From == FromAnybody ||
		slices.Contains(t.Nodes.Others, p.From) && slices.Contains(t.Nodes.Self, p.To) ||
		t.NodePorts[i].From == FromRouters && slices.Contains(t.Routers, p.From) {
		return ""
	}
	return fmt.Sprintf("packets to %s are taken only from nodes, from and to the addresses in their records", name)
}
