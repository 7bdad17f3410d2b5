package rtnetlink

import (
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Attributes from linux/neighbour.h.
const (
	ndtaName         = 1
	ndtaParms        = 6
	ndtpaIfindex     = 1
	ndtpaMcastProbes = 11
)

// NoDiscovery returns the request after which the kernel looks for no IPv6 neighbours on a link: it
// has the permanent ones only. Without it, whoever may send to the link fills the kernel's table of
// neighbours, of which there is one for all network namespaces.
func NoDiscovery(index int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_SETNEIGHTBL, unix.NLM_F_ACK)
	req.AddRawData([]byte{unix.AF_INET6, 0, 0, 0}) // struct ndtmsg
	name := nl.NewRtAttr(ndtaName, nl.ZeroTerminated("ndisc_cache"))
	parms := nl.NewRtAttr(ndtaParms|unix.NLA_F_NESTED, nil)
	parms.AddRtAttr(ndtpaIfindex, nl.Uint32Attr(uint32(index)))
	parms.AddRtAttr(ndtpaMcastProbes, nl.Uint32Attr(0))
	req.AddRawData(append(name.Serialize(), parms.Serialize()...))
	return req
}
