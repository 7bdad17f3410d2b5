package servicetable

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/compile"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) {
	if path := os.Getenv(ownerVariable); path != "" {
		if err := own(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const instance = pod.Instance("be0f")

var addr = netip.MustParseAddr

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// lab is a node with local pods 10.88.0.1 and .2, and a namespace of what is elsewhere: the pod
// 10.99.0.1 of another node and the client 192.0.2.7. The node has 10.88.0.254 and 192.168.0.1.
type lab struct {
	t        testing.TB
	dir      string
	node     string
	where    map[netip.Addr]string
	compiler *compile.Compiler
	table    *Table
}

const router = "169.254.1.1"

func newLab(t testing.TB) *lab {
	t.Helper()
	hosttest.Root(t)
	l := &lab{t: t, dir: t.TempDir(), where: map[netip.Addr]string{}, compiler: compile.New()}
	l.node = l.namespace("node")
	netnstest.Set(t, l.node, "net/ipv4/ip_forward", "1")
	netnstest.Set(t, l.node, "net/ipv6/conf/all/forwarding", "1")
	netnstest.Set(t, l.node, "net/ipv4/conf/all/rp_filter", "0")
	l.connect("pod1", "hkbe0fpod1", "10.88.0.1", "fd88::1")
	l.connect("pod2", "hkbe0fpod2", "10.88.0.2", "fd88::2")
	l.connect("far", "up0", "10.99.0.1", "fd99::1", "192.0.2.7", "2001:db8::7")
	for _, line := range []string{
		"addr add 10.88.0.254/32 dev lo", "addr add fd88::ff/128 dev lo", "addr add 192.168.0.1/32 dev up0", "addr add fd00::1/128 dev up0 nodad",
		"route add default dev up0 src 192.168.0.1", "-6 route add default dev up0 src fd00::1",
	} {
		netnstest.IP(t, l.node, line)
	}
	l.where[addr("192.168.0.1")], l.where[addr("fd00::1")] = l.node, l.node
	l.open()
	return l
}

func (l *lab) open() {
	l.t.Helper()
	table, err := Open(l.node, instance, []netip.Addr{addr("10.88.0.254"), addr("fd88::ff")})
	must(l.t, err)
	l.table = table
	l.t.Cleanup(func() { _ = table.Close() })
}

func (l *lab) namespace(name string) string {
	path := filepath.Join(l.dir, name)
	netnstest.Make(l.t, path)
	return path
}

func (l *lab) connect(name, link string, addresses ...string) {
	l.t.Helper()
	ns := l.namespace(name)
	netnstest.IP(l.t, l.node, "link add "+link+" type veth peer name eth0 netns "+ns)
	netnstest.Set(l.t, l.node, "net/ipv6/conf/"+link+"/accept_dad", "0")
	netnstest.Set(l.t, ns, "net/ipv6/conf/eth0/accept_dad", "0")
	for _, line := range []string{"addr add " + router + "/32 dev " + link, "addr add fe80::1/64 dev " + link + " nodad", "link set " + link + " up", "link set lo up"} {
		netnstest.IP(l.t, l.node, line)
	}
	lines := []string{"link set eth0 up", "link set lo up", "route add " + router + " dev eth0", "route add default via " + router, "-6 route add default via fe80::1 dev eth0"}
	for _, a := range addresses {
		l.where[addr(a)] = ns
		netnstest.IP(l.t, l.node, "route add "+a+" dev "+link)
		dad := ""
		if strings.Contains(a, ":") {
			dad = " nodad"
		}
		lines = append(lines, "addr add "+a+" dev eth0"+dad)
	}
	for _, line := range lines {
		netnstest.IP(l.t, ns, line)
	}
}

// serve answers at an endpoint with its address and the client's, until the test ends.
func (l *lab) serve(at netip.AddrPort) {
	l.t.Helper()
	must(l.t, netns.Do(l.where[at.Addr()], func() error {
		tcp, err := net.Listen("tcp", at.String())
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { tcp.Close() })
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				fmt.Fprintf(c, "%v %v", at, netip.MustParseAddrPort(c.RemoteAddr().String()).Addr())
				c.Close()
			}
		}()
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
		if err != nil {
			return err
		}
		l.t.Cleanup(func() { udp.Close() })
		go func() {
			for buf := make([]byte, 16); ; {
				_, from, err := udp.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				_, _ = udp.WriteToUDPAddrPort(fmt.Appendf(nil, "%v %v", at, from.Addr().Unmap()), from)
			}
		}()
		return nil
	}))
}

// get connects and returns the answer: the endpoint and the client's address, "refused", or
// "timeout".
func (l *lab) get(network, from, to string) string {
	l.t.Helper()
	out := ""
	must(l.t, netns.Do(l.where[addr(from)], func() error {
		d := net.Dialer{Timeout: 700 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
		if network == "udp" {
			d.LocalAddr = &net.UDPAddr{IP: net.ParseIP(from)}
		}
		c, err := d.Dial(network, to)
		if err == nil {
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(700 * time.Millisecond))
			if network == "udp" {
				_, err = c.Write([]byte("x"))
			}
		}
		if err == nil {
			buf := make([]byte, 100)
			var n int
			if n, err = c.Read(buf); err == nil || err == io.EOF {
				out = string(buf[:n])
				return nil
			}
		}
		switch {
		case strings.Contains(err.Error(), "refused"):
			out = "refused"
		case strings.Contains(err.Error(), "timeout"):
			out = "timeout"
		default:
			out = err.Error()
		}
		return nil
	}))
	return out
}

func (l *lab) change(c service.Changes) *compile.Update {
	l.t.Helper()
	l.compiler.Change(c)
	u := l.compiler.Commit()
	must(l.t, l.table.Apply(u))
	return u
}

func (l *lab) clean() {
	l.t.Helper()
	if why, err := l.table.Verify(); err != nil || len(why) > 0 {
		l.t.Errorf("the kernel differs: %v, %v", why, err)
	}
}

var (
	here4, there4, other4 = netip.MustParseAddrPort("10.88.0.1:8080"), netip.MustParseAddrPort("10.99.0.1:8080"), netip.MustParseAddrPort("10.88.0.2:8080")
	here6                 = netip.MustParseAddrPort("[fd88::1]:8080")
)

func sliceOf(svc, name string, endpoints ...netip.AddrPort) *service.Slice {
	out := &service.Slice{Namespace: "n", Name: name, Service: svc, Ports: []service.EndpointPort{{Name: "t", Protocol: service.TCP, Port: 8080}, {Name: "u", Protocol: service.UDP, Port: 8080}}}
	for _, e := range endpoints {
		node := "here"
		if e.Addr() == there4.Addr() {
			node = "there"
		}
		out.Endpoints = append(out.Endpoints, service.Endpoint{Address: e.Addr(), Node: node, Ready: true, Serving: true})
	}
	return out
}

func web() *service.Service {
	return &service.Service{
		Namespace: "n", Name: "web", ClusterIPs: []netip.Addr{addr("10.96.0.1"), addr("fd96::1")}, ExternalIPs: []netip.Addr{addr("198.51.100.1")},
		LoadBalancerIPs: []netip.Addr{addr("198.51.100.2")},
		Ports:           []service.Port{{Name: "t", Protocol: service.TCP, Port: 80, NodePort: 30080}, {Name: "u", Protocol: service.UDP, Port: 80, NodePort: 30080}},
	}
}

func here() *service.Node {
	return &service.Node{Name: "here", Addresses: []netip.Addr{addr("192.168.0.1"), addr("fd00::1")}}
}

func one[V any](key string, v *V) map[string]*V { return map[string]*V{key: v} }

func TestConnectionsLeadToEndpoints(t *testing.T) {
	l := newLab(t)
	for _, e := range []netip.AddrPort{here4, there4, other4, here6} {
		l.serve(e)
	}
	s := web()
	node := here()
	l.change(service.Changes{Node: node, Services: one("n/web", s), Slices: map[string]*service.Slice{"n/1": sliceOf("web", "1", here4), "n/2": sliceOf("web", "2", here6)}})
	l.clean()
	check := func(network, from, to, want string) {
		t.Helper()
		if got := l.get(network, from, to); got != want {
			t.Errorf("%s from %s to %s: %s, want %s", network, from, to, got, want)
		}
	}
	const pod, self, client, host = "10.88.0.2", "10.88.0.1", "192.0.2.7", "192.168.0.1"
	for _, network := range []string{"tcp", "udp"} {
		check(network, pod, "10.96.0.1:80", "10.88.0.1:8080 "+pod)
		check(network, self, "10.96.0.1:80", "10.88.0.1:8080 10.88.0.254")
		check(network, host, "10.96.0.1:80", "10.88.0.1:8080 10.88.0.254")
		check(network, client, "198.51.100.1:80", "10.88.0.1:8080 10.88.0.254")
		check(network, client, "198.51.100.2:80", "10.88.0.1:8080 10.88.0.254")
		check(network, client, host+":30080", "10.88.0.1:8080 10.88.0.254")
		check(network, pod, host+":30080", "10.88.0.1:8080 "+pod)
		check(network, host, host+":30080", "10.88.0.1:8080 10.88.0.254")
		check(network, "fd88::2", "[fd96::1]:80", "[fd88::1]:8080 fd88::2")
		check(network, "2001:db8::7", "[fd00::1]:30080", "[fd88::1]:8080 fd88::ff")
	}
	check("tcp", pod, "10.96.0.1:81", "refused")
	check("tcp", host, "10.96.0.1:81", "refused")

	// External connections keep their source if they stay on the node.
	local := web()
	local.ExternalLocal, local.SourceRanges = true, []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")}
	l.change(service.Changes{Services: one("n/web", local)})
	l.clean()
	check("tcp", client, host+":30080", "10.88.0.1:8080 "+client)
	check("tcp", client, "198.51.100.1:80", "10.88.0.1:8080 "+client)
	check("tcp", client, "198.51.100.2:80", "timeout") // not in range

	// Without an endpoint on the node, they are dropped, and those from inside go elsewhere.
	l.change(service.Changes{Slices: one("n/1", sliceOf("web", "1", there4))})
	l.clean()
	check("tcp", client, host+":30080", "timeout")
	check("tcp", pod, host+":30080", "10.99.0.1:8080 "+pod)
	check("tcp", pod, "10.96.0.1:80", "10.99.0.1:8080 "+pod)

	l.change(service.Changes{Slices: one[service.Slice]("n/1", nil)})
	l.clean()
	for from, to := range map[string]string{pod: "10.96.0.1:80", client: host + ":30080", host: "10.96.0.1:80"} {
		check("tcp", from, to, "refused")
		if from != host { // the kernel says EPERM
			check("udp", from, to, "refused")
		}
	}

	l.change(service.Changes{Services: one[service.Service]("n/web", nil), Slices: one[service.Slice]("n/2", nil)})
	l.clean()
	must(t, l.table.Teardown())
	if left := netnstest.Run(t, l.node, "nft", "list", "ruleset"); strings.TrimSpace(left) != "" {
		t.Errorf("left:\n%s", left)
	}
}

func TestEveryEndpointIsFoundAndAffinityKeepsOne(t *testing.T) {
	l := newLab(t)
	all := []netip.AddrPort{here4, there4, other4}
	for _, e := range all {
		l.serve(e)
	}
	s := web()
	l.change(service.Changes{Node: here(), Services: one("n/web", s), Slices: one("n/1", sliceOf("web", "1", all...))})
	found := func(n int) []string {
		seen := map[string]bool{}
		for range n {
			endpoint, _, _ := strings.Cut(l.get("tcp", "10.88.0.2", "10.96.0.1:80"), " ")
			seen[endpoint] = true
		}
		var out []string
		for e := range seen {
			out = append(out, e)
		}
		slices.Sort(out)
		return out
	}
	if got := found(60); len(got) != 3 {
		t.Errorf("found %v", got)
	}
	sticky := web()
	sticky.Affinity = time.Hour
	l.change(service.Changes{Services: one("n/web", sticky)})
	l.clean()
	first := found(20)
	if len(first) != 1 {
		t.Fatalf("with affinity, found %v", first)
	}
	for _, to := range []string{"198.51.100.1:80", "192.168.0.1:30080"} {
		for _, network := range []string{"tcp", "udp"} {
			endpoint, _, _ := strings.Cut(l.get(network, "192.0.2.7", to), " ")
			for range 10 {
				if got, _, _ := strings.Cut(l.get(network, "192.0.2.7", to), " "); got != endpoint {
					t.Errorf("%s to %s: %s, after %s", network, to, got, endpoint)
				}
			}
		}
	}
	// Another process takes the table over, and clients keep their endpoints.
	must(t, l.table.Close())
	l.compiler = compile.New()
	l.open()
	l.change(service.Changes{Node: here(), Services: one("n/web", sticky), Slices: one("n/1", sliceOf("web", "1", all...))})
	if got := found(10); !slices.Equal(got, first) {
		t.Errorf("after a restart, found %v, not %v", got, first)
	}
	// The endpoint goes, and clients get another one.
	rest := slices.DeleteFunc(slices.Clone(all), func(e netip.AddrPort) bool { return e.String() == first[0] })
	l.change(service.Changes{Slices: one("n/1", sliceOf("web", "1", rest...))})
	l.clean()
	if got := found(20); len(got) != 1 || got[0] == first[0] {
		t.Errorf("without %v, found %v", first, got)
	}
	// It comes back, and clients stay where they are.
	second := found(1)
	l.change(service.Changes{Slices: one("n/1", sliceOf("web", "1", all...))})
	if got := found(20); !slices.Equal(got, second) {
		t.Errorf("after an endpoint came, found %v, not %v", got, second)
	}
}

func TestUDPLeavesEndpointsThatAreGone(t *testing.T) {
	l := newLab(t)
	l.serve(here4)
	l.serve(other4)
	s := web()
	l.change(service.Changes{Node: here(), Services: one("n/web", s), Slices: one("n/1", sliceOf("web", "1", here4))})
	must(t, netns.Do(l.where[addr("192.0.2.7")], func() error {
		c, err := net.Dial("udp", "198.51.100.1:80")
		if err != nil {
			return err
		}
		defer c.Close()
		ask := func() string {
			_ = c.SetDeadline(time.Now().Add(2 * time.Second))
			_, _ = c.Write([]byte("x"))
			buf := make([]byte, 100)
			n, _ := c.Read(buf)
			endpoint, _, _ := strings.Cut(string(buf[:n]), " ")
			return endpoint
		}
		if got := ask(); got != here4.String() {
			t.Errorf("answer of %q", got)
		}
		u := l.change(service.Changes{Slices: one("n/1", sliceOf("web", "1", other4))})
		if n, err := l.table.End(u.Ended); err != nil || n != 1 {
			t.Errorf("ended %d, %v", n, err)
		}
		if got := ask(); got != other4.String() {
			t.Errorf("afterwards, answer of %q", got)
		}
		// An endpoint that is back already keeps its connections.
		u = l.change(service.Changes{Slices: one("n/1", sliceOf("web", "1", here4))})
		l.change(service.Changes{Slices: one("n/1", sliceOf("web", "1", other4))})
		if n, err := l.table.End(u.Ended); err != nil || n != 0 {
			t.Errorf("of an endpoint that is back, ended %d, %v", n, err)
		}
		return nil
	}))
}

// `nft list ruleset` is how people, and other programs, read rules. nft 1.0.6 ends with SIGABRT if
// it doesn't know an expression.
func TestNftListsTheTable(t *testing.T) {
	l := newLab(t)
	sticky := web()
	sticky.Name, sticky.Affinity = "sticky", time.Hour
	sticky.ClusterIPs, sticky.ExternalIPs, sticky.LoadBalancerIPs = []netip.Addr{addr("10.96.0.2"), addr("fd96::2")}, nil, nil
	for i := range sticky.Ports {
		sticky.Ports[i].NodePort++
	}
	l.change(service.Changes{
		Node: here(), Services: map[string]*service.Service{"n/web": web(), "n/sticky": sticky},
		Slices: map[string]*service.Slice{"n/1": sliceOf("web", "1", here4, there4), "n/2": sliceOf("sticky", "2", here4, there4), "n/3": sliceOf("sticky", "3", here6)},
	})
	out := netnstest.Run(t, l.node, "nft", "list", "ruleset")
	for _, want := range []string{
		"10.96.0.1 . tcp . 80 : goto addr4-all-2", "tcp . 30080 : goto m-port4-all-2",
		"10.96.0.2 . tcp . 80 : goto addr4-all-2-sticky-0a600002-6-80", "tcp . 30081 : goto remember-3600-00000000-6-30081",
		"dnat ip to ip saddr . ip daddr . meta l4proto . th dport map @affinity-0a600002-6-80",
		"update @affinity-0a600002-6-80 { ip saddr . ct original ip daddr . meta l4proto . ct original proto-dst timeout 1h : ip daddr . th dport }",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("%s is missing in\n%s", want, out)
		}
	}
}
