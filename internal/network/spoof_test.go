package network

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/ipv6"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/pod"
)

// TestNobodyOutsidePosesAsAPod sends packets by the uplink that have the source of a pod of this
// node, or of its subnet, to another pod, to a host port of it and to the node.
func TestNobodyOutsidePosesAsAPod(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		a, b := l.attach(n), l.attach(n, pod.PortMapping{Protocol: pod.UDP, HostPort: 7000, Port: 7000})
		for _, link := range []string{"all", "up0"} { // what it drops must be dropped by us
			l.write(l.node, "net/ipv4/conf/"+link+"/rp_filter", "0")
		}
		for _, s := range stacks {
			for _, c := range []struct {
				from, to, via, at string
				arrives           bool
			}{
				{a.addr(s.family).String(), b.addr(s.family).String(), s.node, b.Netns, false},
				{map[int]string{4: "10.88.0.77", 6: "fd88::77"}[s.family], b.addr(s.family).String(), s.node, b.Netns, false},
				{a.addr(s.family).String(), s.node, "", b.Netns, false},
				{map[int]string{4: "203.0.113.5", 6: "2001:db8:113::5"}[s.family], b.addr(s.family).String(), s.node, b.Netns, true},
			} {
				before := dropped(t, n, datapath.Spoofed)
				got := l.posed(c.from, c.to, c.via, c.at, b.addr(s.family).String())
				if got != c.arrives {
					t.Errorf("from %s outside to %s: arrives %v, want %v", c.from, c.to, got, c.arrives)
				}
				if counted := dropped(t, n, datapath.Spoofed) - before; (counted > 0) == c.arrives {
					t.Errorf("from %s outside to %s: %d packets counted", c.from, c.to, counted)
				}
			}
		}
		before := dropped(t, n, datapath.Spoofed)
		must(t, n.dp.Ensure(n.basePlan())) // as at the next start
		if now := dropped(t, n, datapath.Spoofed); now != before {
			t.Errorf("%d packets counted after the rules were made again, want %d", now, before)
		}
		l.serve(b.Netns, "tcp", "b", 7001)
		l.reaches("a", a.Netns, "tcp"+stacks[0].suffix, b.addr(stacks[0].family).String(), 7001, "b "+a.addr(stacks[0].family).String())
	})
}

func dropped(t *testing.T, n *Network, why datapath.Drop) uint64 {
	t.Helper()
	all, err := n.dp.Dropped()
	must(t, err)
	return all[why]
}

// posed sends datagrams to port 7000 from an address that the other host doesn't have, by a router
// if one is given, and reports whether one arrives at an address in a namespace.
func (l *lab) posed(from, to, via, at, listen string) bool {
	l.t.Helper()
	flag, bits, nodad := "", "/32", ""
	if strings.Contains(from, ":") {
		flag, bits, nodad = "-6 ", "/128", " nodad"
	}
	l.ip(l.other, flag+"addr add "+from+bits+" dev lo"+nodad)
	defer l.ip(l.other, flag+"addr del "+from+bits+" dev lo")
	if via != "" {
		l.ip(l.other, flag+"route replace "+to+bits+" via "+via)
	}
	return l.arrivesAt(at, listen, from, to)
}

// TestLinkLocalSources sends packets from pods' link-local addresses to the node: only messages of
// neighbour and multicast listener discovery arrive. A policy by addresses doesn't see them.
func TestLinkLocalSources(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		if stacks[len(stacks)-1].family != 6 {
			return
		}
		n := l.open(cfg)
		a := l.attach(n)
		const own = "fe80::77" // of the node, on the link of the pods
		targets := []string{"ff02::1"}
		if cfg.Mode == "bridge" {
			targets = append(targets, own)
			l.ip(l.node, "-6 addr add "+own+"/64 dev "+cfg.Instance.Bridge()+" nodad")
		}
		for _, to := range targets {
			if l.hears(a.Netns, to) {
				t.Errorf("a datagram from a pod's link-local address to %s of the node arrived", to)
			}
		}
		// The same by a rule that lets them pass, so that the test can fail.
		l.run(l.node, "nft", "insert", "rule", "inet", cfg.Instance.Table(), "discovery", "accept")
		for _, to := range targets {
			eventually(t, "a datagram to "+to+" arrives without the rule", func() bool { return l.hears(a.Netns, to) })
		}
		l.run(l.node, "nft", "delete", "table", "inet", cfg.Instance.Table())
		must(t, n.remakeTable())
		if cfg.Mode != "bridge" {
			return // the node is the pod's only neighbour, and permanent
		}
		// Neighbour discovery by the kernel: the pod asks for the node's address, and the node answers.
		l.ip(a.Netns, "-6 neigh flush all")
		eventually(t, "the pod finds its node", func() bool {
			_ = netns.Do(a.Netns, func() error {
				c, err := net.Dial("udp", "["+own+"%eth0]:9")
				if err == nil {
					_, _ = c.Write(nil)
					_ = c.Close()
				}
				return nil
			})
			return strings.Contains(l.ip(a.Netns, "-6 neigh show "+own), "lladdr")
		})
	})
}

// hears sends datagrams from a pod's link-local address, and reports whether the node gets one.
func (l *lab) hears(ns, to string) (heard bool) {
	l.t.Helper()
	var in *net.UDPConn
	must(l.t, netns.Do(l.node, func() error {
		c, err := net.ListenPacket("udp6", ":0")
		if err == nil {
			in = c.(*net.UDPConn)
		}
		return err
	}))
	defer in.Close()
	port := in.LocalAddr().(*net.UDPAddr).Port
	must(l.t, ipv6.NewPacketConn(in).SetControlMessage(ipv6.FlagSrc, true))
	must(l.t, netns.Do(ns, func() error {
		out, err := net.Dial("udp6", fmt.Sprintf("[%s%%eth0]:%d", to, port))
		if err != nil {
			return err
		}
		defer out.Close()
		if from, _ := netip.ParseAddrPort(out.LocalAddr().String()); !from.Addr().IsLinkLocalUnicast() {
			l.t.Fatalf("the pod sends from %v", from)
		}
		for end := time.Now().Add(brevity); !heard && time.Now().Before(end); {
			_, _ = out.Write([]byte("?"))
			_ = in.SetReadDeadline(time.Now().Add(brevity / 4))
			_, _, err := in.ReadFrom(make([]byte, 8))
			heard = err == nil
		}
		return nil
	}))
	return heard
}
