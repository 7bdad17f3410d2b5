package overlay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(applyIn); path != "" {
		applyForever(path)
	}
	goleak.VerifyTestMain(m)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const instance = pod.Instance("be0f")

// lab is a network of nodes.
type lab struct {
	t      testing.TB
	router string // path of the namespace
	nodes  []*node
}

// layout is how the nodes of a lab are connected.
type layout struct {
	nodes int
	// far puts a router between the nodes. Otherwise they are on one Ethernet.
	far bool
	// families of the nodes' addresses: "4", "6" or "46".
	families string
}

// node is a network namespace with an overlay, and a pod in another namespace.
type node struct {
	*Overlay
	t         testing.TB
	path, pod string // paths of the namespaces
	self      backend.Self
	private   peer.Key
	plan      backend.Plan
}

func (l layout) address(i int, six bool) netip.Prefix {
	switch {
	case six && l.far:
		return netip.MustParsePrefix(fmt.Sprintf("2001:db8:%d::1/64", i))
	case six:
		return netip.MustParsePrefix(fmt.Sprintf("2001:db8::%d/64", i))
	case l.far:
		return netip.MustParsePrefix(fmt.Sprintf("198.18.%d.1/24", i))
	default:
		return netip.MustParsePrefix(fmt.Sprintf("192.0.2.%d/24", i))
	}
}

// gateway returns the router's address on a node's link.
func (l layout) gateway(i int, six bool) netip.Prefix {
	a := l.address(i, six)
	bytes := a.Addr().AsSlice()
	bytes[len(bytes)-1] = 254
	addr, _ := netip.AddrFromSlice(bytes)
	return netip.PrefixFrom(addr, a.Bits())
}

func newLab(t testing.TB, l layout) *lab {
	t.Helper()
	out := &lab{t: t, router: namespace(t)}
	for _, sysctl := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		netnstest.Set(t, out.router, sysctl, "1")
	}
	if !l.far {
		out.ip(out.router, "link add br0 type bridge")
		out.ip(out.router, "link set br0 up")
	}
	for i := 1; i <= l.nodes; i++ {
		out.nodes = append(out.nodes, out.node(l, i))
	}
	return out
}

func namespace(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "net")
	netnstest.Make(t, path)
	return path
}

func (l *lab) ip(ns, args string) string {
	l.t.Helper()
	return netnstest.IP(l.t, ns, args)
}

// veth makes a veth in one namespace with its other end in another.
func veth(t testing.TB, here, name, there, other string) {
	t.Helper()
	f, err := os.Open(there)
	must(t, err)
	defer f.Close()
	must(t, netns.Do(here, func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: other, PeerNamespace: netlink.NsFd(f.Fd())})
	}))
	netnstest.IP(t, here, "link set "+name+" up")
	netnstest.IP(t, there, "link set "+other+" up")
}

// block returns the subnet of a node's pods.
func block(i int, six bool) netip.Prefix {
	if six {
		return netip.MustParsePrefix(fmt.Sprintf("fd68:0:0:%x::/64", i))
	}
	return netip.MustParsePrefix(fmt.Sprintf("10.201.%d.0/24", i))
}

// podAddress returns the address of a node's pod.
func podAddress(i int, six bool) netip.Addr {
	a := block(i, six).Addr().AsSlice()
	a[len(a)-1] = 5
	out, _ := netip.AddrFromSlice(a)
	return out
}

func (l *lab) node(at layout, i int) *node {
	l.t.Helper()
	n := &node{t: l.t, path: namespace(l.t), pod: namespace(l.t)}
	port := fmt.Sprint("node", i)
	veth(l.t, n.path, "eth0", l.router, port)
	if !at.far {
		l.ip(l.router, "link set "+port+" master br0")
	}
	for _, sysctl := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		netnstest.Set(l.t, n.path, sysctl, "1")
	}
	key, err := wgtypes.GeneratePrivateKey()
	must(l.t, err)
	n.private = peer.Key(key)
	name := fmt.Sprint("n", i)
	n.self = backend.Self{Instance: instance, Record: peer.Node{Version: 1, Name: name, VXLAN: backend.VXLANOf(name), IPIP: true,
		WireGuard: []peer.WireGuard{{Key: peer.Key(key.PublicKey()), Port: peer.WireGuardPort}}}}
	for _, six := range []bool{false, true} {
		if strings.Contains(at.families, map[bool]string{false: "4", true: "6"}[six]) {
			own, gateway := at.address(i, six), at.gateway(i, six)
			l.ip(n.path, fmt.Sprintf("addr add %v dev eth0%s", own, nodad(six)))
			if at.far {
				l.ip(l.router, fmt.Sprintf("addr add %v dev %s%s", gateway, port, nodad(six)))
			} else {
				netnstest.Try(l.router, "ip", "addr", "replace", gateway.String(), "dev", "br0", "nodad")
			}
			l.ip(n.path, fmt.Sprintf("route add default via %v dev eth0", gateway.Addr()))
			n.self.Record.Addresses = append(n.self.Record.Addresses, own.Addr())
		}
		n.self.Record.Blocks = append(n.self.Record.Blocks, block(i, six))
		lastResort := map[bool]string{false: " scope link", true: " nodad preferred_lft 0"}[six] // as datapath does
		l.ip(n.path, fmt.Sprintf("addr add %v dev lo%s", single(block(i, six).Addr().Next()), lastResort))
	}
	n.addPod(i)
	n.Overlay = n.open()
	n.SetKeys(n.private)
	n.self.Underlay, err = n.Underlay()
	must(l.t, err)
	return n
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

func nodad(six bool) string {
	if six {
		return " nodad"
	}
	return ""
}

// addPod connects a pod as datapath does.
func (n *node) addPod(i int) {
	n.t.Helper()
	host := instance.HostLinkPrefix() + "pod"
	veth(n.t, n.path, host, n.pod, "eth0")
	for _, six := range []bool{false, true} {
		a := podAddress(i, six)
		gateway := map[bool]string{false: "169.254.1.1", true: "fe80::1"}[six]
		mac := func(ns, link string) string {
			return strings.Fields(netnstest.IP(n.t, ns, "-br link show "+link))[2]
		}
		netnstest.IP(n.t, n.pod, fmt.Sprintf("addr add %v dev eth0%s", single(a), nodad(six)))
		netnstest.IP(n.t, n.pod, fmt.Sprintf("neigh replace %s lladdr %s dev eth0 nud permanent", gateway, mac(n.path, host)))
		netnstest.IP(n.t, n.pod, fmt.Sprintf("route add default via %s dev eth0 onlink", gateway))
		netnstest.IP(n.t, n.path, fmt.Sprintf("route add %v dev %s proto 104", single(a), host))
		netnstest.IP(n.t, n.path, fmt.Sprintf("neigh replace %v lladdr %s dev %s nud permanent", a, mac(n.pod, "eth0"), host))
	}
}

func (n *node) open() *Overlay {
	n.t.Helper()
	o, err := Open(Config{Netns: n.path, Instance: instance})
	must(n.t, err)
	n.t.Cleanup(func() { must(n.t, o.Close()) })
	return o
}

// reopen replaces the overlay by one that knows nothing, as after a restart.
func (n *node) reopen() {
	n.Overlay = n.open()
	n.SetKeys(n.private)
}

// peers returns the records of the other nodes.
func (l *lab) peers(of *node) (out []*peer.Node) {
	for _, n := range l.nodes {
		if n != of {
			record := n.self.Record
			out = append(out, &record)
		}
	}
	return out
}

// apply makes the plans of all nodes for a backend and applies them.
func (l *lab) apply(b backend.Backend) {
	l.t.Helper()
	for _, n := range l.nodes {
		n.self.Backend = b
		n.plan = backend.For(n.self, l.peers(n))
		_, err := n.Apply(n.plan)
		must(l.t, err)
		n.agrees()
	}
}

// agrees fails the test if the kernel differs from the plan.
func (n *node) agrees() {
	n.t.Helper()
	diffs, err := n.Verify(n.plan)
	must(n.t, err)
	if len(diffs) > 0 {
		n.t.Errorf("%s: %d differences: %v", n.self.Record.Name, len(diffs), diffs[:min(len(diffs), 5)])
	}
}

// reach sends a packet of the largest size between the pods of all pairs of nodes, and back.
func (l *lab) reach(families string) {
	l.t.Helper()
	for i, from := range l.nodes {
		for j, to := range l.nodes {
			for _, six := range []bool{false, true} {
				if i == j || !strings.Contains(families, map[bool]string{false: "4", true: "6"}[six]) {
					continue
				}
				if err := udp(from.pod, podAddress(i+1, six), to.pod, podAddress(j+1, six), from.plan.MTU); err != nil {
					l.t.Errorf("from the pod of %s to that of %s (IPv6 %v, %d bytes): %v", from.self.Record.Name, to.self.Record.Name, six, from.plan.MTU, err)
				}
			}
		}
	}
}

// listen opens a UDP socket in a namespace, whose packets may not be fragmented.
func listen(ns string, a netip.Addr) (c *net.UDPConn, err error) {
	err = netns.Do(ns, func() error {
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			return raw.Control(func(fd uintptr) {
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO)
				_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20) // for a busy machine
			})
		}}
		p, err := config.ListenPacket(context.Background(), "udp", netip.AddrPortFrom(a, 0).String())
		if err == nil {
			c = p.(*net.UDPConn)
		}
		return err
	})
	return c, err
}

// udp sends a packet of a size, which may not be fragmented, and waits for the same one to come
// back.
func udp(from string, source netip.Addr, to string, target netip.Addr, size int) error {
	server, err := listen(to, target)
	if err != nil {
		return err
	}
	defer server.Close()
	client, err := listen(from, source)
	if err != nil {
		return err
	}
	defer client.Close()
	headers := 28
	if source.Is6() {
		headers = 48
	}
	sent, got := bytes.Repeat([]byte("x"), size-headers), make([]byte, size)
	at := server.LocalAddr().(*net.UDPAddr).AddrPort()
	for range 20 { // the first packets may wait for ARP or a handshake, or make the MTU known
		if _, err = client.WriteToUDPAddrPort(sent, at); err != nil {
			time.Sleep(50 * time.Millisecond)
			continue
		}
		_ = server.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		n, back, e := server.ReadFromUDPAddrPort(got)
		if err = e; err != nil {
			continue
		}
		if back.Addr() != source || !bytes.Equal(got[:n], sent) {
			return fmt.Errorf("%d bytes of %v arrived", n, back)
		}
		if _, err = server.WriteToUDPAddrPort(got[:n], back); err != nil {
			continue
		}
		_ = client.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		if _, _, err = client.ReadFromUDPAddrPort(got); err == nil {
			return nil
		}
	}
	return err
}

// inventory returns everything that a node's namespace has, without link-local addresses and tunl0:
// the kernel adds these in its own time.
func (n *node) inventory() string {
	n.t.Helper()
	var out strings.Builder
	for _, args := range []string{"-o link show", "-o addr show", "route show table all", "-6 route show table all", "neigh show nud permanent", "-6 neigh show nud permanent"} {
		for line := range strings.Lines(netnstest.IP(n.t, n.path, args)) {
			if !strings.Contains(line, "fe80") && !strings.Contains(line, "tunl0") {
				out.WriteString(line)
			}
		}
	}
	return out.String()
}

// eventually waits until problem returns "".
func eventually(t testing.TB, problem func() string) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for p := problem(); p != ""; p = problem() {
		if time.Now().After(deadline) {
			t.Fatal(p)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// supports reports whether the kernel has a way. If it hasn't, ip(8) must agree.
func (n *node) supports(w backend.Way) bool {
	n.t.Helper()
	err := n.Supports(w)
	if err == nil {
		return true
	}
	out, ipErr := netnstest.Try(n.path, "ip", "link", "add", "probe", "type", kinds[w])
	if !errors.Is(err, unix.EOPNOTSUPP) || ipErr == nil || !strings.Contains(out, "Unknown device type") {
		n.t.Errorf("%s: %v, and ip says %q", w, err, out)
	}
	n.t.Logf("no %s here: %v", w, err)
	return false
}

// dropAll returns the removal of all peers of WireGuard.
func dropAll(p backend.Plan) (out []wgtypes.PeerConfig) {
	for _, one := range p.Peers {
		for _, t := range one.Tunnels {
			out = append(out, wgtypes.PeerConfig{PublicKey: wgtypes.Key(t.Key), Remove: true})
		}
	}
	return out
}
