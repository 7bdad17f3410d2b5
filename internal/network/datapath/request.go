package datapath

import (
	"encoding/binary"
	"net/netip"
	"os"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
)

// Attributes that golang.org/x/sys/unix lacks, see linux/if_link.h and linux/ip.h.
const (
	iflaInetConf         = 1
	iflaInet6AddrGenMode = 8
	addrGenModeNone      = 1
	devconfForwarding    = 1
	devconfRouteLocalnet = 26
	extMaskSkipStats     = 1 << 3
	brportMode           = 4 // hairpin
)

// newVeth returns the request for a veth whose peer is created with its final name in the namespace
// of the open file netns. One queue per direction is what the kernel would use anyway, of the one
// per CPU that it would create.
func newVeth(p plan.Veth, bridge, netns int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	end := func(add func(int, []byte), name string, mac plan.MAC) {
		add(unix.IFLA_IFNAME, nl.ZeroTerminated(name))
		add(unix.IFLA_ADDRESS, mac[:])
		add(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.MTU)))
		add(unix.IFLA_NUM_TX_QUEUES, nl.Uint32Attr(1))
		add(unix.IFLA_NUM_RX_QUEUES, nl.Uint32Attr(1))
	}
	end(func(t int, data []byte) { req.AddData(nl.NewRtAttr(t, data)) }, p.Host, p.HostMAC)
	if bridge != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(bridge))))
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, []byte("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	end(func(t int, data []byte) { peer.AddRtAttr(t, data) }, p.Pod, p.PodMAC)
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(netns)))
	req.AddData(info)
	return req
}

// linkChange is what setLink changes of a link, identified by index or name.
type linkChange struct {
	index         int
	name          string
	up, down      bool
	alias         string
	group         uint32
	master        int  // the bridge whose port it becomes
	noAutoAddress bool // no automatic IPv6 address, which takes a second
	// Settings of IPv4. The kernel checks forwarding on a packet's ingress link.
	forwarding, routeLocalnet bool
}

func setLink(c linkChange) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(c.index)
	if c.up || c.down {
		msg.Change = unix.IFF_UP
	}
	if c.up {
		msg.Flags = unix.IFF_UP
	}
	req.AddData(msg)
	if c.name != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(c.name)))
	}
	if c.alias != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(c.alias)))
	}
	if c.group != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(c.group)))
	}
	if c.master != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(c.master))))
	}
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	noAutoAddress := c.noAutoAddress && kernelHasIPv6()
	if noAutoAddress {
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(iflaInet6AddrGenMode, []byte{addrGenModeNone})
	}
	if c.forwarding {
		conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
		conf.AddRtAttr(devconfForwarding, nl.Uint32Attr(1))
		if c.routeLocalnet {
			conf.AddRtAttr(devconfRouteLocalnet, nl.Uint32Attr(1))
		}
	}
	if noAutoAddress || c.forwarding {
		req.AddData(spec)
	}
	return req
}

// kernelHasIPv6 reports whether the kernel accepts settings of IPv6.
var kernelHasIPv6 = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
})

// hairpin returns the request that lets a bridge send frames back by the port they came from.
func hairpin(port int, on bool) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_BRIDGE)
	msg.Index = int32(port)
	req.AddData(msg)
	info := nl.NewRtAttr(unix.IFLA_PROTINFO|unix.NLA_F_NESTED, nil)
	mode := []byte{0}
	if on {
		mode[0] = 1
	}
	info.AddRtAttr(brportMode, mode)
	req.AddData(info)
	return req
}

// getLink returns the request for a link by name or, if that is empty, by index.
func getLink(name string, index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_EXT_MASK, nl.Uint32Attr(extMaskSkipStats)))
	if name != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	}
	return req
}

// delLinks returns the request that deletes the link of that name or, if it is empty, all links of
// a group. The answer comes when they are gone, after several RCU grace periods, most of which pass
// without a lock.
func delLinks(name string, group uint32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	if name != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	} else {
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	}
	return req
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// flagsOf returns the flags for a verb. Only neighbours are created with NLM_F_REPLACE. Anything
// else that exists is never overwritten: either it is the same, and the kernel answers EEXIST, or
// it isn't ours. In a deletion, the flags of creation have other meanings.
func flagsOf(verb, creation int) int {
	switch verb {
	case unix.RTM_DELADDR, unix.RTM_DELNEIGH, unix.RTM_DELROUTE:
		return unix.NLM_F_ACK
	}
	return unix.NLM_F_ACK | unix.NLM_F_CREATE | creation
}

// address returns a request about an address: RTM_NEWADDR or RTM_DELADDR.
func address(verb, index int, a plan.Address) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, unix.NLM_F_EXCL))
	msg := nl.NewIfAddrmsg(familyOf(a.Prefix.Addr()))
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

// neighbour returns a request about an entry: RTM_NEWNEIGH or RTM_DELNEIGH.
func neighbour(verb, index int, n plan.Neighbour) *nl.NetlinkRequest {
	// An entry that ARP has made in the meantime is replaced: it has the same content.
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, unix.NLM_F_REPLACE))
	req.AddData(&netlink.Ndmsg{Family: uint8(familyOf(n.Addr)), Index: uint32(index), State: netlink.NUD_PERMANENT})
	req.AddData(nl.NewRtAttr(netlink.NDA_DST, n.Addr.AsSlice()))
	req.AddData(nl.NewRtAttr(netlink.NDA_LLADDR, n.MAC[:]))
	return req
}

// route returns a request about a route: RTM_NEWROUTE or RTM_DELROUTE. Routes are appended: with
// NLM_F_EXCL another link's route to ::1 would conflict.
func route(verb, index int, r plan.Route) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(verb, flagsOf(verb, unix.NLM_F_APPEND))
	msg := &nl.RtMsg{RtMsg: unix.RtMsg{
		Family:   uint8(familyOf(r.Dst.Addr())),
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
