package datapath

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// linkInfo is the kernel's data about a link.
type linkInfo struct {
	name  string
	index int
	peer  int // index of a veth's other end, in that one's namespace
	mtu   int
	group uint32
	port  int // index of the bridge that it is a port of
	mac   plan.MAC
	up    bool
	// Settings of IPv4.
	forwarding, routeLocalnet bool
}

func parseLink(data []byte) (linkInfo, error) {
	if len(data) < unix.SizeofIfInfomsg {
		return linkInfo{}, fmt.Errorf("link of %d bytes", len(data))
	}
	l := linkInfo{
		index: int(int32(binary.NativeEndian.Uint32(data[4:]))),
		up:    binary.NativeEndian.Uint32(data[8:])&unix.IFF_UP != 0,
	}
	for typ, value := range nlsock.Attributes(data[unix.SizeofIfInfomsg:]) {
		switch typ {
		case unix.IFLA_IFNAME:
			l.name = unix.ByteSliceToString(value)
		case unix.IFLA_ADDRESS:
			copy(l.mac[:], value)
		case unix.IFLA_LINK:
			l.peer = int(nlsock.Uint32(value))
		case unix.IFLA_MTU:
			l.mtu = int(nlsock.Uint32(value))
		case unix.IFLA_MASTER:
			l.port = int(nlsock.Uint32(value))
		case unix.IFLA_GROUP:
			l.group = nlsock.Uint32(value)
		case unix.IFLA_AF_SPEC:
			l.forwarding = inetConf(value, devconfForwarding)
			l.routeLocalnet = inetConf(value, devconfRouteLocalnet)
		}
	}
	return l, nil
}

// inetConf reports whether a setting in a link's IFLA_AF_SPEC is on.
func inetConf(spec []byte, setting int) bool {
	for family, inet := range nlsock.Attributes(spec) {
		if family != unix.AF_INET {
			continue
		}
		for typ, conf := range nlsock.Attributes(inet) {
			if at := 4 * (setting - 1); typ == iflaInetConf && len(conf) >= at+4 {
				return nlsock.Uint32(conf[at:at+4]) != 0
			}
		}
	}
	return false
}

// linkByName returns a link of the namespace of c.
func linkByName(c *nlsock.Conn, name string) (linkInfo, error) {
	a := c.Do(getLink(name, 0))[0]
	if a.Err != nil {
		return linkInfo{}, fmt.Errorf("link %s: %w", name, a.Err)
	}
	return parseLink(a.Data)
}
