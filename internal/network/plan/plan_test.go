package plan

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/pod"
)

var (
	sandbox = strings.Repeat("0123456789abcdef", 4)
	four    = netip.MustParsePrefix("10.88.0.7/16")
	six     = netip.MustParsePrefix("fd88::7/64")
)

func attachment(ports ...pod.PortMapping) pod.Attachment {
	return pod.Attachment{Sandbox: sandbox, Pod: pod.Ref{Namespace: "default", Name: "web"}, Netns: "/run/netns/web", IfName: "eth0", Ports: ports}
}

func node(mode Mode) Node {
	return Node{Instance: "1a2b", Mode: mode, MTU: 1450, Source: netip.MustParseAddr("192.0.2.2")}
}

func at(hostIP string, protocol pod.Protocol, hostPort uint16) pod.PortMapping {
	m := pod.PortMapping{Protocol: protocol, HostPort: hostPort, Port: 80}
	if hostIP != "" {
		m.HostIP = netip.MustParseAddr(hostIP)
	}
	return m
}

// render returns a plan in readable form.
func render(p Plan) string {
	var b strings.Builder
	line := func(where string, what ...any) { fmt.Fprintln(&b, append([]any{where}, what...)...) }
	line("pair", p.Veth.Host, p.Veth.Pod, p.Veth.MTU, p.Veth.RouteLocalnet, p.Veth.Bridge)
	for _, s := range []struct {
		name string
		Side
	}{{"host", p.Host}, {"pod", p.Pod}} {
		for _, a := range s.Addresses {
			line(s.name, a)
		}
		for _, n := range s.Neighbours {
			line(s.name, n)
		}
		for _, r := range s.Routes {
			line(s.name, r)
		}
	}
	for _, e := range p.Elements {
		line("table", e)
	}
	return b.String()
}

func TestRoutedPod(t *testing.T) {
	p := For(node(PTP), attachment(at("", pod.TCP, 8080), at("192.0.2.2", pod.UDP, 53)), []netip.Prefix{four, six})
	h, m := p.Veth.HostMAC.String(), p.Veth.PodMAC.String()
	own := p.Veth.PodMAC.LinkLocal().String()
	want := strings.NewReplacer("HOST", h, "POD", m, "OWN", own).Replace(`pair hk1a2b012345678 eth0 1450 true 
host neighbour 10.88.0.7 lladdr POD dev hk1a2b012345678
host neighbour fd88::7 lladdr POD dev hk1a2b012345678
host neighbour OWN lladdr POD dev hk1a2b012345678
host route 10.88.0.7/32 dev hk1a2b012345678 src 192.0.2.2
host route 10.88.0.7/32 dev hk1a2b012345678 src 10.88.0.1
host route fd88::7/128 dev hk1a2b012345678
host route local ::1/128 dev hk1a2b012345678
pod address 10.88.0.7/32 dev eth0
pod address fd88::7/128 dev eth0
pod address OWN/64 dev eth0
pod neighbour 169.254.1.1 lladdr HOST dev eth0
pod neighbour fe80::1 lladdr HOST dev eth0
pod route 169.254.1.1/32 dev eth0
pod route 0.0.0.0/0 via 169.254.1.1 dev eth0
pod route local fd88::7/128 dev eth0
pod route ::/0 via fe80::1 dev eth0
table element pods4 { 10.88.0.7 }
table element sources4 { hk1a2b012345678 . 10.88.0.7 }
table element ports4 { tcp . 8080 : 10.88.0.7 . 80 }
table element addrport4 { 192.0.2.2 . udp . 53 : 10.88.0.7 . 80 }
table element hairpin4 { 10.88.0.7 . 10.88.0.7 }
table element pods6 { fd88::7 }
table element sources6 { hk1a2b012345678 . fd88::7 }
table element ports6 { tcp . 8080 : fd88::7 . 80 }
table element hairpin6 { fd88::7 . fd88::7 }
`)
	if got := render(p); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	a := p.Attached("husk")
	if fmt.Sprint(*a) != fmt.Sprintf("{husk eth0 %s 1450 hk1a2b012345678 [10.88.0.7/32 fd88::7/128] [169.254.1.1 fe80::1]}", m) {
		t.Errorf("attached: %v", *a)
	}
}

func TestBridgedPod(t *testing.T) {
	p := For(node(Bridge), attachment(), []netip.Prefix{six, four})
	bridge, m := BridgeMAC("1a2b").String(), p.Veth.PodMAC.String()
	own := p.Veth.PodMAC.LinkLocal().String()
	want := strings.NewReplacer("BRIDGE", bridge, "POD", m, "OWN", own).Replace(`pair hk1a2b012345678 eth0 1450 false hkbr1a2b
host neighbour fd88::7 lladdr POD dev hkbr1a2b
host neighbour 10.88.0.7 lladdr POD dev hkbr1a2b
host neighbour OWN lladdr POD dev hkbr1a2b
pod address fd88::7/64 dev eth0
pod address 10.88.0.7/16 dev eth0
pod address OWN/64 dev eth0
pod neighbour fd88::1 lladdr BRIDGE dev eth0
pod neighbour 10.88.0.1 lladdr BRIDGE dev eth0
pod route local fd88::7/128 dev eth0
pod route ::/0 via fd88::1 dev eth0
pod route 0.0.0.0/0 via 10.88.0.1 dev eth0
table element pods6 { fd88::7 }
table element sources6 { hkbr1a2b . fd88::7 }
table element pods4 { 10.88.0.7 }
table element sources4 { hkbr1a2b . 10.88.0.7 }
`)
	if got := render(p); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if a := p.Attached("husk"); fmt.Sprint(a.Addresses, a.Gateways) != "[fd88::7/64 10.88.0.7/16] [fd88::1 10.88.0.1]" {
		t.Errorf("attached: %v", *a)
	}
}

func TestBase(t *testing.T) {
	subnets := []netip.Prefix{four.Masked(), six.Masked()}
	b := ForNode(BaseConfig{Instance: "1a2b", Tag: 7, Mode: PTP, Owner: "me", Subnets: subnets, Masquerade: true})
	if fmt.Sprint(b.Host.Routes) != "[route unreachable 10.88.0.0/16 route unreachable fd88::/64]" || b.Link != nil || fmt.Sprint(b.Host.Addresses) != "[address 10.88.0.1/32 dev lo address fd88::1/128 dev lo]" ||
		fmt.Sprint(b.Sysctls) != "[net/ipv4/ip_forward net/ipv6/conf/all/forwarding]" || fmt.Sprint(b.Table) != "{husk-1a2b me hk1a2b  false 0 hkbr1a2b true [10.88.0.1 fd88::1] [10.88.0.0/16 fd88::/64] [10.88.0.0/16 fd88::/64] invalid IP [] [] [] <nil> 2}" {
		t.Errorf("ptp: %+v", b)
	}
	b = ForNode(BaseConfig{Instance: "1a2b", Mode: Bridge, Subnets: subnets[:1], Resolver: Resolvers("1a2b")[0]})
	if got := fmt.Sprint(b.Host.Addresses); got != "[address 10.88.0.1/16 dev hkbr1a2b address 169.254.90.44/32 dev lo]" || b.Table.Resolver != Resolvers("1a2b")[0] {
		t.Errorf("with a name server: %s", got)
	}
	const loAddresses, bridgeAddresses = "address 10.88.0.1/32 dev lo", "address 10.88.0.1/16 dev hkbr1a2b address fd88::1/64 dev hkbr1a2b"
	for want, c := range map[string]BaseConfig{
		"[" + bridgeAddresses + "]":                     {Instance: "1a2b", Mode: Bridge, Subnets: subnets, Leased: map[Mode][]netip.Prefix{Bridge: subnets[:1]}},
		"[" + loAddresses + " " + bridgeAddresses + "]": {Instance: "1a2b", Mode: PTP, Subnets: subnets[:1], Leased: map[Mode][]netip.Prefix{Bridge: subnets}},
	} {
		b := ForNode(c)
		if b.Link == nil || b.Link.Name != "hkbr1a2b" || fmt.Sprint(b.Host.Addresses) != want || !strings.Contains(fmt.Sprint(b.Host.Routes), "route local ::1/128 dev hkbr1a2b") {
			t.Errorf("%+v: %+v", c, b)
		}
	}
}

// TestResolvers checks that name servers have addresses that only the node can reach, and that no
// cloud and no other program is known to use.
func TestResolvers(t *testing.T) {
	taken := netip.MustParsePrefix("169.254.64.0/18")
	for i := range 1 << 16 {
		instance := pod.Instance(fmt.Sprintf("%04x", i))
		four, six := Resolvers(instance)[0], Resolvers(instance)[1]
		if last := four.As4()[3]; !taken.Contains(four) || last == 0 || last == 255 || six != netip.MustParseAddr(fmt.Sprintf("fd68:7573:6b01::%x", i)) {
			t.Fatalf("instance %s: %v %v", instance, four, six)
		}
	}
}

// TestBaseOfCluster checks the base of a node with two blocks of a cluster, and pods in a block
// that it no longer has.
func TestBaseOfCluster(t *testing.T) {
	prefixes := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	c := BaseConfig{
		Instance: "1a2b", Tag: 0x68751a2b, Mode: PTP, NodeLinks: "hn1a2b", TunnelPort: 8472, Subnets: prefixes("10.88.2.0/24", "10.88.1.0/24"),
		Cluster: prefixes("10.88.0.0/16", "fd88::/48"), NonMasquerade: prefixes("10.0.0.0/9", "10.128.0.0/24"),
		Leased: map[Mode][]netip.Prefix{PTP: prefixes("10.88.1.0/24", "10.88.7.0/24")},
	}
	b := ForNode(c)
	var routes []string
	for _, r := range b.Host.Routes {
		rank, ok := RankOf(c.Tag, r.Metric)
		routes = append(routes, fmt.Sprint(r.Kind, " ", r.Dst, " ", rank, ok))
	}
	if want := []string{"unreachable 10.88.2.0/24 0 true", "unreachable 10.88.1.0/24 0 true", "unreachable 10.88.7.0/24 0 true", "unreachable 10.88.0.0/16 1 true", "unreachable fd88::/48 1 true"}; !slices.Equal(routes, want) {
		t.Errorf("got %q, want %q", routes, want)
	}
	if got := fmt.Sprint(b.Host.Addresses); got != "[address 10.88.2.1/32 dev lo address 10.88.1.1/32 dev lo address 10.88.7.1/32 dev lo]" {
		t.Errorf("got %s", got)
	}
	if got := fmt.Sprint(b.Table.NodeLinks, b.Table.TunnelPort, b.Table.As, b.Table.Blocks, b.Table.Direct, b.Sysctls); got != "hn1a2b8472 [10.88.2.1] [10.88.1.0/24 10.88.2.0/24] [10.0.0.0/9 10.128.0.0/24 fd88::/48] [net/ipv4/ip_forward net/ipv6/conf/all/forwarding]" {
		t.Errorf("got %s", got)
	}
	c.Subnets = nil
	if got := fmt.Sprint(ForNode(c).Table.As); got != "[10.88.1.1]" {
		t.Errorf("with former blocks only, got %s", got)
	}
	for _, metric := range []int{0, 1024, 0x68751a2c, 0x68771a2b, 0x686e1a2b} {
		if rank, ok := RankOf(c.Tag, metric); ok {
			t.Errorf("the metric %#x has rank %v", metric, rank)
		}
	}
}

func TestTag(t *testing.T) {
	if tag, err := Tag("1a2b"); err != nil || tag != 0x68751a2b {
		t.Errorf("got %#x, %v", tag, err)
	}
	for _, bad := range []pod.Instance{"", "1a2", "1a2b3", "zzzz", "-1a2", "+1a2", "0x1a"} {
		if tag, err := Tag(bad); err == nil {
			t.Errorf("%q: %#x", bad, tag)
		}
	}
}

func TestLinkLocal(t *testing.T) {
	if got := (MAC{0x02, 0, 0x5e, 0x10, 0, 1}).LinkLocal().String(); got != "fe80::5eff:fe10:1" {
		t.Errorf("got %s", got)
	}
}

func TestClash(t *testing.T) {
	const all = "" // of both families
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{all, all, true}, {all, "192.0.2.1", true}, {all, "::1", true}, {"0.0.0.0", "192.0.2.1", true}, {"::", "::1", true},
		{"192.0.2.1", "192.0.2.1", true}, {"192.0.2.1", "192.0.2.2", false}, {"0.0.0.0", "::", false}, {"0.0.0.0", "::1", false}, {"::", "192.0.2.1", false},
	} {
		for _, swap := range []bool{false, true} {
			a, b := c.a, c.b
			if swap {
				a, b = b, a
			}
			if got := Clash(at(a, pod.TCP, 80), at(b, pod.TCP, 80)); got != c.want {
				t.Errorf("%q and %q: %v", a, b, got)
			}
			if Clash(at(a, pod.TCP, 80), at(b, pod.UDP, 80)) || Clash(at(a, pod.TCP, 80), at(b, pod.TCP, 81)) {
				t.Errorf("%q and %q clash over different ports", a, b)
			}
		}
	}
}

func TestMappings(t *testing.T) {
	a := attachment(
		pod.PortMapping{Port: 80},                // CRI lists ports without hostPort too
		pod.PortMapping{HostPort: 8080, Port: 8}, // and leaves out the protocol
		pod.PortMapping{HostPort: 8080, Port: 8, Protocol: pod.TCP},
		at("::ffff:192.0.2.1", pod.UDP, 53),
	)
	if got := fmt.Sprint(Mappings(a)); got != "[{tcp invalid IP 8080 8} {udp 192.0.2.1 53 80}]" {
		t.Errorf("got %s", got)
	}
}

func TestCheck(t *testing.T) {
	if err := Check(attachment(at("", pod.TCP, 80), at("", pod.UDP, 80), at("", pod.SCTP, 80), at("0.0.0.0", pod.TCP, 81), at("::", pod.TCP, 81))); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*pod.Attachment){
		"not an ID of 64 hex digits":   func(a *pod.Attachment) { a.Sandbox = "abc" },
		`interface name ""`:            func(a *pod.Attachment) { a.IfName = "" },
		`interface name "../../x"`:     func(a *pod.Attachment) { a.IfName = "../../x" },
		`interface name ".."`:          func(a *pod.Attachment) { a.IfName = ".." },
		`interface name "eth 0"`:       func(a *pod.Attachment) { a.IfName = "eth 0" },
		`interface name "eth:0"`:       func(a *pod.Attachment) { a.IfName = "eth:0" },
		`interface name "0123456789ab`: func(a *pod.Attachment) { a.IfName = "0123456789abcdef" },
		"interface name lo is taken":   func(a *pod.Attachment) { a.IfName = "lo" },
		`network namespace ""`:         func(a *pod.Attachment) { a.Netns = "" },
		`network namespace "web"`:      func(a *pod.Attachment) { a.Netns = "web" },
		`protocol "icmp" is none of`:   func(a *pod.Attachment) { a.Ports = []pod.PortMapping{at("", "icmp", 80)} },
		`protocol "TCP" is none of`:    func(a *pod.Attachment) { a.Ports = []pod.PortMapping{at("", "TCP", 80)} },
		"no containerPort":             func(a *pod.Attachment) { a.Ports = []pod.PortMapping{{Protocol: pod.TCP, HostPort: 80}} },
		"without the zone":             func(a *pod.Attachment) { a.Ports = []pod.PortMapping{at("fe80::1%eth0", pod.TCP, 80)} },
		"is a multicast address":       func(a *pod.Attachment) { a.Ports = []pod.PortMapping{at("224.0.0.1", pod.TCP, 80)} },
		"hostPort 80/tcp is listed twice": func(a *pod.Attachment) {
			a.Ports = []pod.PortMapping{at("", pod.TCP, 80), at("192.0.2.1", pod.TCP, 80)}
		},
	} {
		a := attachment()
		change(&a)
		if err := Check(a); !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
}

// FuzzPlan checks the invariants of every plan.
func FuzzPlan(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef"), true, true, false, uint16(8080), uint8(0))
	f.Add([]byte{}, false, true, true, uint16(1), uint8(1))
	f.Add([]byte{1}, true, false, true, uint16(65535), uint8(4))
	f.Fuzz(func(t *testing.T, id []byte, has4, has6, bridge bool, port uint16, which uint8) {
		a := attachment()
		a.Sandbox = fmt.Sprintf("%064x", id)[:64]
		hostIP := []string{"", "0.0.0.0", "::", "127.0.0.1", "::1", "192.0.2.1"}[which%6]
		a.Ports = []pod.PortMapping{at(hostIP, []pod.Protocol{pod.TCP, pod.UDP, pod.SCTP}[which%3], port)}
		var addresses []netip.Prefix
		if has4 {
			addresses = append(addresses, four)
		}
		if has6 {
			addresses = append(addresses, six)
		}
		mode := PTP
		if bridge {
			mode = Bridge
		}
		if Check(a) != nil {
			return
		}
		p := For(node(mode), a, addresses)
		if render(p) != render(For(node(mode), a, addresses)) {
			t.Fatal("two plans of the same attachment differ")
		}
		if len(p.Veth.Host) > 15 || p.Veth.HostMAC == p.Veth.PodMAC {
			t.Fatalf("veth %+v", p.Veth)
		}
		for _, m := range []MAC{p.Veth.HostMAC, p.Veth.PodMAC} {
			if m[0]&1 != 0 || m[0]&2 == 0 {
				t.Fatalf("MAC %v isn't a local unicast address", m)
			}
		}
		onNode := []string{p.Veth.Host}
		if bridge {
			onNode = append(onNode, p.Veth.Bridge)
		}
		checkLinks(t, p.Host, onNode)
		checkLinks(t, p.Pod, []string{a.IfName})
		seen := map[Element]bool{}
		sets := map[string]int{}
		for _, e := range p.Elements {
			if seen[e] {
				t.Fatalf("twice: %v", e)
			}
			seen[e] = true
			sets[strings.TrimRight(e.Set, "46")]++
			if !slices.ContainsFunc(Sets(), func(s Set) bool { return s.Name() == e.Set }) {
				t.Fatalf("unknown set: %v", e)
			}
		}
		if sets[Pods] != len(addresses) || sets[Sources] != len(addresses) || sets[Hairpin] != sets[Ports]+sets[AddrPort] {
			t.Fatalf("elements %v of %v", sets, addresses)
		}
		// The elements of dual stack are those of the two families, and nothing else.
		var single []Element
		for _, addr := range addresses {
			single = append(single, For(node(mode), a, []netip.Prefix{addr}).Elements...)
		}
		if !slices.Equal(single, p.Elements) {
			t.Fatalf("both: %v, one by one: %v", p.Elements, single)
		}
		if got := p.Attached("n"); len(got.Addresses) != len(addresses) || len(got.Gateways) != len(addresses) {
			t.Fatalf("attached %+v", got)
		}
	})
}

func checkLinks(t *testing.T, s Side, links []string) {
	t.Helper()
	check := func(link string, what any) {
		if !slices.Contains(links, link) {
			t.Fatalf("%v is on none of %v", what, links)
		}
	}
	for _, a := range s.Addresses {
		check(a.Link, a)
	}
	for _, n := range s.Neighbours {
		check(n.Link, n)
	}
	for _, r := range s.Routes {
		check(r.Link, r)
	}
}

func TestSandboxesShareNothing(t *testing.T) {
	seen := map[string]string{}
	for range 2000 {
		a := attachment()
		a.Sandbox = pod.NewID()
		p := For(node(PTP), a, []netip.Prefix{four})
		for _, name := range []string{p.Veth.HostMAC.String(), p.Veth.PodMAC.String(), p.Veth.Host} {
			if other, ok := seen[name]; ok {
				t.Fatalf("%s belongs to both %s and %s", name, other, a.Sandbox)
			}
			seen[name] = a.Sandbox
		}
	}
	other := node(PTP)
	other.Instance = "ffff"
	if For(node(PTP), attachment(), nil).Veth.PodMAC == For(other, attachment(), nil).Veth.PodMAC {
		t.Error("two instances derive the same MAC")
	}
}
