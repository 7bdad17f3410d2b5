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
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, unix.NLM_F_APPEND))
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:   uint8(FamilyOf(r.Dst.Addr())),
		Dst_len:  uint8(r.Dst.Bits()),
		Table:    unix.RT_TABLE_MAIN,
		Protocol: plan.Protocol,
		Type:     unix.RTN_UNICAST,
	}}
	switch {
	case r.Kind == plan.Local:
		msg.Type, msg.Table = unix.RTN_LOCAL, unix.RT_TABLE_LOCAL
	case r.Kind == plan.Unreachable:
		msg.Type = unix.RTN_UNREACHABLE
	case r.Via.IsValid():
		msg.Flags = unix.RTNH_F_ONLINK
	case r.Dst.Addr().Is4():
		msg.Scope = unix.RT_SCOPE_LINK
	}
	req.AddData(msg)
	if r.Dst.Bits() > 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_DST, r.Dst.Addr().AsSlice()))
	}
	if r.Via.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_GATEWAY, r.Via.AsSlice()))
	}
	if index != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(index))))
	}
	if r.Source.IsValid() {
		req.AddData(nl.NewRtAttr(unix.RTA_PREFSRC, r.Source.AsSlice()))
	}
	if r.Metric != 0 {
		req.AddData(nl.NewRtAttr(unix.RTA_PRIORITY, nl.Uint32Attr(uint32(r.Metric))))
	}
	return req
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
			for metric, value := range nlsock.Attributes(value) {
				if metric == unix.RTAX_MTU {
					p.MTU = int(nlsock.Uint32(value))
				}
			}
		}
	}
	return p
}

// DefaultProbes are addresses that only a default route leads to: 240.0.0.0/4 was never assigned,
// and 3ffe::/16 was returned.
var DefaultProbes = []netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("3ffe::1")}
