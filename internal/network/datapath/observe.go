package datapath

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// observed is the state of a network namespace, in the plan's types.
type observed struct {
	links      map[string]rtnetlink.Link
	addresses  map[plan.Address]bool
	local      map[netip.Addr]bool     // addresses of all links
	neighbours map[plan.Neighbour]bool // only permanent ones
	routes     map[plan.Route]bool     // only those of plan.Protocol
}

// observe reads the state of the handle's namespace, limited to the links that want accepts.
func observe(c *nlsock.Conn, h *netlink.Handle, want func(link string) bool) (*observed, error) {
	o := &observed{map[string]rtnetlink.Link{}, map[plan.Address]bool{}, map[netip.Addr]bool{}, map[plan.Neighbour]bool{}, map[plan.Route]bool{}}
	links, err := rtnetlink.Links(c)
	if err != nil {
		return nil, err
	}
	names := map[int]string{}
	for _, l := range links {
		if want(l.Name) {
			o.links[l.Name], names[l.Index] = l, l.Name
		}
	}
	addresses, err := nlsock.Complete(func() ([]netlink.Addr, error) { return h.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		prefix := nlsock.Prefix(a.IPNet)
		o.local[prefix.Addr()] = true
		if name, ok := names[a.LinkIndex]; ok {
			o.addresses[plan.Address{Link: name, Prefix: prefix}] = true
		}
	}
	neighbours, err := nlsock.Complete(func() ([]netlink.Neigh, error) { return h.NeighList(0, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	for _, n := range neighbours {
		name, ok := names[n.LinkIndex]
		addr, valid := netip.AddrFromSlice(n.IP)
		if ok && valid && n.State&netlink.NUD_PERMANENT != 0 && len(n.HardwareAddr) == 6 {
			o.neighbours[plan.Neighbour{Link: name, Addr: addr, MAC: plan.MAC(n.HardwareAddr)}] = true
		}
	}
	routes, err := listRoutes(h)
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if name, ok := names[r.LinkIndex]; ok || r.Type == unix.RTN_UNREACHABLE {
			o.routes[toPlan(r, name)] = true
		}
	}
	return o, nil
}

func listRoutes(h *netlink.Handle) ([]netlink.Route, error) {
	var out []netlink.Route
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := nlsock.Complete(func() ([]netlink.Route, error) {
			filter := &netlink.Route{Protocol: plan.Protocol} // of any table
			return h.RouteListFiltered(family, filter, netlink.RT_FILTER_PROTOCOL|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		out = append(out, routes...)
	}
	return out, nil
}

// toPlan returns a route of plan.Protocol in the plan's type.
func toPlan(r netlink.Route, link string) plan.Route {
	p := plan.Route{Kind: plan.Unicast, Dst: nlsock.Prefix(r.Dst), Link: link, Metric: r.Priority}
	switch r.Type {
	case unix.RTN_LOCAL:
		p.Kind = plan.Local
	case unix.RTN_UNREACHABLE: // IPv6 shows lo
		p.Kind, p.Link = plan.Unreachable, ""
	}
	if !p.Dst.IsValid() {
		zero := netip.IPv4Unspecified()
		if r.Family == unix.AF_INET6 {
			zero = netip.IPv6Unspecified()
		}
		p.Dst = netip.PrefixFrom(zero, 0)
	}
	p.Via, _ = netip.AddrFromSlice(r.Gw)
	p.Source, _ = netip.AddrFromSlice(r.Src)
	p.Preferred = p.Source.IsValid() && p.Metric == 0
	const defaultMetric6 = 1024
	if p.Dst.Addr().Is6() && p.Metric == defaultMetric6 {
		p.Metric = 0
	}
	return p
}

// observeNode returns the instance's objects on the node.
func (d *Datapath) observeNode() (node *observed, elements map[plan.Element]bool, err error) {
	err = d.withConn(func(c *nlsock.Conn) error {
		node, err = observe(c, d.handle, func(link string) bool {
			return link == d.bridge || strings.HasPrefix(link, d.instance.HostLinkPrefix()) || strings.HasPrefix(link, plan.IFBPrefix(d.instance))
		})
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	if l, ok := node.links[d.bridge]; ok && l.MAC != plan.BridgeMAC(d.instance) {
		delete(node.links, d.bridge) // not ours
	}
	all, err := d.table.list()
	if err != nil {
		return nil, nil, err
	}
	elements = map[plan.Element]bool{}
	for _, e := range all {
		elements[e] = true
	}
	return node, elements, nil
}
