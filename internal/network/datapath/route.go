package datapath

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Lookup is the kernel's answer for a packet: where it goes.
type Lookup struct {
	// Local means that the node itself takes the packet.
	Local bool
	Link  string // by which the packet leaves; empty if it doesn't
	Via   netip.Addr
	MTU   int // the route's own; 0 if it has none
	// Refusal says why the packet is dropped; empty if it isn't.
	Refusal string
}

// Lookup asks for the route of a packet. An empty link means that the node itself sends it, and an
// invalid from that the kernel chooses the address. For a packet that arrives by a link, the answer
// includes the filter of reverse paths.
func (d *Datapath) Lookup(from, to netip.Addr, link string) (out Lookup, err error) {
	var o netlink.RouteGetOptions
	if from.IsValid() {
		o.SrcAddr = net.IP(from.AsSlice())
	}
	if link != "" {
		l, err := d.handle.LinkByName(link)
		if err != nil {
			return Lookup{Refusal: "the link " + link + " is missing"}, nil //nolint:nilerr // that is the answer
		}
		o.IifIndex = l.Attrs().Index
	}
	routes, err := d.handle.RouteGetWithOptions(net.IP(to.AsSlice()), &o)
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EINVAL) && link != "":
		return Lookup{Refusal: "rp_filter: the route back to " + from.String() + " isn't by " + link}, nil
	case errors.Is(err, unix.EHOSTUNREACH), errors.Is(err, unix.ENETUNREACH), errors.Is(err, unix.EACCES):
		return Lookup{Refusal: err.Error()}, nil
	case err != nil:
		return Lookup{}, err
	case len(routes) == 0:
		return Lookup{Refusal: "no route"}, nil
	}
	r := routes[0]
	switch r.Type {
	case unix.RTN_LOCAL:
		return Lookup{Local: true}, nil
	case unix.RTN_UNICAST:
	default:
		return Lookup{Refusal: "the route is unreachable"}, nil
	}
	out.MTU, out.Via = r.MTU, address(r.Gw)
	if v, ok := r.Via.(*netlink.Via); ok {
		out.Via = address(v.Addr)
	}
	l, err := d.handle.LinkByIndex(r.LinkIndex)
	if err != nil {
		return Lookup{}, err
	}
	out.Link = l.Attrs().Name
	return out, nil
}

func address(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}
