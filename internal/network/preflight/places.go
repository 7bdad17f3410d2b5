package preflight

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/service/placement"
)

// Places returns the addresses of the node, its networks and its gateways. Most are those of the
// routes of all tables: the kernel's table local also has addresses that are not a link's. It lacks
// IPv6 addresses of links without a carrier.
func Places() (out []placement.Place, err error) {
	links, err := nlsock.Complete(netlink.LinkList)
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	addresses, err := nlsock.Complete(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	for _, a := range addresses {
		addr := nlsock.Prefix(a.IPNet).Addr()
		out = append(out, placement.Place{Kind: placement.Local, Prefix: netip.PrefixFrom(addr, addr.BitLen()), Of: "on " + names[a.LinkIndex]})
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := nlsock.Complete(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for i := range routes {
			out = append(out, placesOf(&routes[i], names[routes[i].LinkIndex])...)
		}
	}
	return out, nil
}

func placesOf(r *netlink.Route, link string) (out []placement.Place) {
	on, of := "", ""
	if link != "" {
		on, of = "on "+link, "of "+link
	}
	prefix := nlsock.Prefix(r.Dst)
	switch r.Type {
	case unix.RTN_LOCAL:
		return []placement.Place{{Kind: placement.Local, Prefix: prefix, Of: on}}
	case unix.RTN_BROADCAST, unix.RTN_ANYCAST, unix.RTN_MULTICAST:
		return []placement.Place{{Kind: placement.Broadcast, Prefix: prefix, Of: of}}
	}
	gateways := []netlink.NexthopInfo{{Gw: r.Gw, Via: r.Via}}
	for _, hop := range r.MultiPath {
		gateways = append(gateways, *hop)
	}
	for _, hop := range gateways {
		ip := hop.Gw
		if via, ok := hop.Via.(*netlink.Via); ok && via != nil {
			ip = via.Addr
		}
		if a, ok := netip.AddrFromSlice(ip); ok {
			a = a.Unmap()
			out = append(out, placement.Place{Kind: placement.Gateway, Prefix: netip.PrefixFrom(a, a.BitLen()), Of: of})
		}
	}
	if prefix.IsValid() && prefix.Bits() >= shortest4 && (prefix.Addr().Is4() || prefix.Bits() >= shortest6) {
		out = append(out, placement.Place{Kind: placement.Network, Prefix: prefix, Of: of})
	}
	return out
}
