package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
)

// defaultMTU is Ethernet's, for a node without an uplink.
const defaultMTU = 1500

// minMTU is the minimum of IPv6.
const minMTU = 1280

// uplinkProbes are addresses that only a default route leads to: 240.0.0.0/4 was never assigned,
// and 3ffe::/16 was returned.
var uplinkProbes = []netip.Addr{netip.MustParseAddr("240.0.0.1"), netip.MustParseAddr("3ffe::1")}

// Uplink is how the node reaches other networks.
type Uplink struct {
	Link string // empty if there is none
	// MTU is the smallest of those of the links and default routes of both families; 1500 without
	// an uplink.
	MTU    int
	Source netip.Addr // the IPv4 source address by default
}

// Uplink returns the uplink by the default routes. It costs two to four requests, which the kernel
// answers without taking a contended lock.
func (d *Datapath) Uplink() (u Uplink, err error) {
	err = d.withConn(func(c *nlsock.Conn) error {
		for _, to := range uplinkProbes {
			r := routeTo(c, to)
			if r.link == 0 {
				continue
			}
			a := c.Do(getLink("", r.link))[0]
			if errors.Is(a.Err, unix.ENODEV) {
				continue // gone a moment ago
			}
			if a.Err != nil {
				return fmt.Errorf("uplink: %w", a.Err)
			}
			l, err := parseLink(a.Data)
			if err != nil {
				return fmt.Errorf("uplink: %w", err)
			}
			if r.mtu > 0 {
				l.mtu = min(l.mtu, r.mtu)
			}
			if u.MTU == 0 || l.mtu < u.MTU {
				u.MTU, u.Link = l.mtu, l.name
			}
			if to.Is4() {
				u.Source = r.source
			}
		}
		return nil
	})
	if u.MTU == 0 {
		u.MTU = defaultMTU
	}
	u.MTU = max(u.MTU, minMTU)
	return u, err
}

// answeredRoute is the kernel's answer about the route to an address.
type answeredRoute struct {
	link   int // 0 if there is no route
	mtu    int // of the route itself
	source netip.Addr
}

func routeTo(c *nlsock.Conn, to netip.Addr) (r answeredRoute) {
	req := nl.NewNetlinkRequest(unix.RTM_GETROUTE, 0)
	req.AddData(&nl.RtMsg{RtMsg: unix.RtMsg{Family: uint8(familyOf(to)), Dst_len: uint8(to.BitLen())}})
	req.AddData(nl.NewRtAttr(unix.RTA_DST, to.AsSlice()))
	a := c.Do(req)[0]
	if a.Err != nil || len(a.Data) < unix.SizeofRtMsg || a.Data[7] != unix.RTN_UNICAST {
		return answeredRoute{}
	}
	for typ, value := range nlsock.Attributes(a.Data[unix.SizeofRtMsg:]) {
		switch typ {
		case unix.RTA_OIF:
			r.link = int(nlsock.Uint32(value))
		case unix.RTA_PREFSRC:
			r.source, _ = netip.AddrFromSlice(value)
		case unix.RTA_METRICS:
			for metric, value := range nlsock.Attributes(value) {
				if metric == unix.RTAX_MTU {
					r.mtu = int(nlsock.Uint32(value))
				}
			}
		}
	}
	return r
}

// IPv6 reports whether pods on this node can have IPv6, and if not, why.
func (d *Datapath) IPv6() (ok bool, why string) {
	_ = d.InNode(func() error {
		for _, conf := range []string{"all", "default"} {
			name := "net/ipv6/conf/" + conf + "/disable_ipv6"
			switch value, err := ReadSysctl(name); {
			case errors.Is(err, os.ErrNotExist):
				why = "the kernel has no IPv6"
				return nil
			case err != nil:
				why = err.Error()
				return nil
			case value != "0":
				why = fmt.Sprintf("%s is %s", dotted(name), value)
				return nil
			}
		}
		return nil
	})
	return why == "", why
}
