package network

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/datapath"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// Addresses of the other host by which it is no node.
const stranger4, stranger6 = "192.0.2.77", "2001:db8::77"

// known says that the lab's other host is a node.
func known(links ...string) plan.Nodes {
	n := plan.Nodes{Links: links}
	for _, b := range blocks1 {
		n.Self = append(n.Self, plan.First(b))
	}
	for _, a := range []string{node4, node6} {
		n.Self = append(n.Self, netip.MustParseAddr(a))
	}
	for _, a := range []string{other4, other6} {
		n.Others = append(n.Others, netip.MustParseAddr(a))
	}
	return n
}

// TestNodePorts sends packets to the ports by which nodes talk to each other, in each family: from
// a pod to its node, to another node and to others, by what a Service could lead there, in
// fragments and behind an extension header; and from hosts to the node. No pod gets such a port as
// its host port.
func TestNodePorts(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	cfg.BGP, cfg.Routers = true, []netip.Addr{netip.MustParseAddr(stranger4)}
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	must(t, n.SetNodes(known()))
	a := l.attach(n)
	for _, p := range plan.NodePorts(true) {
		if p.Port == 0 {
			continue
		}
		proto := map[uint8]pod.Protocol{unix.IPPROTO_TCP: pod.TCP, unix.IPPROTO_UDP: pod.UDP}[p.Protocol]
		if _, err := n.Attach(t.Context(), l.attachment(pod.PortMapping{Protocol: proto, HostPort: p.Port, Port: 80})); err == nil || !strings.Contains(err.Error(), "nodes talk to each other by it") {
			t.Errorf("a pod gets the host port %d/%s: %v", p.Port, proto, err)
		}
	}
	others := l.attachment(pod.PortMapping{Protocol: pod.TCP, HostPort: plan.VXLANPort, Port: 80}, pod.PortMapping{Protocol: pod.UDP, HostPort: plan.BGPPort, Port: 80})
	if _, err := n.Attach(t.Context(), others); err != nil {
		t.Errorf("a pod doesn't get the same ports of other protocols: %v", err)
	}
	must(t, n.Detach(t.Context(), others))
	l.ip(l.other, "addr add "+stranger4+"/24 dev eth0")
	l.ip(l.other, "addr add "+stranger6+"/64 dev eth0 nodad")
	l.ip(l.node, "addr add 192.0.2.3/24 dev up0") // another address of the node
	l.ip(l.node, "addr add 2001:db8::3/64 dev up0 nodad")
	const free = 7000
	services := map[string]string{}
	for i, s := range []stack{stacks[true], stacks[false]} {
		// What a Service or a host port does.
		service := []string{"10.96.0.%d", "fd96::%d"}[i]
		family := []string{"ip", "ip6"}[i]
		for j, to := range []string{s.node, s.other} {
			services[to] = fmt.Sprintf(service, j+1)
			destination := to
			if i == 1 {
				destination = "[" + to + "]"
			}
			l.run(l.node, "nft", fmt.Sprintf("add table inet services; add chain inet services pre { type nat hook prerouting priority dstnat - 10; }; add rule inet services pre %s daddr %s udp dport 53 dnat to %s:%d; add rule inet services pre %s daddr %s udp dport 54 dnat to %s:%d",
				family, services[to], destination, plan.VXLANPort, family, services[to], destination, free))
		}
	}
	ports := map[string][]uint16{"tcp": {free}, "udp": {free}}
	for _, p := range plan.NodePorts(true) {
		if name := map[uint8]string{unix.IPPROTO_TCP: "tcp", unix.IPPROTO_UDP: "udp"}[p.Protocol]; name != "" {
			ports[name] = append(ports[name], p.Port)
		}
	}
	for ns, addresses := range map[string][]string{
		l.node:  {node4, node6, "192.0.2.3", "2001:db8::3", plan.First(blocks1[0]).String(), plan.First(blocks1[1]).String()},
		l.other: {other4, other6, stranger4, stranger6},
		a.Netns: {a.addr(4).String(), a.addr(6).String()},
	} {
		for _, port := range ports["tcp"] {
			l.serve(ns, "tcp", "it", port)
		}
		for _, port := range ports["udp"] {
			for _, address := range addresses {
				l.listen(ns, netip.AddrPortFrom(netip.MustParseAddr(address), port))
			}
		}
	}
	for _, s := range []stack{stacks[true], stacks[false]} {
		stranger, second := stranger4, "192.0.2.3"
		if s.family == 6 {
			stranger, second = stranger6, "2001:db8::3"
		}
		for proto, list := range ports {
			for _, port := range list {
				network := proto + s.suffix
				for _, c := range []struct {
					what, ns, from, to string
					passes             bool
				}{
					{"a pod, to its node", a.Netns, "", s.node, port == free},
					{"a pod, to an address of its block that its node has", a.Netns, "", plan.First(blocks1[(s.family-4)/2]).String(), port == free},
					{"a pod, to another node", a.Netns, "", s.other, port == free},
					{"a pod, to another host", a.Netns, "", stranger, s.family == 6 || port != plan.BGPPort && port != plan.BFDPort},
					{"a node, to this node", l.other, s.other, s.node, true},
					{"this node, to another", l.node, "", s.other, true},
					{"this node, to its pod", l.node, "", a.addr(s.family).String(), true},
					{"a host, to this node", l.other, stranger, s.node, port == free || port == plan.WireGuardPort || port == plan.RotationPort || s.family == 4 && (port == plan.BGPPort || port == plan.BFDPort)},
					{"a node, to another address of this node", l.other, s.other, second, port == free || port == plan.WireGuardPort || port == plan.RotationPort},
				} {
					before := l.refused(n)
					got := l.answers(c.ns, network, c.from, c.to, port, c.passes)
					if got != c.passes {
						t.Errorf("%s port %d, %s %s: passes %v, want %v", network, port, c.what, c.to, got, c.passes)
					}
					if counted := l.refused(n) > before; counted == c.passes {
						t.Errorf("%s port %d, %s %s: counted %v", network, port, c.what, c.to, counted)
					}
				}
			}
		}
		for _, to := range []string{s.node, s.other} {
			if !l.answers(a.Netns, "udp"+s.suffix, "", services[to], 54, true) {
				t.Errorf("a Service of %s isn't reached", to)
			}
			for _, c := range []struct{ what, ns string }{{"a pod", a.Netns}, {"a node", l.other}} {
				if c.ns == l.other {
					if to == s.other {
						continue
					}
					flag := map[int]string{4: "", 6: "-6 "}[s.family]
					l.ip(l.other, flag+"route replace "+services[to]+" via "+s.node)
				}
				if l.answers(c.ns, "udp"+s.suffix, "", services[to], 53, false) {
					t.Errorf("%s reached the VXLAN port of %s by a Service", c.what, to)
				}
			}
			for what, send := range map[string]func(to string) bool{
				"in fragments":               func(to string) bool { return l.heardAt(n, a.Netns, to, make([]byte, 4000), false) },
				"behind an extension header": func(to string) bool { return l.heardAt(n, a.Netns, to, []byte("?"), true) },
			} {
				if s.family == 4 && strings.Contains(what, "extension") {
					continue
				}
				if !send(to) {
					t.Errorf("a datagram %s to %s wasn't refused", what, to)
				}
			}
			for _, protocol := range []int{unix.IPPROTO_IPIP, unix.IPPROTO_IPV6} {
				before := dropped(t, n, datapath.PodToNode)
				must(t, netns.Do(a.Netns, func() error {
					c, err := net.Dial(fmt.Sprintf("ip%s:%d", s.suffix, protocol), to)
					if err != nil {
						return err
					}
					defer c.Close()
					_, err = c.Write(make([]byte, 40))
					return err
				}))
				eventually(t, fmt.Sprintf("a packet of protocol %d to %s is refused", protocol, to), func() bool { return dropped(t, n, datapath.PodToNode) > before })
			}
		}
	}
}

// TestNoReplyPosesAsANode: a pod that is asked from a port of a node, which a masqueraded packet
// may have got, can't bring there by its answer what is taken from nodes.
func TestNoReplyPosesAsANode(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	cfg.BGP = true
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	must(t, n.SetNodes(known()))
	a := l.attach(n)
	const service = 7000
	for _, s := range []stack{stacks[true], stacks[false]} {
		addr := a.addr(s.family)
		l.listen(a.Netns, netip.AddrPortFrom(addr, service))
		flag := map[int]string{4: "", 6: "-6 "}[s.family]
		l.ip(l.other, flag+"route replace "+addr.String()+" via "+s.node)
		for port, passes := range map[uint16]bool{plan.VXLANPort: false, plan.ProbePort: false, plan.BFDPort: false, plan.WireGuardPort: true, service: true} {
			before := dropped(t, n, datapath.PodToNode)
			if got := l.answers(l.other, "udp", net.JoinHostPort(s.other, fmt.Sprint(port)), addr.String(), service, passes); got != passes {
				t.Errorf("IPv%d: a pod's answer to port %d of a node: passes %v, want %v", s.family, port, got, passes)
			}
			if counted := dropped(t, n, datapath.PodToNode) > before; counted == passes {
				t.Errorf("IPv%d: a pod's answer to port %d of a node: counted %v", s.family, port, counted)
			}
		}
	}
}

// refused returns how many packets to ports of nodes were refused.
func (l *lab) refused(n *Network) uint64 {
	t := l.t.(*testing.T)
	return dropped(t, n, datapath.PodToNode) + dropped(t, n, datapath.NoNode)
}

// listen runs a UDP server at one address until the end of the test, which answers from there.
func (l *lab) listen(ns string, at netip.AddrPort) {
	l.t.Helper()
	must(l.t, netns.Do(ns, func() error {
		c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err == nil {
			l.t.Cleanup(func() { _ = c.Close() })
			go serveUDP(c, "it")
		}
		return err
	}))
}

// answers reports whether a server answers, from an address if one is given, or from one and a UDP
// port. It waits longer for what is expected to.
func (l *lab) answers(ns, network, from, to string, port uint16, expected bool) bool {
	l.t.Helper()
	limit := brevity / 2
	if expected {
		limit = patience / 4
	}
	ctx, cancel := context.WithTimeout(l.t.Context(), limit)
	defer cancel()
	heard := false
	_ = netns.Do(ns, func() error {
		d := net.Dialer{}
		if at, err := netip.ParseAddrPort(from); err == nil {
			d.LocalAddr = net.UDPAddrFromAddrPort(at)
		} else if ip := net.ParseIP(from); ip != nil && strings.HasPrefix(network, "tcp") {
			d.LocalAddr = &net.TCPAddr{IP: ip}
		} else if ip != nil {
			d.LocalAddr = &net.UDPAddr{IP: ip}
		}
		c, err := d.DialContext(ctx, network, net.JoinHostPort(to, fmt.Sprint(port)))
		if err != nil {
			return err
		}
		defer c.Close()
		for !heard && ctx.Err() == nil {
			_, _ = c.Write([]byte("?"))
			_ = c.SetReadDeadline(time.Now().Add(brevity / 5))
			got, err := c.Read(make([]byte, 64))
			heard = err == nil && got > 0
		}
		return nil
	})
	return heard
}

// heardAt sends a datagram from a pod to the VXLAN port of a node, and reports whether it was
// refused.
func (l *lab) heardAt(n *Network, ns, to string, payload []byte, extension bool) bool {
	l.t.Helper()
	before := l.refused(n)
	must(l.t, netns.Do(ns, func() error {
		c, err := net.Dial("udp", net.JoinHostPort(to, fmt.Sprint(plan.VXLANPort)))
		if err != nil {
			return err
		}
		defer c.Close()
		if extension {
			raw, err := c.(*net.UDPConn).SyscallConn()
			if err != nil {
				return err
			}
			if err := raw.Control(func(fd uintptr) {
				err = unix.SetsockoptString(int(fd), unix.IPPROTO_IPV6, unix.IPV6_DSTOPTS, "\x00\x00\x01\x04\x00\x00\x00\x00")
			}); err != nil {
				return err
			}
			if err != nil {
				return err
			}
		}
		_, err = c.Write(payload)
		return err
	}))
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		if l.refused(n) > before {
			return true
		}
	}
	return false
}

// TestNodesAreRemembered: what the table knows of nodes outlives huskd, and the table.
func TestNodesAreRemembered(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	l.ip(l.other, "addr add "+stranger4+"/24 dev eth0")
	l.serve(l.node, "udp", "node", plan.ProbePort)
	check := func(what string, strangers bool) {
		t.Helper()
		if !l.answers(l.other, "udp4", other4, node4, plan.ProbePort, true) {
			t.Errorf("%s: a node isn't heard", what)
		}
		if got := l.answers(l.other, "udp4", stranger4, node4, plan.ProbePort, strangers); got != strangers {
			t.Errorf("%s: a stranger is heard: %v, want %v", what, got, strangers)
		}
	}
	n, err := Open(t.Context(), cfg)
	must(t, err)
	must(t, n.SetBlocks(t.Context(), blocks1))
	check("before the nodes are known", true)
	must(t, n.SetNodes(known()))
	check("once they are", false)
	must(t, n.Close())
	n = l.open(cfg)
	check("after a restart", false)
	l.run(l.node, "nft", "flush", "ruleset")
	must(t, n.remakeTable())
	check("after others have removed the table", false)
	other := known()
	other.Others = []netip.Addr{netip.MustParseAddr(stranger4)}
	must(t, n.SetNodes(other))
	if !l.answers(l.other, "udp4", stranger4, node4, plan.ProbePort, true) || l.answers(l.other, "udp4", other4, node4, plan.ProbePort, false) {
		t.Error("the nodes have changed, and the table has not")
	}
	l.run(l.node, "nft", "flush", "ruleset")
	must(t, n.SetNodes(known()))
	check("after a change while there is no table", false)
}

// TestPeersPodsComeByTheUnderlay: packets of other nodes' pods come by links between nodes only.
func TestPeersPodsComeByTheUnderlay(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	a := l.attach(n)
	for _, link := range []string{"all", "up0"} {
		l.write(l.node, "net/ipv4/conf/"+link+"/rp_filter", "0")
	}
	for _, c := range []struct {
		links   []string
		arrives bool
	}{{nil, true}, {[]string{"elsewhere"}, false}, {[]string{"elsewhere", "up0"}, true}, {[]string{"elsewhere"}, false}, {nil, true}} {
		must(t, n.SetNodes(known(c.links...)))
		for _, from := range []string{"10.88.9.5", "fd88:0:0:9::5"} {
			family, via := 4, node4
			if strings.Contains(from, ":") {
				family, via = 6, node6
			}
			before := dropped(t, n, datapath.Spoofed)
			to := a.addr(family).String()
			if got := l.posed(from, to, via, a.Netns, to); got != c.arrives {
				t.Errorf("with %v, from %s: arrives %v, want %v", c.links, from, got, c.arrives)
			}
			if counted := dropped(t, n, datapath.Spoofed) > before; counted == c.arrives {
				t.Errorf("with %v, from %s: counted %v", c.links, from, counted)
			}
		}
	}
	if !l.posed("203.0.113.5", a.addr(4).String(), node4, a.Netns, a.addr(4).String()) {
		t.Error("a packet of no pod doesn't arrive")
	}
}
