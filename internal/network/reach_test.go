package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// worlds are the combinations of modes and families that everything must work in.
var worlds = []struct {
	name    string
	mode    plan.Mode
	subnets []netip.Prefix
}{
	{"ptp dual", plan.PTP, []netip.Prefix{subnet4, subnet6}},
	{"ptp v4", plan.PTP, []netip.Prefix{subnet4}},
	{"ptp v6", plan.PTP, []netip.Prefix{subnet6}},
	{"bridge dual", plan.Bridge, []netip.Prefix{subnet4, subnet6}},
	{"bridge v4", plan.Bridge, []netip.Prefix{subnet4}},
	{"bridge v6", plan.Bridge, []netip.Prefix{subnet6}},
}

// stack is what tests need to know about a family.
type stack struct {
	family                int
	suffix                string // suffix of Go's network names
	node, other, loopback string
	first                 string // the node's address for connections from its loopback
}

var stacks = map[bool]stack{
	true:  {4, "4", node4, other4, "127.0.0.1", "10.88.0.1"},
	false: {6, "6", node6, other6, "::1", "fd88::1"},
}

func inEachWorld(t *testing.T, test func(t *testing.T, l *lab, cfg Config, stacks []stack)) {
	for _, w := range worlds {
		t.Run(w.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			cfg := l.config()
			cfg.Mode, cfg.Subnets = w.mode, w.subnets
			var has []stack
			for _, s := range w.subnets {
				has = append(has, stacks[s.Addr().Is4()])
			}
			test(t, l, cfg, has)
		})
	}
}

func TestReachability(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		a, b := l.attach(n), l.attach(n)
		for _, proto := range []string{"tcp", "udp"} {
			l.serve(l.node, proto, "node", 7000)
			l.serve(l.other, proto, "other", 7000)
			l.serve(a.Netns, proto, "a", 7000)
			l.serve(b.Netns, proto, "b", 7000)
			for _, s := range stacks {
				network := proto + s.suffix
				addrA, addrB := a.addr(s.family).String(), b.addr(s.family).String()
				l.reaches("a", a.Netns, network, s.loopback, 7000, "a "+s.loopback)
				l.reaches("a", a.Netns, network, addrA, 7000, "a "+addrA)
				l.reaches("a", a.Netns, network, addrB, 7000, "b "+addrA)
				l.reaches("b", b.Netns, network, addrA, 7000, "a "+addrB)
				// A server on all addresses answers datagrams from the bridge's address.
				node := s.node
				if cfg.Mode == plan.Bridge {
					node = plan.First(a.Addresses[slices.IndexFunc(a.Addresses, func(p netip.Prefix) bool { return p.Addr().String() == addrA })]).String()
				}
				l.reaches("a", a.Netns, network, node, 7000, "node "+addrA)
				l.reaches("a", a.Netns, "tcp"+s.suffix, s.node, 7000, "node "+addrA)
				l.reaches("a", a.Netns, network, s.other, 7000, "other "+s.node)
				got, err := l.ask(l.node, network, addrA, 7000)
				if from, ok := strings.CutPrefix(got, "a "); err != nil || !ok || l.notOfNode(from) {
					t.Errorf("from the node to a, %s: %q, %v", network, got, err)
				}
			}
		}
	})
}

// notOfNode reports whether an address isn't one of the node's.
func (l *lab) notOfNode(addr string) bool {
	return !strings.Contains(l.ip(l.node, "-o addr"), " "+addr+"/")
}

func TestNoNeighbourDiscovery(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	a, b := l.attach(n), l.attach(n)
	l.serve(l.node, "tcp", "node", 7000)
	l.serve(b.Netns, "tcp", "b", 7000)
	l.reaches("a", a.Netns, "tcp4", "10.88.0.1", 7000, "node "+a.addr(4).String())
	l.reaches("a", a.Netns, "tcp6", "fd88::1", 7000, "node "+a.addr(6).String())
	l.reaches("a", a.Netns, "tcp6", b.addr(6).String(), 7000, "b "+a.addr(6).String())
	for _, ns := range []string{a.Netns, b.Netns, l.node} {
		for _, line := range strings.Split(l.ip(ns, "neigh"), "\n") {
			if line != "" && !strings.Contains(line, "PERMANENT") && !strings.Contains(line, "dev up0") {
				t.Errorf("learned: %s", line)
			}
		}
	}
	if got := l.ip(a.Netns, "-6 addr show dev eth0"); strings.Contains(got, "tentative") || strings.Count(got, "inet6") != 2 {
		t.Errorf("addresses of a pod: %s", got)
	}
}

func TestMasqueradeOff(t *testing.T) {
	inEachWorld(t, func(_ *testing.T, l *lab, cfg Config, stacks []stack) {
		cfg.Masquerade = false
		n := l.open(cfg)
		a := l.attach(n)
		l.ip(l.other, "route add 10.88.0.0/24 via "+node4)
		l.ip(l.other, "-6 route add fd88::/64 via "+node6)
		l.serve(l.other, "tcp", "other", 7000)
		l.serve(a.Netns, "tcp", "a", 7000)
		for _, s := range stacks {
			l.reaches("a", a.Netns, "tcp"+s.suffix, s.other, 7000, "other "+a.addr(s.family).String())
			l.reaches("other", l.other, "tcp"+s.suffix, a.addr(s.family).String(), 7000, "a "+s.other)
		}
	})
}

func TestHostPorts(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		// br_netfilter would translate the replies to ::1 before the IPv6 layer sees them, which
		// drops packets with ::1 on the wire.
		l.write(l.node, "net/bridge/bridge-nf-call-ip6tables", "0")
		n := l.open(cfg)
		var ports []pod.PortMapping
		for _, p := range []pod.Protocol{pod.TCP, pod.UDP, pod.SCTP} {
			ports = append(ports, pod.PortMapping{Protocol: p, HostPort: 8080, Port: 80})
		}
		a, b := l.attach(n, ports...), l.attach(n)
		for _, proto := range []string{"tcp", "udp"} {
			l.serve(a.Netns, proto, "a", 80)
			for _, s := range stacks {
				network := proto + s.suffix
				l.reaches("other", l.other, network, s.node, 8080, "a "+s.other)
				l.reaches("node", l.node, network, s.node, 8080, "a "+s.node)
				l.reaches("node", l.node, network, s.loopback, 8080, "a "+s.first)
				// Across a bridge the reply would not be translated back.
				from := b.addr(s.family).String()
				if cfg.Mode == plan.Bridge {
					from = s.first
				}
				l.reaches("b", b.Netns, network, s.node, 8080, "a "+from)
				l.reaches("a, itself", a.Netns, network, s.node, 8080, "a "+s.first)
			}
		}
		table := l.run(l.node, "nft", "list", "table", "inet", cfg.Instance.Table())
		for _, s := range stacks {
			if want := fmt.Sprintf("sctp . 8080 : %v . 80", a.addr(s.family)); !strings.Contains(table, want) {
				t.Errorf("no %s in\n%s", want, table)
			}
		}
		must(t, n.Detach(t.Context(), a.Attachment))
		for _, s := range stacks {
			l.fails("other", l.other, "tcp"+s.suffix, s.node, 8080)
			l.fails("node", l.node, "tcp"+s.suffix, s.loopback, 8080)
		}
	})
}

func TestHostPortsOnSingleAddresses(t *testing.T) {
	l := newLab(t)
	for _, extra := range []string{"192.0.2.3/24", "2001:db8::3/64"} {
		l.ip(l.node, "addr add "+extra+" dev up0 "+map[bool]string{true: "nodad"}[strings.Contains(extra, ":")])
	}
	n := l.open(l.config())
	at := func(hostIP string) pod.PortMapping {
		p := pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}
		if hostIP != "" {
			p.HostIP = netip.MustParseAddr(hostIP)
		}
		return p
	}
	pods := map[string]guest{}
	for _, hostIP := range []string{node4, "192.0.2.3", "127.0.0.1", node6, "2001:db8::3", "::1"} {
		g := l.attach(n, at(hostIP))
		l.serve(g.Netns, "tcp", hostIP, 80)
		pods[hostIP] = g
	}
	for _, c := range []struct{ suffix, to, from, node string }{
		{"4", node4, other4, node4}, {"4", "192.0.2.3", other4, node4}, {"6", node6, other6, node6}, {"6", "2001:db8::3", other6, "2001:db8::3"},
	} {
		l.reaches("other", l.other, "tcp"+c.suffix, c.to, 8080, c.to+" "+c.from)
		l.reaches("node", l.node, "tcp"+c.suffix, c.to, 8080, c.to+" "+c.node)
	}
	l.reaches("node", l.node, "tcp4", "127.0.0.1", 8080, "127.0.0.1 10.88.0.1")
	l.reaches("node", l.node, "tcp6", "::1", 8080, "::1 fd88::1")
	l.fails("node", l.node, "tcp4", "127.0.0.2", 8080)

	for _, hostIP := range []string{"", "0.0.0.0", "::", node4, "::1"} {
		_, err := n.Attach(t.Context(), l.attachment(at(hostIP)))
		if err == nil || !strings.Contains(err.Error(), "host port 8080/tcp is in use on this node: pod default/pod") {
			t.Errorf("a second pod at %q: %v", hostIP, err)
		}
	}
	// An address of another host isn't affected.
	remote := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 7000, Port: 80, HostIP: netip.MustParseAddr(other4)})
	l.serve(remote.Netns, "tcp", "remote", 80)
	l.serve(l.other, "tcp", "other", 7000)
	l.reaches("pod", pods[node4].Netns, "tcp4", other4, 7000, "other "+node4)

	// All IPv4 addresses; the port is free on IPv6.
	four := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8081, Port: 80, HostIP: netip.IPv4Unspecified()})
	six := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8081, Port: 80, HostIP: netip.IPv6Unspecified()})
	l.serve(four.Netns, "tcp", "four", 80)
	l.serve(six.Netns, "tcp", "six", 80)
	l.reaches("other", l.other, "tcp4", "192.0.2.3", 8081, "four "+other4)
	l.reaches("other", l.other, "tcp6", node6, 8081, "six "+other6)
	l.reaches("node", l.node, "tcp4", "127.0.0.1", 8081, "four 10.88.0.1")
	l.reaches("node", l.node, "tcp6", "::1", 8081, "six fd88::1")
}

func TestHostPortWithoutUplink(t *testing.T) {
	l := newLab(t)
	l.ip(l.node, "link del up0")
	n := l.open(l.config())
	a := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	l.serve(a.Netns, "tcp", "a", 80)
	if a.MTU != 1500 {
		t.Errorf("MTU %d", a.MTU)
	}
	for _, s := range stacks {
		l.reaches("node", l.node, "tcp"+s.suffix, s.loopback, 8080, "a "+s.first)
		l.reaches("node", l.node, "tcp"+s.suffix, a.addr(s.family).String(), 80, "a "+s.first)
	}
	must(t, n.Status())
}

func TestHostPortInUseByProcess(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	listen := func(network, at string) {
		must(t, netns.Do(l.node, func() error {
			if strings.HasPrefix(network, "udp") {
				c, err := net.ListenPacket(network, at)
				t.Cleanup(func() { _ = c.Close() })
				return err
			}
			s, err := net.Listen(network, at)
			t.Cleanup(func() { _ = s.Close() })
			return err
		}))
	}
	listen("tcp4", "127.0.0.1:9001")
	listen("tcp6", "[::]:9002")
	listen("udp4", "0.0.0.0:9003")
	listen("udp6", "[::1]:9004")
	listen("tcp4", node4+":9005")
	for _, c := range []struct {
		proto   pod.Protocol
		port    uint16
		hostIP  string
		taken   bool
		process string
	}{
		{pod.TCP, 9001, "", true, "127.0.0.1:9001"},
		{pod.TCP, 9001, node4, false, ""},
		{pod.TCP, 9002, "", true, "[::]:9002"},
		{pod.UDP, 9002, "", false, ""},
		{pod.UDP, 9003, "127.0.0.1", true, "0.0.0.0:9003"},
		{pod.UDP, 9003, "::", false, ""},
		{pod.UDP, 9004, "", true, "[::1]:9004"},
		{pod.UDP, 9004, "0.0.0.0", false, ""},
		{pod.TCP, 9005, "", true, node4 + ":9005"},
		{pod.TCP, 9005, "127.0.0.1", false, ""},
	} {
		p := pod.PortMapping{Protocol: c.proto, HostPort: c.port, Port: 80}
		if c.hostIP != "" {
			p.HostIP = netip.MustParseAddr(c.hostIP)
		}
		a := l.attachment(p)
		_, err := n.Attach(t.Context(), a)
		want := fmt.Sprintf("host port %d/%s is in use on this node: a process listens on %s", c.port, c.proto, c.process)
		if (err != nil) != c.taken || c.taken && !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", p, err)
		}
		must(t, n.Detach(t.Context(), a))
	}
	if u := n.Usage(); u.Attached != 0 {
		t.Errorf("usage: %+v", u)
	}
}

// TestConnectionsDoNotTakeHostPorts checks that a client connection with the port as its local port
// doesn't count as a listener.
func TestConnectionsDoNotTakeHostPorts(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	l.serve(l.other, "udp4", "other", 7000)
	s := l.idle(l.other, 7000)
	must(t, netns.Do(l.node, func() error {
		for _, network := range []string{"tcp4", "udp4"} {
			local := map[string]net.Addr{"tcp4": &net.TCPAddr{Port: 40000}, "udp4": &net.UDPAddr{Port: 40000}}[network]
			d := net.Dialer{LocalAddr: local, Timeout: patience}
			c, err := d.Dial(network, other4+":7000")
			if err != nil {
				return err
			}
			t.Cleanup(func() { _ = c.Close() })
		}
		return nil
	}))
	_ = s
	l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 40000, Port: 80}, pod.PortMapping{Protocol: pod.UDP, HostPort: 40000, Port: 80})
}

// idle accepts connections and keeps them open.
func (l *lab) idle(ns string, port int) net.Listener {
	l.t.Helper()
	var s net.Listener
	must(l.t, netns.Do(ns, func() (err error) {
		s, err = net.Listen("tcp", fmt.Sprint(":", port))
		return err
	}))
	l.t.Cleanup(func() { _ = s.Close() })
	go func() {
		for {
			c, err := s.Accept()
			if err != nil {
				return
			}
			l.t.Cleanup(func() { _ = c.Close() })
		}
	}()
	return s
}

func TestFullSizePackets(t *testing.T) {
	for _, mode := range []plan.Mode{plan.PTP, plan.Bridge} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			const mtu = 1430
			l.ip(l.node, fmt.Sprint("link set up0 mtu ", mtu))
			l.ip(l.other, fmt.Sprint("link set eth0 mtu ", mtu))
			cfg := l.config()
			cfg.Mode = mode
			n := l.open(cfg)
			a, b := l.attach(n), l.attach(n)
			if a.MTU != mtu {
				t.Fatalf("MTU %d, the uplink's is %d", a.MTU, mtu)
			}
			if got := l.ip(a.Netns, "link show dev eth0"); !strings.Contains(got, fmt.Sprint("mtu ", mtu)) {
				t.Errorf("link: %s", got)
			}
			l.serve(l.other, "udp", "other", 7000)
			l.serve(b.Netns, "udp", "b", 7000)
			for _, c := range []struct {
				network, to string
				header      int
			}{
				{"udp4", other4, 28}, {"udp6", other6, 48}, {"udp4", b.addr(4).String(), 28}, {"udp6", b.addr(6).String(), 48},
			} {
				if err := sendWhole(t.Context(), a.Netns, c.network, c.to, mtu-c.header); err != nil {
					t.Errorf("%s to %s: %v", c.network, c.to, err)
				}
				if err := sendWhole(t.Context(), a.Netns, c.network, c.to, mtu-c.header+1); !errors.Is(err, unix.EMSGSIZE) {
					t.Errorf("%s to %s, a byte too long: %v", c.network, c.to, err)
				}
			}
			l.ip(l.node, "link set up0 mtu 1300")
			if c := l.attach(n); c.MTU != 1300 {
				t.Errorf("after the uplink's MTU changed to 1300: %d", c.MTU)
			}
			l.ip(l.node, "route change default via "+other4+" mtu 1290")
			if c := l.attach(n); c.MTU != 1290 {
				t.Errorf("with a route of MTU 1290: %d", c.MTU)
			}
		})
	}
}

// sendWhole sends a datagram of size bytes that must not be fragmented, and waits for an answer.
func sendWhole(ctx context.Context, ns, network, to string, size int) error {
	return netns.Do(ns, func() error {
		d := net.Dialer{Control: func(network, _ string, c syscall.RawConn) error {
			level, option, value := unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
			if network == "udp6" {
				level, option, value = unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO
			}
			var err error
			return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, value) }), err)
		}}
		c, err := d.DialContext(ctx, network, net.JoinHostPort(to, "7000"))
		if err != nil {
			return err
		}
		defer c.Close()
		buf := make([]byte, size)
		for range 20 {
			if _, err = c.Write(buf); err != nil {
				return err
			}
			_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			if _, err = c.Read(make([]byte, 100)); !errors.Is(err, os.ErrDeadlineExceeded) {
				return err
			}
		}
		return err
	})
}

// TestStaleUDPFlows checks that conntrack entries of old UDP flows are deleted. A client that keeps
// sending from one port keeps its entry alive, which bypasses a new pod, or leads to one that is
// gone.
func TestStaleUDPFlows(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	port := pod.PortMapping{Protocol: pod.UDP, HostPort: 5353, Port: 53}
	for _, s := range stacks {
		var c net.Conn
		must(t, netns.Do(l.other, func() (err error) {
			c, err = net.Dial("udp"+s.suffix, net.JoinHostPort(s.node, "5353"))
			return err
		}))
		defer c.Close()
		ask := func() string {
			buf := make([]byte, 100)
			_, _ = c.Write([]byte("?"))
			_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
			n, _ := c.Read(buf)
			return string(buf[:n])
		}
		for range 3 {
			if got := ask(); got != "" {
				t.Fatalf("an answer without a server: %q", got)
			}
		}
		for _, name := range []string{"first", "second"} {
			g := l.attach(n, port)
			l.serve(g.Netns, "udp", name, 53)
			eventually(t, name+" pod answers", func() bool { return ask() == name+" "+s.other })
			must(t, n.Detach(t.Context(), g.Attachment))
		}
	}
}

func TestPodsSendFromTheirOwnAddresses(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		a, b := l.attach(n), l.attach(n)
		l.serve(l.other, "udp", "other", 7000)
		l.serve(l.node, "udp", "node", 7000)
		for _, s := range stacks {
			spoofed := map[int]string{4: "10.88.0.77/32", 6: "fd88::77/128 nodad"}[s.family]
			l.ip(a.Netns, "addr add "+spoofed+" dev eth0")
			l.ip(l.node, "route add "+strings.Fields(spoofed)[0]+" dev "+a.HostLink) // even if there is a route back
			source := netip.MustParsePrefix(strings.Fields(spoofed)[0]).Addr()
			for _, to := range []string{s.other, s.node} {
				heard := false
				must(t, netns.Do(a.Netns, func() error {
					c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(to), 7000)))
					if err != nil {
						return err
					}
					defer c.Close()
					_, _ = c.Write([]byte("?"))
					_ = c.SetReadDeadline(time.Now().Add(brevity))
					_, err = c.Read(make([]byte, 10))
					heard = err == nil
					return nil
				}))
				if heard {
					t.Errorf("%v as source to %s was let through", source, to)
				}
			}
			l.reaches("b", b.Netns, "udp"+s.suffix, s.other, 7000, "other "+s.node)
		}
	})
}

// TestLoopbackOfTheNodeStaysClosed checks that pods can't reach what listens on the node's
// loopback, although route_localnet, which 127.0.0.1:hostPort needs, would allow it.
func TestLoopbackOfTheNodeStaysClosed(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = cfg.Subnets[:1]
	n := l.open(cfg)
	a := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	must(t, netns.Do(l.node, func() error {
		s, err := net.Listen("tcp4", "127.0.0.5:7000")
		if err == nil {
			t.Cleanup(func() { _ = s.Close() })
			go func() {
				for {
					c, err := s.Accept()
					if err != nil {
						return
					}
					_, _ = c.Write([]byte("secret"))
					_ = c.Close()
				}
			}()
		}
		return err
	}))
	l.write(a.Netns, "net/ipv4/conf/eth0/route_localnet", "1")
	l.ip(a.Netns, "addr flush dev lo")
	l.ip(a.Netns, "route add 127.0.0.0/8 via 169.254.1.1 dev eth0 onlink")
	l.fails("a", a.Netns, "tcp4", "127.0.0.5", 7000)
	if got := l.read(l.node, "net/ipv4/conf/all/route_localnet"); got != "0" {
		t.Errorf("route_localnet of all links is %s", got)
	}
	// Without the rule it would be open, so the test can fail.
	l.run(l.node, "nft", "flush", "chain", "inet", cfg.Instance.Table(), "guard")
	l.reaches("a", a.Netns, "tcp4", "127.0.0.5", 7000, "secret")
	if b := l.attach(n); l.read(l.node, "net/ipv4/conf/"+b.HostLink+"/route_localnet") != "0" {
		t.Error("route_localnet is on for a pod without hostPorts")
	}
}
