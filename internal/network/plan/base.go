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

// Table is what the rules of the instance's nftables table depend on.
type Table struct {
	Name string
	// Owner, if set, identifies the network more reliably than the instance's four digits. A table
	// of another owner isn't touched.
	Owner      string
	LinkPrefix string // prefix of the names of the host's ends
	Bridge     string
	Masquerade bool
	// As are the addresses that the node uses towards pods, at most one per family: see First.
	As []netip.Addr
}

// Names of the sysctls that routing for pods needs.
const (
	Forward4 = "net/ipv4/ip_forward"
	Forward6 = "net/ipv6/conf/all/forwarding"
)

// BaseConfig holds what Base depends on.
type BaseConfig struct {
	Instance   pod.Instance
	Tag        uint32 // of the instance
	Mode       Mode
	Bridge     string // empty is the instance's own
	Owner      string // see Table
	Subnets    []netip.Prefix
	Masquerade bool
	// Leased are the subnets of pods' addresses, by the mode in which those were attached, which
	// may differ from the current configuration.
	Leased map[Mode][]netip.Prefix
}

// ForNode returns the node's part of the network.
//
// In mode ptp it has an unreachable route per subnet. Packets to an address without a pod end there
// instead of leaving by the uplink, and the route shows other programs that the subnet is taken.
func ForNode(c BaseConfig) Base {
	b := Base{Table: Table{
		Name:       c.Instance.Table(),
		Owner:      c.Owner,
		LinkPrefix: c.Instance.HostLinkPrefix(),
		Bridge:     BridgeName(c.Instance, c.Bridge),
		Masquerade: c.Masquerade,
	}}
	for _, subnet := range c.Subnets {
		b.Table.As = append(b.Table.As, First(subnet))
		if subnet.Addr().Is4() {
			b.Sysctls = append(b.Sysctls, Forward4)
		} else {
			b.Sysctls = append(b.Sysctls, Forward6)
		}
	}
	for _, subnet := range c.subnets(PTP) {
		b.Host.Routes = append(b.Host.Routes, Route{Kind: Unreachable, Dst: subnet, Metric: int(c.Tag)})
		b.Host.Addresses = append(b.Host.Addresses, LoopbackAddress(subnet))
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

// LoopbackAddress returns the address that lo has for a subnet in mode ptp.
func LoopbackAddress(subnet netip.Prefix) Address {
	return Address{Link: "lo", Prefix: single(First(subnet)), LastResort: true}
}
