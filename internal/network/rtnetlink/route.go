package rtnetlink

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// FamilyOf returns the address family of a.
func FamilyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// flagsOf returns the flags for a verb. In a deletion, the flags of creation have other meanings.
func flagsOf(verb, creation int) int {
	switch verb {
	case unix.RTM_DELADDR, unix.RTM_DELNEIGH, unix.RTM_DELROUTE:
		return unix.NLM_F_ACK
	}
	return unix.NLM_F_ACK | unix.NLM_F_CREATE | creation
}

// Address returns a request about an address: RTM_NEWADDR or RTM_DELADDR. One that exists is not
// changed.
func Address(verb, index int, a plan.Address) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, unix.NLM_F_EXCL))
	msg := nl.NewIfAddrmsg(FamilyOf(a.Prefix.Addr()))
	msg.Index = uint32(index)
	msg.Prefixlen = uint8(a.Prefix.Bits())
	msg.Flags = unix.IFA_F_PERMANENT
	if a.Prefix.Addr().Is6() {
		msg.Flags |= unix.IFA_F_NODAD
	}
	if a.LastResort && a.Prefix.Addr().Is4() {
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFA_LOCAL, a.Prefix.Addr().AsSlice()))
	req.AddData(nl.NewRtAttr(unix.IFA_ADDRESS, a.Prefix.Addr().AsSlice()))
	if a.LastResort && a.Prefix.Addr().Is6() { // deprecated forever
		forever := ^uint32(0)
		info := make([]byte, 0, unix.SizeofIfaCacheinfo)
		for _, word := range []uint32{0, forever, 0, 0} { // preferred, valid
			info = binary.NativeEndian.AppendUint32(info, word)
		}
		req.AddData(nl.NewRtAttr(unix.IFA_CACHEINFO, info))
	}
	return req
}

// Neighbour returns a request about a permanent entry: RTM_NEWNEIGH or RTM_DELNEIGH. RTM_NEWNEIGH
// replaces an entry with the same address, such as one that ARP has made.
func Neighbour(verb, index int, n plan.Neighbour) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, unix.NLM_F_REPLACE))
	req.AddData(&netlink.Ndmsg{Family: uint8(FamilyOf(n.Addr)), Index: uint32(index), State: netlink.NUD_PERMANENT})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, n.Addr.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, n.MAC[:]))
	return req
}

// Route returns a request about a route: RTM_NEWROUTE or RTM_DELROUTE. One that exists is never
// overwritten: either it is the same, and the kernel answers EEXIST, or it is somebody else's.
// Routes are appended: with NLM_F_EXCL another link's route to ::1 would conflict.
func Route(verb, index int, r plan.Route) *nl.NetlinkRequest {
	return RouteBy(verb, unix.NLM_F_APPEND, r, Hop{Link: index, Via: r.Via})
}

// Hop is where a route sends packets. A route by several hops spreads flows over them.
type Hop struct {
	Link int        // index; 0 if the route has none
	Via  netip.Addr // onlink; invalid if the destination itself is
}

// RouteBy is Route with the flags of creation and the hops, instead of those of r. A deletion with
// an empty hop is of a route by any.
func RouteBy(verb, creation int, r plan.Route, hops ...Hop) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, creation))
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:   uint8(FamilyOf(r.Dst.Addr())),
		Dst_len:  uint8(r.Dst.Bits()),
		Table:    unix.RT_TABLE_MAIN,
		Protocol: plan.Protocol,
		Type:     unix.RTN_UNICAST,
	}}
	switch r.Kind {
	case plan.Local:
		msg.Type, msg.Table = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL
	case plan.Unreachable:
		msg.Type = unix.RTN_UNREACHABLE
	}
	switch {
	case verb == unix.RTM_DELROUTE:
		msg.Scope = unix.RT_SCOPE_NOWHERE // any
	case r.Kind != plan.Unicast, len(hops) > 1:
	case hops[0].Via.IsValid():
		msg.Flags = unix.RTNH_F_ONLINK
	case r.Dst.Addr().Is4():
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	if r.Dst.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Dst.Addr().AsSlice()))
	}
	if len(hops) > 1 {
		req.AddData(nl.NewRtAttr(unix.RTA_MULTIPATH, multipath(r.Dst.Addr(), hops)))
	} else {
		if hops[0].Via.IsValid() {
			typ, value := gateway(r.Dst.Addr(), hops[0].Via)
			req.AddData(nl.NewRtAttr(typ, value))
		}
		if hops[0].Link != 0 {
			req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(hops[0].Link))))
		}
	}
	if r.Source.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, r.Source.AsSlice()))
	}
	if r.Metric != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(r.Metric))))
	}
	if r.MTU != 0 {
		metrics := nl.NewRtAttr(unix.RTA_METRICS, nil)
		metrics.AddRtAttr(unix.RTAX_MTU, nl.Uint32Attr(uint32(r.MTU)))
		req.AddData(metrics)
	}
	return req
}

// gateway returns the attribute of a gateway, which may be of another family than the destination.
func gateway(dst, via netip.Addr) (typ int, value []byte) {
	if dst.Is4() == via.Is4() {
		return unix.RTA_GATEWAY, via.AsSlice()
	}
	return unix.RTA_VIA, append(binary.NativeEndian.AppendUint16(nil, uint16(FamilyOf(via))), via.AsSlice()...)
}

// multipath returns the value of RTA_MULTIPATH: a struct rtnexthop and a gateway for each hop.
func multipath(dst netip.Addr, hops []Hop) (out []byte) {
	for _, h := range hops {
		typ, via := gateway(dst, h.Via)
		attr := nl.NewRtAttr(typ, via).Serialize()
		out = binary.NativeEndian.AppendUint16(out, uint16(unix.SizeofRtNexthop+len(attr)))
		out = append(out, unix.RTNH_F_ONLINK, 0)
		out = binary.NativeEndian.AppendUint32(out, uint32(h.Link))
		out = append(out, attr...)
	}
	return out
}

// KernelRoute is a route as the kernel has it.
type KernelRoute struct {
	plan.Route // without Via, Link and Preferred; Kind is empty if it is none of plan's
	Protocol   int
	Table      int
	Hops       []Hop
}

// ParseRoute parses a message about a route, without the netlink header.
func ParseRoute(data []byte) (r KernelRoute, ok bool) {
	if len(data) < unix.SizeofRtMsg {
		return r, false
	}
	zero := netip.IPv4Unspecified()
	if data[0] == unix.AF_INET6 {
		zero = netip.IPv6Unspecified()
	}
	r.Protocol, r.Table = int(data[5]), int(data[4])
	switch data[7] {
	case unix.RTN_UNICAST:
		r.Kind = plan.Unicast
	case unix.RTN_LOCAL:
		r.Kind = plan.Local
	case unix.RTN_UNREACHABLE:
		r.Kind = plan.Unreachable
	}
	dst := zero
	var hop Hop
	for typ, value := range nlsock.Attributes(data[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(value)
		case unix.RTA_PREFSRC:
			r.Source, _ = netip.AddrFromSlice(value)
		case unix.RTA_PRIORITY:
			r.Metric = int(nlsock.Uint32(value))
		case unix.RTA_TABLE:
			r.Table = int(nlsock.Uint32(value))
		case unix.RTA_OIF:
			hop.Link = int(nlsock.Uint32(value))
		case unix.RTA_GATEWAY, unix.RTA_VIA:
			hop.Via = parseGateway(typ, value)
		case unix.RTA_METRICS:
			r.MTU = mtuOf(value)
		case unix.RTA_MULTIPATH:
			r.Hops = parseMultipath(value)
		}
	}
	if r.Hops == nil {
		r.Hops = []Hop{hop}
	}
	r.Dst = netip.PrefixFrom(dst, int(data[1]))
	return r, r.Dst.IsValid()
}

func parseGateway(typ uint16, value []byte) (via netip.Addr) {
	if typ == unix.RTA_VIA && len(value) > 2 {
		value = value[2:]
	}
	via, _ = netip.AddrFromSlice(value)
	return via
}

func parseMultipath(b []byte) (hops []Hop) {
	for len(b) >= unix.SizeofRtNexthop {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofRtNexthop || size > len(b) {
			return hops
		}
		h := Hop{Link: int(int32(binary.NativeEndian.Uint32(b[4:])))}
		for typ, value := range nlsock.Attributes(b[unix.SizeofRtNexthop:size]) {
			if typ == unix.RTA_GATEWAY || typ == unix.RTA_VIA {
				h.Via = parseGateway(typ, value)
			}
		}
		hops = append(hops, h)
		b = b[min(len(b), (size+3)&^3):]
	}
	return hops
}

func mtuOf(metrics []byte) int {
	for metric, value := range nlsock.Attributes(metrics) {
		if metric == unix.RTAX_MTU {
			return int(nlsock.Uint32(value))
		}
	}
	return 0
}

// Path is the kernel's answer about the route to an address.
type Path struct {
	Link   int // index; 0 if there is no route
	MTU    int // of the route itself; 0 if it has none
	Source netip.Addr
}

// PathTo asks for the route to an address.
func PathTo(c *nlsock.Conn, to netip.Addr) (p Path) {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(FamilyOf(to)), Dst_len: uint8(to.BitLen())}})
	req.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	a := c.Do(req)[0]
	if a.Err != nil || len(a.Data) < unix.SizeofRtMsg || a.Data[7] != unix.RTN_UNICAST {
		return Path{}
	}
	for typ, value := range nlsock.Attributes(a.Data[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_OIF:
			p.Link = int(nlsock.Uint32(value))
		case unix.RTA_PREFSRC:
			p.Source, _ = netip.AddrFromSlice(value)
		case unix.RTA_METRICS:
			p.MTU = mtuOf(value)
		}
	}
	return p
}

// DefaultProbes are addresses that only a default route leads to: 240.0.0.0/4 was never assigned,
// and 3ffe::/16 was returned.
var DefaultProbes = []netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("3ffe::1")}
