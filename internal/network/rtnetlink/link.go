// Package rtnetlink encodes changes of links, addresses, neighbours and routes as requests to the
// kernel, and decodes its answers. The requests are sent with network/nlsock.
package rtnetlink

import (
	"encoding/binary"
	"fmt"
	"os"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// Attributes that golang.org/x/sys/unix lacks, see linux/if_link.h and linux/ip.h.
const (
	iflaInetConf         = 1
	iflaInet6AddrGenMode = 8
	addrGenModeNone      = 1
	devconfForwarding    = 1
	devconfRPFilter      = 8
	devconfRouteLocalnet = 26
	extMaskSkipStats     = 1 << 3
)

// Link is the kernel's data about a link.
type Link struct {
	Name   string
	Kind   string // "veth"; empty for hardware
	Index  int
	Peer   int // index of a veth's other end, in that one's namespace
	MTU    int
	Group  uint32
	Master int // index of the bridge that it is a port of
	MAC    plan.MAC
	Alias  string
	Up     bool
	// Settings of IPv4.
	Forwarding, RouteLocalnet bool
	RPFilter                  int
	// NoAutoAddress means that IPv6 adds no address by itself.
	NoAutoAddress bool
}

// ParseLink parses a message about a link, without the netlink header.
func ParseLink(data []byte) (Link, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return Link{}, fmt.Errorf("link of %d bytes", len(data))
	}
	l := Link{
		Index: int(int32(binary.NativeEndian.Uint32(data[4:]))),
		Up:    binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0,
	}
	for typ, value := range nlsock.Attributes(data[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.Name = unix.ByteSliceToString(value)
		case unix.IFLA_ADDRESS:
			copy(l.MAC[:], value)
		case unix.IFLA_LINK:
			l.Peer = int(nlsock.Uint32(value))
		case unix.IFLA_MTU:
			l.MTU = int(nlsock.Uint32(value))
		case unix.IFLA_MASTER:
			l.Master = int(nlsock.Uint32(value))
		case unix.IFLA_GROUP:
			l.Group = nlsock.Uint32(value)
		case unix.IFLA_IFALIAS:
			l.Alias = unix.ByteSliceToString(value)
		case unix.IFLA_LINKINFO:
			for typ, value := range nlsock.Attributes(value) {
				if typ == nl.IFLA_INFO_KIND {
					l.Kind = unix.ByteSliceToString(value)
				}
			}
		case unix.IFLA_AF_SPEC:
			l.parseFamilies(value)
		}
	}
	return l, nil
}

// parseFamilies reads the settings of IPv4 and IPv6.
func (l *Link) parseFamilies(spec []byte) {
	for family, settings := range nlsock.Attributes(spec) {
		for typ, value := range nlsock.Attributes(settings) {
			switch {
			case family == unix.AF_INET && typ == iflaInetConf:
				l.Forwarding = inetConf(value, devconfForwarding) != 0
				l.RouteLocalnet = inetConf(value, devconfRouteLocalnet) != 0
				l.RPFilter = int(inetConf(value, devconfRPFilter))
			case family == unix.AF_INET6 && typ == iflaInet6AddrGenMode && len(value) == 1:
				l.NoAutoAddress = value[0] == addrGenModeNone
			}
		}
	}
}

// inetConf returns a setting of IFLA_INET_CONF.
func inetConf(conf []byte, setting int) uint32 {
	if at := 4 * (setting - 1); len(conf) >= at+4 {
		return nlsock.Uint32(conf[at : at+4])
	}
	return 0
}

// GetLink returns the request for a link by name or, if that is empty, by index.
func GetLink(name string, index int) *nl.NetlinkRequest {
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

// LinkByName returns a link of the namespace of c.
func LinkByName(c *nlsock.Conn, name string) (Link, error) {
	a := c.Do(GetLink(name, 0))[0]
	if a.Err != nil {
		return Link{}, fmt.Errorf("link %s: %w", name, a.Err)
	}
	return ParseLink(a.Data)
}

// Links returns all links of the namespace of c.
func Links(c *nlsock.Conn) ([]Link, error) {
	links, err := nlsock.List(c, GetLink("", 0), func(data []byte) (Link, bool) {
		l, err := ParseLink(data)
		return l, err == nil
	})
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	return links, nil
}

// DeleteLinks returns the request that deletes the link of that name or, if it is empty, all links
// of a group. The answer comes when they are gone, after several RCU grace periods, most of which
// pass without a lock.
func DeleteLinks(name string, group uint32) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_DELLINK, unix.NLM_F_ACK)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	if name != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(name)))
	} else {
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(group)))
	}
	return req
}

// LinkChange is what SetLink changes of a link, identified by index or name. Zero values change
// nothing.
type LinkChange struct {
	Index         int
	Name          string
	Up, Down      bool
	Alias         string
	MTU           int
	Group         uint32
	Master        int  // the bridge whose port it becomes
	NoAutoAddress bool // no automatic IPv6 address, which takes a second
	// Settings of IPv4. The kernel checks forwarding on a packet's ingress link.
	Forwarding, RouteLocalnet bool
	// LooseRPFilter accepts packets from any address to which there is a route, by whichever link.
	LooseRPFilter bool
}

// SetLink returns the request for a change of a link.
func SetLink(c LinkChange) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(c.Index)
	if c.Up || c.Down {
		msg.Change = unix.IFF_UP
	}
	if c.Up {
		msg.Flags = unix.IFF_UP
	}
	req.AddData(msg)
	if c.Name != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(c.Name)))
	}
	if c.Alias != "" {
		req.AddData(nl.NewRtAttr(unix.IFLA_IFALIAS, []byte(c.Alias)))
	}
	if c.MTU != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(c.MTU))))
	}
	if c.Group != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_GROUP, nl.Uint32Attr(c.Group)))
	}
	if c.Master != 0 {
		req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(c.Master))))
	}
	spec := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	noAutoAddress := c.NoAutoAddress && KernelHasIPv6()
	if noAutoAddress {
		spec.AddRtAttr(unix.AF_INET6, nil).AddRtAttr(iflaInet6AddrGenMode, []byte{addrGenModeNone})
	}
	inet := c.Forwarding || c.RouteLocalnet || c.LooseRPFilter
	if inet {
		conf := spec.AddRtAttr(unix.AF_INET, nil).AddRtAttr(iflaInetConf, nil)
		if c.Forwarding {
			conf.AddRtAttr(devconfForwarding, nl.Uint32Attr(1))
		}
		if c.RouteLocalnet {
			conf.AddRtAttr(devconfRouteLocalnet, nl.Uint32Attr(1))
		}
		if c.LooseRPFilter {
			conf.AddRtAttr(devconfRPFilter, nl.Uint32Attr(2))
		}
	}
	if noAutoAddress || inet {
		req.AddData(spec)
	}
	return req
}

// KernelHasIPv6 reports whether the kernel accepts settings of IPv6.
var KernelHasIPv6 = sync.OnceValue(func() bool {
	_, err := os.Stat("/proc/sys/net/ipv6")
	return err == nil
})
