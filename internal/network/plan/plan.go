// Package plan says what a pod's attachment, and the node's own part of the
// network, consist of: links, addresses, routes, neighbours and nftables
// elements, as values. It is pure; network/datapath makes them so.
//
// In mode ptp, the default, a pod hangs on a veth pair of its own and every
// packet is routed. The pod has its address as a /32 (/128) and sends all to a
// link-local gateway whose MAC it knows for good; the node has a route and a
// permanent neighbour for the pod. There is no ARP and no neighbour discovery,
// no proxy_arp, and nothing that two pods share. The gateway is only a name for
// the other end of the link: no link of the node has the address.
//
// In mode bridge the pairs' host ends are ports of a bridge that has the
// gateway's address, so that pods reach each other by Ethernet.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/huskd/husk/internal/pod"
)

// Protocol is the number by which routes are known to be Husk's. The kernel
// and the routing daemons listed in rtnetlink.h and iproute2's rt_protos don't
// use it.
const Protocol = 104

// Mode is how pods hang on the node.
type Mode string

// The modes.
const (
	PTP    Mode = "ptp"
	Bridge Mode = "bridge"
)

// The gateway of every pod in mode ptp.
var (
	Gateway4 = netip.MustParseAddr("169.254.1.1")
	Gateway6 = netip.MustParseAddr("fe80::1")
)

// Gateway returns the link-local gateway of a's family.
func Gateway(a netip.Addr) netip.Addr {
	if a.Is4() {
		return Gateway4
	}
	return Gateway6
}

// Node is what of the node's configuration an attachment depends on.
type Node struct {
	Instance pod.Instance
	Mode     Mode
	Bridge   string // in mode bridge; empty is the instance's own
	MTU      int
	// Source is the node's own IPv4 address, as the default route gives it to
	// what the node sends; none without a default route.
	Source netip.Addr
	// Routes are what pods reach through the network; none means everything.
	Routes []Destination
	// NoHairpin keeps a pod from meeting itself through a hostPort.
	NoHairpin bool
}

// Destination is reached by way of the network's gateway or, in mode bridge
// only, of another address.
type Destination struct {
	Dst netip.Prefix `json:"dst"`
	Via netip.Addr   `json:"gw,omitzero"`
}

// Plan is everything that an attachment consists of.
type Plan struct {
	Sandbox   string
	Netns     string // path
	Veth      Veth
	Host      Side
	Pod       Side
	Elements  []Element
	Bandwidth Bandwidth
}

// Veth is a veth pair.
type Veth struct {
	Host, Pod       string // names of the ends
	HostMAC, PodMAC MAC
	MTU             int
	Alias           string // of the host's end: whose it is, for people
	Bridge          string // whose port the host's end is; none in mode ptp
	Hairpin         bool   // of that port
	// RouteLocalnet lets connections to 127.0.0.1 leave by the host's end after
	// their address is rewritten.
	RouteLocalnet bool
}

// Side is what is set in one network namespace.
type Side struct {
	Addresses  []Address
	Neighbours []Neighbour
	Routes     []Route
}

// Address of a link. IPv6 addresses skip duplicate detection: nobody else can
// have them.
type Address struct {
	Link   string
	Prefix netip.Prefix
	// LastResort keeps the kernel from taking it for the source of a packet as
	// long as there is any other.
	LastResort bool
}

// Neighbour is a permanent entry.
type Neighbour struct {
	Link string
	Addr netip.Addr
	MAC  MAC
}

// Kind of a route.
type Kind string

// The kinds of routes.
const (
	Unicast     Kind = "unicast"
	Local       Kind = "local" // in table local
	Unreachable Kind = "unreachable"
)

// Route is a route of our protocol.
type Route struct {
	Kind   Kind
	Dst    netip.Prefix
	Via    netip.Addr // onlink; none if the destination itself is
	Link   string     // none if unreachable
	Metric int        // 0 is the family's default
	Source netip.Addr // of what the node itself sends; any if invalid
	// Preferred routes have another behind them. The kernel removes such a one
	// when the node loses the Source.
	Preferred bool
}

// String returns the address as iproute2 writes it.
func (a Address) String() string { return fmt.Sprintf("address %v dev %s", a.Prefix, a.Link) }

// String returns the neighbour as iproute2 writes it.
func (n Neighbour) String() string {
	return fmt.Sprintf("neighbour %v lladdr %v dev %s", n.Addr, n.MAC, n.Link)
}

// String returns the route as iproute2 writes it.
func (r Route) String() string {
	s := "route " + r.Dst.String()
	if r.Kind != Unicast {
		s = fmt.Sprintf("route %s %v", r.Kind, r.Dst)
	}
	if r.Via.IsValid() {
		s += " via " + r.Via.String()
	}
	if r.Link != "" {
		s += " dev " + r.Link
	}
	if r.Source.IsValid() {
		s += " src " + r.Source.String()
	}
	return s
}

// For returns the plan of a on node. addresses are the pod's, with the prefix
// length of their subnets.
func For(node Node, a pod.Attachment, addresses []netip.Prefix) Plan {
	host := node.Instance.HostLink(a.Sandbox)
	p := Plan{
		Sandbox: a.Sandbox,
		Netns:   a.Netns,
		Veth: Veth{
			Host:    host,
			Pod:     a.IfName,
			HostMAC: macOf(string(node.Instance), a.Sandbox, a.IfName, "host"),
			PodMAC:  podMAC(node.Instance, a),
			MTU:     node.MTU,
			Alias:   "husk " + a.Sandbox + " " + a.Pod.String(),
		},
	}
	ingress := host // the link by which the pod's packets come to be routed
	if node.Mode == Bridge {
		ingress = BridgeName(node.Instance, node.Bridge)
		p.Veth.Bridge, p.Veth.Hairpin = ingress, !node.NoHairpin
		p.bridged(node, addresses)
	} else {
		p.routed(node, a, addresses)
	}
	p.Elements = elements(ingress, a, addresses)
	if node.NoHairpin {
		p.Elements = slices.DeleteFunc(p.Elements, func(e Element) bool { return e.Set == setName(Hairpin, e.Addr.Is6()) })
	}
	p.Bandwidth = bandwidthOf(node.Instance, a)
	for _, prefix := range addresses {
		if prefix.Addr().Is6() {
			own := p.Veth.PodMAC.linkLocal()
			p.Pod.Addresses = append(p.Pod.Addresses, Address{Link: a.IfName, Prefix: netip.PrefixFrom(own, 64)})
			p.Host.Neighbours = append(p.Host.Neighbours, Neighbour{ingress, own, p.Veth.PodMAC})
		}
	}
	return p
}

// everything is the default route of a's family.
func defaultRoute(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// alone is the prefix that contains a only.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (p *Plan) routed(node Node, a pod.Attachment, addresses []netip.Prefix) {
	host, eth := p.Veth.Host, p.Veth.Pod
	for _, prefix := range addresses {
		addr, gateway := prefix.Addr(), Gateway(prefix.Addr())
		p.Host.Neighbours = append(p.Host.Neighbours, Neighbour{host, addr, p.Veth.PodMAC})
		p.Host.Routes = append(p.Host.Routes, hostRoutes(host, prefix, node.Source)...)
		p.Pod.Addresses = append(p.Pod.Addresses, Address{Link: eth, Prefix: single(addr)})
		p.Pod.Neighbours = append(p.Pod.Neighbours, Neighbour{eth, gateway, p.Veth.HostMAC})
		p.Pod.Routes = append(p.Pod.Routes, podRoutes(node, eth, addr, gateway)...)
		if !onLoopback(a, addr) {
			continue
		}
		if addr.Is4() {
			p.Veth.RouteLocalnet = true
		} else {
			p.Host.Routes = append(p.Host.Routes, loopbackRoute(host))
		}
	}
}

// hostRoutes lead to a pod. What the node itself sends has its own address; of
// IPv6 the kernel knows to choose it. The second route of IPv4 serves when the
// node has lost that address, being offline: without any, it could not send.
func hostRoutes(link string, pod netip.Prefix, source netip.Addr) []Route {
	r := Route{Kind: Unicast, Dst: single(pod.Addr()), Link: link}
	if pod.Addr().Is6() {
		return []Route{r}
	}
	preferred, fallback := r, r
	preferred.Source, preferred.Preferred = source, true
	fallback.Source, fallback.Metric = First(pod), 1
	if !source.IsValid() {
		return []Route{fallback}
	}
	return []Route{preferred, fallback}
}

// loopbackRoute is what route_localnet is to IPv4. The replies to a rewritten
// connection to ::1 come in by the pod's link, and for ::1 Linux takes only a
// route of the very link that a packet came by (rt6_need_strict). The metric
// keeps it behind the one of lo for everybody else. A packet that has ::1 on
// the wire is dropped before it could be routed (ip6_rcv_core).
func loopbackRoute(link string) Route {
	return Route{Kind: Local, Dst: single(netip.IPv6Loopback()), Link: link, Metric: 4096}
}

func (p *Plan) bridged(node Node, addresses []netip.Prefix) {
	bridge, eth := p.Veth.Bridge, p.Veth.Pod
	mac := BridgeMAC(node.Instance)
	for _, prefix := range addresses {
		addr, gateway := prefix.Addr(), First(prefix)
		p.Host.Neighbours = append(p.Host.Neighbours, Neighbour{bridge, addr, p.Veth.PodMAC})
		p.Pod.Addresses = append(p.Pod.Addresses, Address{Link: eth, Prefix: prefix})
		p.Pod.Neighbours = append(p.Pod.Neighbours, Neighbour{eth, gateway, mac})
		p.Pod.Routes = append(p.Pod.Routes, podRoutes(node, eth, addr, gateway)...)
	}
}

// podRoutes are those of addr's family in the pod.
func podRoutes(node Node, link string, addr, gateway netip.Addr) (out []Route) {
	if addr.Is6() {
		out = append(out, ownRoute(link, addr))
	}
	if len(node.Routes) == 0 {
		return append(out, Route{Kind: Unicast, Dst: defaultRoute(addr), Via: gateway, Link: link})
	}
	for _, d := range node.Routes {
		if d.Dst.Addr().Is4() != addr.Is4() {
			continue
		}
		via := gateway
		if d.Via.IsValid() {
			via = d.Via
		}
		out = append(out, Route{Kind: Unicast, Dst: d.Dst, Via: via, Link: link})
	}
	return out
}

// ownRoute makes an IPv6 address answer at once. The kernel's own route to it
// comes in the background, when that gets a lock which the deletion of other
// namespaces may hold for seconds (addrconf_dad_work). The metric keeps this one
// behind it.
func ownRoute(link string, addr netip.Addr) Route {
	return Route{Kind: Local, Dst: single(addr), Link: link, Metric: 4096}
}

// BridgeName is the name of an instance's bridge that is configured as name.
func BridgeName(i pod.Instance, name string) string {
	if name == "" {
		return i.Bridge()
	}
	return name
}

// First is the first address of a subnet, which no pod gets. The node has it: on
// the bridge in mode bridge, on lo otherwise. It appears under it when it has no
// other, and when the pod could not reply to the address that a connection is
// really from: to 127.0.0.1, or to the pod's own. (A link-local one would do for
// IPv4. For IPv6 it would not: the pod's answer to a datagram would be from its
// own link-local address.)
func First(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// Attached is what the network answers when p is made so.
func (p Plan) Attached(network string) *pod.Attached {
	out := &pod.Attached{
		Network:  network,
		IfName:   p.Veth.Pod,
		MAC:      p.Veth.PodMAC.String(),
		MTU:      p.Veth.MTU,
		HostLink: p.Veth.Host,
	}
	for _, a := range p.Pod.Addresses {
		if !a.Prefix.Addr().IsLinkLocalUnicast() {
			out.Addresses = append(out.Addresses, a.Prefix)
		}
	}
	for _, n := range p.Pod.Neighbours {
		out.Gateways = append(out.Gateways, n.Addr)
	}
	return out
}

// Tag is a number by which an instance's link groups and subnet routes are
// known: "hu" and the instance's digits.
func Tag(i pod.Instance) (uint32, error) {
	n, err := strconv.ParseUint(string(i), 16, 16)
	if err != nil || len(i) != 4 {
		return 0, fmt.Errorf("instance %q: not four hex digits", string(i))
	}
	return 'h'<<24 | 'u'<<16 | uint32(n), nil
}
