package datapath

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/plan"
)

// brportMode is the attribute for a bridge port's hairpin mode, see linux/if_link.h.
const brportMode = 4

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
