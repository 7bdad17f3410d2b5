package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/rtnetlink"
)

// defaultMTU is Ethernet's, for a node without an uplink.
const defaultMTU = 1500

// minMTU is the minimum of IPv6.
const minMTU = 1280

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
		for _, to := range rtnetlink.DefaultProbes {
			r := rtnetlink.PathTo(c, to)
			if r.Link == 0 {
				continue
			}
			a := c.Do(rtnetlink.GetLink("", r.Link))[0]
			if errors.Is(a.Err, unix.ENODEV) {
				continue // gone a moment ago
			}
			if a.Err != nil {
				return fmt.Errorf("uplink: %w", a.Err)
			}
			l, err := rtnetlink.ParseLink(a.Data)
			if err != nil {
				return fmt.Errorf("uplink: %w", err)
			}
			if r.MTU > 0 {
				l.MTU = min(l.MTU, r.MTU)
			}
			if u.MTU == 0 || l.MTU < u.MTU {
				u.MTU, u.Link = l.MTU, l.Name
			}
			if to.Is4() {
				u.Source = r.Source
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
