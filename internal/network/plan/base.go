package plan

import (
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/pod"
)

// Base is the node's part of the network: what exists before the first pod and after the last.
type Base struct {
	Table   Table
	Link    *BridgeLink // nil without a bridge
	Host    Side
	Sysctls []string // set to 1
}

// BridgeLink is the instance's bridge. It serves every pod, so it always has route_localnet, see
// Veth.RouteLocalnet.
type BridgeLink struct {
	Name string
	MAC  MAC
}

// Table is what the rules of the instance's nftables table, and its sets of subnets, depend on.
type Table struct {
	Name string
	// Owner, if set, identifies the network more reliably than the instance's four digits. A table
	// of another owner isn't touched.
	Owner      string
	LinkPrefix string // prefix of the names of the host's ends
	// NodeLinks is the prefix of the names of the links to other nodes; empty if there are none.
	NodeLinks  string
	Encrypted  bool   // see BaseConfig
	TunnelPort uint16 // see BaseConfig
	Bridge     string
	Masquerade bool
	// As are the addresses that the node uses towards pods, at most one per family: see First.
	As []netip.Addr
	// Blocks are the node's own subnets. Packets from other nodes are for them, never from them.
	Blocks []netip.Prefix
	// Direct are the destinations to which pods send from their own addresses.
	Direct []netip.Prefix
	// Resolver is where the node serves DNS to pods; invalid if it doesn't.
	Resolver netip.Addr
	// Cluster are the subnets of the pods of all nodes; empty if there are no others.
	Cluster []netip.Prefix
	// NodePorts are for other nodes and the Routers only; empty if there are none.
	NodePorts []NodePort
	Routers   []netip.Addr
	// Nodes are which they are; nil if that isn't known yet. Then packets to NodePorts are taken from
	// all but pods.
	Nodes *Nodes `json:",omitempty"`
	// Layout is the constant, so that a record of a table tells its rules.
	Layout int
}

// Layout is changed with each change of the table's rules that isn't a change of a Table.
const Layout = 2

// Names of the sysctls that routing for pods needs.
const (
	Forward4 = "net/ipv4/ip_forward"
	Forward6 = "net/ipv6/conf/all/forwarding"
)

// BaseConfig holds what Base depends on.
type BaseConfig struct {
	Instance pod.Instance
	Tag      uint32 // of the instance
	Mode     Mode
	Bridge   string // empty is the instance's own
	Owner    string // see Table
	// Subnets are those of this node's pods: in a cluster, its blocks.
	Subnets []netip.Prefix
	// Cluster are the subnets of the pods of all nodes, if there are others.
	Cluster   []netip.Prefix
	NodeLinks string // see Table
	// TunnelPort is the UDP port to which nodes send VXLAN packets; 0 if there are no other nodes.
	TunnelPort uint16
	// BGP means that the node exchanges routes with others, and with Routers.
	BGP     bool
	Routers []netip.Addr
	Nodes   *Nodes // see Table
	// Encrypted means that packets of other nodes' pods come only by the links to other nodes.
	Encrypted     bool
	Masquerade    bool
	NonMasquerade []netip.Prefix // destinations to which pods send from their own addresses
	Resolver      netip.Addr     // at which the node serves DNS to pods, see Resolvers; invalid if it doesn't
	// Leased are the subnets of pods' addresses, by the mode in which those were attached. They may
	// differ from the current configuration.
	Leased map[Mode][]netip.Prefix
}

// ForNode returns the node's part of the network.
//
// In mode ptp it has an unreachable route per subnet. Packets to an address without a pod end there
// instead of leaving by the uplink, and the route shows other programs that the subnet is taken.
// The same holds for the cluster's subnets, behind the routes to other nodes.
func ForNode(c BaseConfig) Base {
	b := Base{Table: Table{
		Name:       c.Instance.Table(),
		Owner:      c.Owner,
		LinkPrefix: c.Instance.HostLinkPrefix(),
		NodeLinks:  c.NodeLinks,
		Encrypted:  c.Encrypted,
		TunnelPort: c.TunnelPort,
		Bridge:     BridgeName(c.Instance, c.Bridge),
		Masquerade: c.Masquerade,
		As:         c.as(),
		Blocks:     disjoint(c.Subnets),
		Direct:     disjoint(c.Subnets, c.Cluster, c.Leased[PTP], c.Leased[Bridge], c.NonMasquerade),
		Resolver:   c.Resolver,
		Cluster:    disjoint(c.Cluster),
		Layout:     Layout,
	}}
	if c.TunnelPort != 0 {
		b.Table.NodePorts, b.Table.Routers, b.Table.Nodes = NodePorts(c.BGP), c.Routers, c.Nodes
	}
	for _, subnet := range slices.Concat(c.Cluster, c.Subnets) {
		name := Forward4
		if subnet.Addr().Is6() {
			name = Forward6
		}
		if !slices.Contains(b.Sysctls, name) {
			b.Sysctls = append(b.Sysctls, name)
		}
	}
	for _, subnet := range c.subnets(PTP) {
		b.Host.Routes = append(b.Host.Routes, Own.route(c.Tag, subnet))
		b.Host.Addresses = append(b.Host.Addresses, LoopbackAddress(subnet))
	}
	for _, subnet := range c.Cluster {
		b.Host.Routes = append(b.Host.Routes, Remainder.route(c.Tag, subnet))
	}
	six := false
	for _, subnet := range c.subnets(Bridge) {
		b.Link = &BridgeLink{BridgeName(c.Instance, c.Bridge), BridgeMAC(c.Instance)}
		b.Host.Addresses = append(b.Host.Addresses, Address{Link: b.Link.Name, Prefix: netip.PrefixFrom(First(subnet), subnet.Bits())})
		six = six || subnet.Addr().Is6()
	}
	if six {
		b.Host.Routes = append(b.Host.Routes, loopbackRoute(b.Link.Name))
	}
	if c.Resolver.IsValid() {
		b.Host.Addresses = append(b.Host.Addresses, ResolverAddress(c.Resolver))
	}
	return b
}

// subnets returns the subnets that pods use, or will use, in a mode.
func (c BaseConfig) subnets(mode Mode) []netip.Prefix {
	var out []netip.Prefix
	if c.Mode == mode {
		out = append(out, c.Subnets...)
	}
	for _, s := range c.Leased[mode] {
		if !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// as returns the addresses of Table.As: of current subnets if possible, and otherwise of those of
// running pods.
func (c BaseConfig) as() (out []netip.Addr) {
	for _, s := range slices.Concat(c.Subnets, c.Leased[c.Mode]) {
		if !slices.ContainsFunc(out, func(a netip.Addr) bool { return a.Is4() == s.Addr().Is4() }) {
			out = append(out, First(s))
		}
	}
	return out
}

// disjoint returns the prefixes that no other one contains, in the order of their addresses.
func disjoint(prefixes ...[]netip.Prefix) (out []netip.Prefix) {
	all := slices.Concat(prefixes...)
	slices.SortFunc(all, netip.Prefix.Compare)
	for _, p := range all {
		if len(out) == 0 || !out[len(out)-1].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// Rank orders the unreachable routes of an instance. It is part of their metric, and so is the
// instance's tag.
type Rank int

// The ranks. Routes to other nodes precede all of them, see backend.Tag.
const (
	// Own is the rank of routes of the node's own subnets, and of those that only running pods
	// still have.
	Own Rank = iota
	// Remainder is the rank of routes of the cluster's subnets, for what no node has.
	Remainder
)

// Metric returns the metric of the rank's routes of an instance with that tag.
func (r Rank) Metric(tag uint32) int { return int(tag) + int(r)<<16 }

// RankOf is the inverse of Metric. It returns false for the metric of a stranger's route.
func RankOf(tag uint32, metric int) (Rank, bool) {
	for r := Own; r <= Remainder; r++ {
		if r.Metric(tag) == metric {
			return r, true
		}
	}
	return 0, false
}

func (r Rank) route(tag uint32, subnet netip.Prefix) Route {
	return Route{Kind: Unreachable, Dst: subnet, Metric: r.Metric(tag)}
}

// LoopbackAddress returns the address that lo has for a subnet in mode ptp.
func LoopbackAddress(subnet netip.Prefix) Address {
	return Address{Link: "lo", Prefix: single(First(subnet)), LastResort: true}
}
