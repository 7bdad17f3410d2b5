package network

import (
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/ipv6"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
)

// advertise sends a router advertisement from a namespace's eth0, as a router with the default
// route and the prefix 2001:db8:bad::/64.
func (l *lab) advertise(ns string) {
	l.t.Helper()
	l.ip(ns, "addr replace fe80::bad/64 dev eth0 nodad")
	message := []byte{
		134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0,
		3, 4, 64, 0xc0, 0, 1, 0x51, 0x80, 0, 0, 0x38, 0x40, 0, 0, 0, 0,
		0x20, 0x01, 0x0d, 0xb8, 0x0b, 0xad, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
	}
	must(l.t, netns.Do(ns, func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		c, err := net.ListenPacket("ip6:ipv6-icmp", "fe80::bad%eth0")
		if err != nil {
			return err
		}
		defer c.Close()
		p := ipv6.NewPacketConn(c)
		if err := p.SetMulticastHopLimit(255); err != nil {
			return err
		}
		_, err = p.WriteTo(message, &ipv6.ControlMessage{IfIndex: link.Index}, &net.IPAddr{IP: net.ParseIP("ff02::1"), Zone: "eth0"})
		return err
	}))
}

// TestPodsAreNoRouters checks that neither the node nor other pods take a route or an address from
// a pod's router advertisements (CVE-2020-10749).
func TestPodsAreNoRouters(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, _ []stack) {
		for _, path := range []string{"default", "all"} {
			l.write(l.node, "net/ipv6/conf/"+path+"/accept_ra", "2") // even if the node listens to its router
		}
		if _, err := os.Stat("/proc/sys/net/bridge"); err == nil {
			// As where br_netfilter isn't loaded: frames between the ports of a bridge see no rules.
			l.write(l.node, "net/bridge/bridge-nf-call-ip6tables", "0")
		}
		n := l.open(cfg)
		a, b := l.attach(n), l.attach(n)
		for range 3 {
			l.advertise(a.Netns)
		}
		if cfg.Mode == plan.Bridge {
			for _, name := range []string{"ipv4/conf/all", "ipv4/conf/eth0", "ipv6/conf/eth0"} {
				if got := l.read(b.Netns, "net/"+name+"/accept_redirects"); got != "0" {
					t.Errorf("%s/accept_redirects is %s in a pod on a bridge", name, got)
				}
			}
		}
		for name, ns := range map[string]string{"the node": l.node, "another pod": b.Netns} {
			routes, addresses := l.ip(ns, "-6 route"), l.ip(ns, "-6 addr")
			if strings.Contains(routes, "proto ra") || strings.Contains(routes, "fe80::bad") || strings.Contains(addresses, "2001:db8:bad") {
				t.Errorf("%s listened:\n%s\n%s", name, routes, addresses)
			}
		}
	})
}
