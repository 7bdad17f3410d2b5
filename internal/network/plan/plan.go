// Package plan describes what a pod's attachment, and the node's part of the network, consist of:
// links, addresses, routes, neighbours and nftables elements, as values. It is pure;
// network/datapath applies the plans.
//
// In mode ptp, the default, a pod has its own veth pair and every packet is routed. The pod has its
// address as a /32 (/128) and sends everything to a link-local gateway with a permanent MAC; the
// node has a route and a permanent neighbour for the pod. There is no ARP, no neighbour discovery
// and no proxy_arp, and pods share nothing. The gateway is only a name for the other end of the
// link: no link of the node has its address.
//
// In mode bridge the host's ends are ports of a bridge that has the gateway's address, so that pods
// reach each other by Ethernet.
package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/huskd/husk/internal/pod"
)

// Protocol is the number that identifies Husk's routes. Neither the kernel nor the routing daemons
// listed in rtnetlink.h and iproute2's rt_protos use it.
const Protocol = 104

// Mode is how pods are connected to the node.
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

// Node is the part of the node's configuration that attachments depend on.
type Node struct {
	Instance pod.Instance
	Mode     Mode
	Bridge   string // in mode bridge; empty is the instance's own
	MTU      int
	// Source is the IPv4 address that the node itself sends from by the default route. It is
	// invalid without one.
	Source netip.Addr
	// Routes are the destinations that pods reach through the network; none means all.
	Routes []Destination
	// NoHairpin keeps a pod from reaching itself through a hostPort.
	NoHairpin bool
}

// Destination is reached by the network's gateway or, in mode bridge only, by another address.
type Destination struct {
	Dst netip.Prefix `json:"dst"`
	Via netip.Addr   `json:"gw,omitzero"`
}

// Plan is everything that makes up an attachment.
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
	Alias           string // of the host's end, names the pod for people
	Bridge          string // the bridge of the host's end; empty in mode ptp
	Hairpin         bool   // of the bridge port
	// RouteLocalnet lets connections to 127.0.0.1 leave by the host's end once their address is
	// rewritten.
	RouteLocalnet bool
}

// Side is the settings in one network namespace.
type Side struct {
	Addresses  []Address
	Neighbours []Neighbour
	Routes     []Route
}

// Address is an address of a link. IPv6 addresses skip duplicate detection, as no other host can
// have them.
type Address struct {
	Link   string
	Prefix netip.Prefix
	// LastResort keeps the kernel from choosing it as the source of a packet while there is any
	// other.
	LastResort bool
}

// Neighbour is a permanent neighbour entry.
type Neighbour struct {
	Link string
	Addr netip.Addr
	MAC  MAC
}

// Kind is the type of a route.
type Kind string

// The kinds of routes.
const (
	Unicast     Kind = "unicast"
	Local       Kind = "local" // in table local
	Unreachable Kind = "unreachable"
)

// Route is a route of Protocol.
type Route struct {
	Kind   Kind
	Dst    netip.Prefix
	Via    netip.Addr // onlink; invalid if the destination itself is
	Link   string     // empty if unreachable
	Metric int        // 0 is the family's default
	Source netip.Addr // of packets from the node itself; any if invalid
	MTU    int        // of packets by this route; 0 is the link's
	// Preferred routes have a fallback route. The kernel removes a preferred one when the node
	// loses the Source.
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
	if r.MTU != 0 {
		s += fmt.Sprintf(" mtu %d", r.MTU)
	}
	return s
}

// For returns the plan of a on node. addresses are the pod's, with the prefix length of their
// subnets.
func For(node Node, a pod.Attachment, addresses []netip.Prefix) Plan {
	host := node.Instance.HostLink(a.Sandbox)
	p := Plan{
		Sandbox: a.Sandbox,
		Netns:   a.Netns,
		Veth: Veth{
			Host:    host,
			Pod:     a.IfName,
			HostMAC: DerivedMAC(string(node.Instance), a.Sandbox, a.IfName, "host"),
			PodMAC:  podMAC(node.Instance, a),
			MTU:     node.MTU,
			Alias:   "husk " + a.Sandbox + " " + a.Pod.String(),
		},
	}
	ingress := host // the link by which the node receives the pod's packets
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
			own := p.Veth.PodMAC.LinkLocal()
			p.Pod.Addresses = append(p.Pod.Addresses, Address{Link: a.IfName, Prefix: netip.PrefixFrom(own, 64)})
			p.Host.Neighbours = append(p.Host.Neighbours, Neighbour{ingress, own, p.Veth.PodMAC})
		}
	}
	return p
}

// defaultRoute returns the default route's destination of a's family.
func defaultRoute(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// single returns the prefix that contains only a.
func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func (p *Plan) routed(node Node, a pod.Attachment, addresses []netip.Prefix) {
	host, eth := p.Veth.Host, p.Veth.Pod
	for _, prefix := range addresses {
		addr, gateway := prefix.Addr(), Gateway(prefix.Addr())
		p.Host.Neighbours = append(p.Host.Neighbours, Neighbour{host, addr, p.Veth.PodMAC})
		p.Host.Routes = append(p.Host.Routes, hostRoutes(host, prefix, node.Source)...)
		p.Pod.Addresses = append(p.Pod.Addresses, Address{Link: eth, Prefix: single(addr)})
		p.Pod.Neighbours = append(p.Pod.Neighbours, Neighbour{eth, gateway, p.Veth.HostMAC})
		if addr.Is4() {
			p.Pod.Routes = append(p.Pod.Routes, gatewayRoute(eth, gateway))
		}
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

// gatewayRoute returns the route to the gateway of mode ptp. The kernel doesn't need it, as the
// routes by the gateway are onlink. But a runtime with a kernel of its own copies the routes, and
// Kata before 3.15 loses that flag.
func gatewayRoute(link string, gateway netip.Addr) Route {
	return Route{Kind: Unicast, Dst: single(gateway), Link: link}
}

// hostRoutes returns the routes to a pod. Packets from the node itself have its own address; for
// IPv6 the kernel chooses it. The second route of IPv4 is for a node that is offline and has lost
// that address: it could not send otherwise.
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

// loopbackRoute returns the IPv6 counterpart of route_localnet. The replies to a rewritten
// connection to ::1 arrive by the pod's link, and for ::1 Linux only accepts a route of the link
// that a packet arrived by (rt6_need_strict). The metric keeps it behind the one of lo for all
// other packets. A packet with ::1 on the wire is dropped before it could be routed (ip6_rcv_core).
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

// podRoutes returns the routes of addr's family in the pod.
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

// ownRoute makes an IPv6 address answer at once. The kernel adds its own route in the background,
// once it gets a lock that the deletion of other namespaces may hold for seconds
// (addrconf_dad_work). The metric keeps this one behind it.
func ownRoute(link string, addr netip.Addr) Route {
	return Route{Kind: Local, Dst: single(addr), Link: link, Metric: 4096}
}

// BridgeName returns the name of an instance's bridge: name, or the default if that is empty.
func BridgeName(i pod.Instance, name string) string {
	if name == "" {
		return i.Bridge()
	}
	return name
}

// First returns the first address of a subnet, which no pod gets. The node has it on the bridge in
// mode bridge, and on lo otherwise. The node uses it when it has no other address, and when the pod
// could not reply to the real source of a connection: 127.0.0.1, or the pod's own address. (A
// link-local address would do for IPv4, but not for IPv6: the pod would answer a datagram from its
// own link-local address.)
func First(subnet netip.Prefix) netip.Addr { return subnet.Masked().Addr().Next() }

// Attached returns the result of attaching p to a network of that name.
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

// Tag returns the number that identifies an instance's link groups and subnet routes: "hu" and the
// instance's digits.
func Tag(i pod.Instance) (uint32, error) {
	n, err := strconv.ParseUint(string(i), 16, 16)
	if err != nil || len(i) != 4 {
		return 0, fmt.Errorf("instance %q: not four hex digits", string(i))
	}
	return 'h'<<24 | 'u'<<16 | uint32(n), nil
}
