package backend_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
)

var (
	keyA = peer.Key{1}
	keyB = peer.Key{2}
)

// self is node a of 192.0.2.0/24 and 2001:db8::/64. Its kernel has everything.
func self(b backend.Backend) backend.Self {
	s := backend.Self{
		Instance: "0b5e",
		Backend:  b,
		Record:   node("a", "192.0.2.1 2001:db8::1", "10.201.1.0/24 fd68:0:0:1::/64"),
		Underlay: []backend.Underlay{
			{Link: "eth0", Address: netip.MustParsePrefix("192.0.2.1/24"), MTU: 1500},
			{Link: "eth0", Address: netip.MustParsePrefix("2001:db8::1/64"), MTU: 1500},
		},
		Cluster: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd68::/48")},
	}
	return s
}

func node(name, addresses, blocks string) peer.Node {
	n := peer.Node{Version: 1, Name: name, VXLAN: backend.VXLANOf(name), IPIP: true}
	n.VXLAN.MAC = peer.MAC{2, 0, 0, 0, 0, name[0]}
	for a := range strings.FieldsSeq(addresses) {
		n.Addresses = append(n.Addresses, netip.MustParseAddr(a))
	}
	for b := range strings.FieldsSeq(blocks) {
		n.Blocks = append(n.Blocks, netip.MustParsePrefix(b))
	}
	return n
}

// show returns a peer's objects as iproute2 writes them.
func show(p backend.Peer) (lines []string) {
	lines = append(lines, strings.TrimSpace(fmt.Sprintf("%s mtu %d %s", p.Way, p.MTU, p.Why)))
	for _, o := range p.Neighbours {
		lines = append(lines, o.String())
	}
	for _, o := range p.Forwards {
		lines = append(lines, o.String())
	}
	for _, o := range p.Tunnels {
		lines = append(lines, fmt.Sprintf("%v endpoint %v allowed %v", o, o.Endpoint, o.Allowed))
	}
	for _, o := range p.Routes {
		lines = append(lines, o.String())
	}
	return lines
}

func TestFor(t *testing.T) {
	near := node("b", "192.0.2.2 2001:db8::2", "10.201.2.0/24 fd68:0:0:2::/64")
	far := node("c", "198.51.100.3 2001:db8:3::3", "10.201.3.0/24 10.201.4.0/24 fd68:0:0:3::/64")
	encrypt := func(s *backend.Self) { s.Record.WireGuard = []peer.WireGuard{{Key: keyA, Port: 51820}} }
	near.WireGuard = []peer.WireGuard{{Key: keyB, Port: 51820}}
	wg := "wireguard peer " + keyB.String() + " dev hn0b5ewg"
	for name, c := range map[string]struct {
		self func(*backend.Self)
		peer peer.Node
		edit func(*peer.Node)
		with backend.Backend
		want []string
	}{
		"on the same link": {peer: near, with: backend.Auto, want: []string{"direct mtu 1500", "fdb 02:00:00:00:00:62 dev hn0b5evx dst 192.0.2.2",
			"route 10.201.2.0/24 via 192.0.2.2 dev eth0", "route fd68:0:0:2::/64 via 2001:db8::2 dev eth0"}},
		"IPv4 by an IPv6 address": {peer: near, with: backend.HostGW, edit: func(n *peer.Node) { n.Addresses = n.Addresses[1:] }, want: []string{"direct mtu 1500",
			"route 10.201.2.0/24 via 2001:db8::2 dev eth0 src 10.201.1.1", "route fd68:0:0:2::/64 via 2001:db8::2 dev eth0"}},
		"no IPv6 by an IPv4 address": {peer: near, with: backend.HostGW, edit: func(n *peer.Node) { n.Addresses = n.Addresses[:1] }, want: []string{
			"mtu 0 not direct: no address of the peer for fd68:0:0:2::/64 is on a link of this node"}},
		"behind a router": {peer: far, with: backend.Auto, want: []string{"vxlan mtu 1450 not direct: no address of the peer for 10.201.3.0/24 is on a link of this node",
			"neighbour 10.201.3.0 lladdr 02:00:00:00:00:63 dev hn0b5evx", "neighbour fe80::ff:fe00:63 lladdr 02:00:00:00:00:63 dev hn0b5evx",
			"fdb 02:00:00:00:00:63 dev hn0b5evx dst 198.51.100.3",
			"route 10.201.3.0/24 via 10.201.3.0 dev hn0b5evx src 10.201.1.1", "route 10.201.4.0/24 via 10.201.3.0 dev hn0b5evx src 10.201.1.1",
			"route fd68:0:0:3::/64 via fe80::ff:fe00:63 dev hn0b5evx src fd68:0:0:1::1"}},
		"over IPv6": {peer: near, with: backend.OnlyVXLAN, edit: func(n *peer.Node) { n.Addresses = []netip.Addr{netip.MustParseAddr("2001:db8:9::2")} }, want: []string{
			"vxlan mtu 1430 not direct: no address of the peer for 10.201.2.0/24 is on a link of this node",
			"neighbour 10.201.2.0 lladdr 02:00:00:00:00:62 dev hn0b5evx6", "neighbour fe80::ff:fe00:62 lladdr 02:00:00:00:00:62 dev hn0b5evx6",
			"fdb 02:00:00:00:00:62 dev hn0b5evx6 dst 2001:db8:9::2",
			"route 10.201.2.0/24 via 10.201.2.0 dev hn0b5evx6 src 10.201.1.1", "route fd68:0:0:2::/64 via fe80::ff:fe00:62 dev hn0b5evx6 src fd68:0:0:1::1"}},
		"each family over itself": {peer: near, with: backend.Auto, edit: func(n *peer.Node) { n.Tunneled, n.VXLAN.MAC6 = true, peer.MAC{2, 6} }, want: []string{
			"vxlan mtu 1430 not direct: the peer takes only packets from tunnels",
			"neighbour 10.201.2.0 lladdr 02:00:00:00:00:62 dev hn0b5evx", "neighbour fe80::6:ff:fe00:0 lladdr 02:06:00:00:00:00 dev hn0b5evx6",
			"fdb 02:00:00:00:00:62 dev hn0b5evx dst 192.0.2.2", "fdb 02:06:00:00:00:00 dev hn0b5evx6 dst 2001:db8::2",
			"route 10.201.2.0/24 via 10.201.2.0 dev hn0b5evx src 10.201.1.1", "route fd68:0:0:2::/64 via fe80::6:ff:fe00:0 dev hn0b5evx6 src fd68:0:0:1::1"}},
		"each family over itself, and no IPv6": {peer: near, with: backend.OnlyVXLAN, edit: func(n *peer.Node) {
			n.Tunneled, n.VXLAN.MAC6, n.Addresses = true, peer.MAC{2, 6}, n.Addresses[:1]
		}, want: []string{"mtu 0 not direct: the peer takes only packets from tunnels; not vxlan: the peer takes each family over itself, and one of the nodes has addresses of one only"}},
		"a smaller MTU at the peer": {peer: far, with: backend.OnlyIPIP, edit: func(n *peer.Node) { n.MTU, n.Blocks = 1400, n.Blocks[:1] }, want: []string{
			"ipip mtu 1380 not direct: no address of the peer for 10.201.3.0/24 is on a link of this node",
			"route 10.201.3.0/24 via 198.51.100.3 dev hn0b5eip src 10.201.1.1 mtu 1380"}},
		"encrypted": {peer: near, with: backend.OnlyWireGuard, self: encrypt, want: []string{"wireguard mtu 1440",
			wg + " endpoint 192.0.2.2:51820 allowed [10.201.2.0/24 fd68:0:0:2::/64]",
			"route 10.201.2.0/24 dev hn0b5ewg src 10.201.1.1", "route fd68:0:0:2::/64 dev hn0b5ewg src fd68:0:0:1::1"}},
		"the peer wants encryption": {peer: near, with: backend.Auto, self: encrypt, edit: func(n *peer.Node) { n.Encrypted, n.Blocks = true, n.Blocks[:1] }, want: []string{
			"wireguard mtu 1440 not direct: the peer takes only encrypted packets; not vxlan: the peer takes only encrypted packets; not ipip: the peer takes only encrypted packets",
			wg + " endpoint 192.0.2.2:51820 allowed [10.201.2.0/24]", "route 10.201.2.0/24 dev hn0b5ewg src 10.201.1.1"}},
		"direct is broken": {peer: near, with: backend.Auto, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) { s.Broken = map[string][]backend.Way{"b": {backend.Direct}} }, want: []string{
				"vxlan mtu 1450 not direct: no answer from the peer by it",
				"neighbour 10.201.2.0 lladdr 02:00:00:00:00:62 dev hn0b5evx", "fdb 02:00:00:00:00:62 dev hn0b5evx dst 192.0.2.2",
				"route 10.201.2.0/24 via 10.201.2.0 dev hn0b5evx src 10.201.1.1"}},
		"only some sizes pass": {peer: near, with: backend.HostGW, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) { s.Limits = map[string]int{"b": 1370} }, want: []string{"direct mtu 1370", "route 10.201.2.0/24 via 192.0.2.2 dev eth0 mtu 1370"}},
		"the tunnels stand by": {peer: near, with: backend.Auto, self: encrypt, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] }, want: []string{"direct mtu 1500",
			"fdb 02:00:00:00:00:62 dev hn0b5evx dst 192.0.2.2", wg + " endpoint 192.0.2.2:51820 allowed [10.201.2.0/24]", "route 10.201.2.0/24 via 192.0.2.2 dev eth0"}},
		"all is broken": {peer: near, with: backend.HostGW, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) { s.Broken = map[string][]backend.Way{"b": {backend.Direct}} }, want: []string{
				"direct mtu 1500 not direct: no answer from the peer by it; so it stays direct", "route 10.201.2.0/24 via 192.0.2.2 dev eth0"}},
		"learned by BGP": {peer: near, with: backend.OnlyBGP, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) {
				s.Learned = map[netip.Prefix][]netip.Addr{
					near.Blocks[0]:                         {netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.200")},
					netip.MustParsePrefix("192.0.2.0/24"):  {netip.MustParseAddr("192.0.2.66")},
					netip.MustParsePrefix("10.201.0.0/16"): {netip.MustParseAddr("192.0.2.66")},
				}
			}, want: []string{"bgp mtu 1500", "route 10.201.2.0/24 via 192.0.2.2 dev eth0", "route 10.201.2.0/24 via 192.0.2.200 dev eth0"}},
		"learned by BGP as a part": {peer: near, with: backend.OnlyBGP, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) {
				s.Learned = map[netip.Prefix][]netip.Addr{
					netip.MustParsePrefix("10.201.2.0/23"): {netip.MustParseAddr("192.0.2.2")},
					netip.MustParsePrefix("10.201.0.0/16"): {netip.MustParseAddr("192.0.2.66")},
					netip.MustParsePrefix("10.0.0.0/8"):    {netip.MustParseAddr("192.0.2.77")},
					netip.MustParsePrefix("10.201.2.0/25"): {netip.MustParseAddr("192.0.2.88")},
				}
			}, want: []string{"bgp mtu 1500", "route 10.201.2.0/24 via 192.0.2.2 dev eth0"}},
		"learned by BGP as a part of more than pods": {peer: near, with: backend.OnlyBGP, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) {
				s.Learned = map[netip.Prefix][]netip.Addr{netip.MustParsePrefix("10.0.0.0/8"): {netip.MustParseAddr("192.0.2.77")}}
			}, want: []string{"mtu 0 not bgp: no route was announced"}},
		"learned by BGP over IPv6": {peer: near, with: backend.OnlyBGP, edit: func(n *peer.Node) { n.Blocks = n.Blocks[:1] },
			self: func(s *backend.Self) {
				s.Learned = map[netip.Prefix][]netip.Addr{near.Blocks[0]: {netip.MustParseAddr("2001:db8::2")}}
			}, want: []string{"bgp mtu 1500", "route 10.201.2.0/24 via 2001:db8::2 dev eth0 src 10.201.1.1"}},
		"another VNI": {peer: far, with: backend.OnlyVXLAN, edit: func(n *peer.Node) { n.VXLAN.VNI = 7 }, want: []string{
			"mtu 0 not direct: no address of the peer for 10.201.3.0/24 is on a link of this node; not vxlan: the peer uses VNI 7 and port 8472, this node 1 and 8472"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, n := self(c.with), c.peer
			vx := *n.VXLAN
			n.VXLAN = &vx
			if c.edit != nil {
				c.edit(&n)
			}
			if c.self != nil {
				c.self(&s)
			}
			p := backend.For(s, []*peer.Node{&n})
			if diff := cmp.Diff(c.want, show(*p.Peers[0])); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestLinks(t *testing.T) {
	for b, want := range map[backend.Backend]string{
		backend.Auto:          "hn0b5evx 1450 192.0.2.1 1, hn0b5evx6 1430 2001:db8::1 1, hn0b5eip 1480 192.0.2.1 0, hn0b5ewg 1440 192.0.2.1 0, pods 1420",
		backend.HostGW:        "pods 1500",
		backend.OnlyVXLAN:     "hn0b5evx 1450 192.0.2.1 1, hn0b5evx6 1430 2001:db8::1 1, pods 1430",
		backend.OnlyIPIP:      "hn0b5eip 1480 192.0.2.1 0, pods 1460",
		backend.OnlyWireGuard: "hn0b5ewg 1440 192.0.2.1 0, pods 1420",
		backend.OnlyBGP:       "pods 1500",
	} {
		s := self(b)
		s.Record.WireGuard = []peer.WireGuard{{Key: keyA, Port: 51820}}
		p := backend.For(s, nil)
		var got []string
		for _, l := range p.Links {
			got = append(got, fmt.Sprintf("%s %d %v %d", l.Name, l.MTU, l.Local, l.VNI))
		}
		got = append(got, fmt.Sprintf("pods %d", p.MTU))
		if diff := cmp.Diff(want, strings.Join(got, ", ")); diff != "" {
			t.Errorf("%s: %s", b, diff)
		}
	}
}

func TestPaths(t *testing.T) {
	s := self(backend.Auto)
	s.Record.WireGuard = []peer.WireGuard{{Key: keyA, Port: 51820}}
	n := node("b", "192.0.2.2", "10.201.2.0/24")
	n.WireGuard = []peer.WireGuard{{Key: keyB, Port: 51820}}
	want := []backend.Path{
		{Way: backend.Direct, Link: "eth0", Via: netip.MustParseAddr("192.0.2.2")},
		{Way: backend.VXLAN, Link: "hn0b5evx", MAC: plan.MAC{2, 0, 0, 0, 0, 'b'}},
		{Way: backend.IPIP, Link: "hn0b5eip"},
		{Way: backend.WireGuard, Link: "hn0b5ewg"},
	}
	if diff := cmp.Diff(want, backend.For(s, []*peer.Node{&n}).Peers[0].Paths, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

// TestPlanner makes a random sequence of plans, which must be those of For.
func TestPlanner(t *testing.T) {
	var planner backend.Planner
	random := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		s := self(backend.Auto)
		s.Broken, s.Limits = map[string][]backend.Way{}, map[string]int{}
		if random.IntN(10) == 0 {
			s.Underlay[0].MTU = 1400
		}
		var peers []*peer.Node
		for name := 'b'; name < 'z'; name++ {
			n := node(string(name), fmt.Sprintf("192.0.2.%d", name), fmt.Sprintf("10.201.%d.0/24", name))
			switch random.IntN(12) {
			case 0:
				continue
			case 1:
				n.Blocks = append(n.Blocks, netip.MustParsePrefix(fmt.Sprintf("10.202.%d.0/24", name)))
			case 2:
				n.Addresses[0] = netip.MustParseAddr("198.51.100.1")
			case 3:
				s.Broken[n.Name] = []backend.Way{backend.Direct}
			case 4:
				s.Limits[n.Name] = 1300
			}
			peers = append(peers, &n)
		}
		if diff := cmp.Diff(backend.For(s, peers), planner.Plan(s, peers), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})); diff != "" {
			t.Fatal(diff)
		}
	}
}

// BenchmarkPlanner changes one of 5,000 peers.
func BenchmarkPlanner(b *testing.B) {
	s := self(backend.Auto)
	peers := make([]*peer.Node, 5000)
	for i := range peers {
		hi, lo := byte(i>>8), byte(i)
		n := node(fmt.Sprintf("%05d", i), fmt.Sprintf("172.16.%d.%d", hi, lo), fmt.Sprintf("10.%d.%d.0/24 fd68:0:%d:%d::/64", hi, lo, hi, lo))
		peers[i] = &n
	}
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			backend.For(s, peers)
		}
	})
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		var planner backend.Planner
		for i := 0; b.Loop(); i++ {
			changed := slices.Clone(peers)
			one := *peers[i%len(peers)]
			one.MTU = 1400
			changed[i%len(peers)] = &one
			planner.Plan(s, changed)
		}
	})
}

// TestRotation follows the links and tunnels between a and b through a change of a's key, on both
// nodes.
func TestRotation(t *testing.T) {
	oldKey, newKey := peer.Key{3}, peer.Key{4}
	a, b := self(backend.OnlyWireGuard), self(backend.OnlyWireGuard)
	b.Record = node("b", "192.0.2.2", "10.201.2.0/24")
	a.Record.WireGuard = []peer.WireGuard{{Key: oldKey, Port: 51820}}
	b.Record.WireGuard = []peer.WireGuard{{Key: keyB, Port: 51820}}
	names := map[peer.Key]string{oldKey: "old", newKey: "new", keyB: "b's"}
	// show returns the links, the tunnels by them and the link of the routes, when both or one of the
	// sessions is alive.
	show := func(on backend.Self, to peer.Node, alive ...string) string {
		sessions := map[backend.TunnelID]backend.Session{}
		for key := range names {
			for _, link := range alive {
				own := on.Record.Key()
				if link == "hn0b5ewg2" && on.Record.Rotating() {
					own = on.Record.Rotation.Key
				} else if link == "stale" {
					link, own = "hn0b5ewg", oldKey
				}
				sessions[backend.TunnelID{Link: link, Key: key}] = backend.Session{Alive: true, Own: own}
			}
		}
		on.Second = on.BySecond([]*peer.Node{&to}, sessions)
		p := backend.For(on, []*peer.Node{&to})
		var out []string
		for _, l := range p.Links {
			out = append(out, fmt.Sprintf("%s %s %d", strings.TrimPrefix(l.Name, "hn0b5e"), names[l.Key], l.Port))
		}
		for _, t := range p.Peers[0].Tunnels {
			out = append(out, fmt.Sprintf("%s>%s:%d", strings.TrimPrefix(t.Link, "hn0b5e"), names[t.Key], t.Endpoint.Port()))
		}
		return strings.Join(append(out, "by "+strings.TrimPrefix(p.Peers[0].Paths[0].Link, "hn0b5e"), "route "+strings.TrimPrefix(p.Peers[0].Routes[0].Link, "hn0b5e")), ", ")
	}
	const first, second = "hn0b5ewg", "hn0b5ewg2"
	for _, c := range []struct {
		name        string
		key, next   peer.Key // of a
		older       bool     // b's version of Husk
		alive       []string
		wantA, want string // the latter is of b
	}{
		{"before", oldKey, peer.Key{}, false, []string{first}, "wg old 51820, wg>b's:51820, by wg, route wg", "wg b's 51820, wg>old:51820, by wg, route wg"},
		{"begun", oldKey, newKey, false, []string{first},
			"wg old 51820, wg2 new 51822, wg>b's:51820, wg2>b's:51822, by wg, route wg", "wg b's 51820, wg2 b's 51822, wg>old:51820, wg2>new:51822, by wg, route wg"},
		{"moved", oldKey, newKey, false, []string{first, second},
			"wg old 51820, wg2 new 51822, wg2>b's:51822, wg>b's:51820, by wg2, route wg2", "wg b's 51820, wg2 b's 51822, wg2>new:51822, wg>old:51820, by wg2, route wg2"},
		{"switched", newKey, newKey, false, []string{second},
			"wg new 51820, wg2 new 51822, wg2>b's:51822, wg>b's:51820, by wg2, route wg2", "wg b's 51820, wg2 b's 51822, wg2>new:51822, wg>new:51820, by wg2, route wg2"},
		{"switching", newKey, newKey, false, []string{"stale", second},
			"wg new 51820, wg2 new 51822, wg2>b's:51822, wg>b's:51820, by wg2, route wg2", "wg b's 51820, wg2 b's 51822, wg2>new:51822, wg>new:51820, by wg2, route wg2"},
		{"back", newKey, newKey, false, []string{first, second},
			"wg new 51820, wg2 new 51822, wg>b's:51820, wg2>b's:51822, by wg, route wg", "wg b's 51820, wg2 b's 51822, wg>new:51820, wg2>new:51822, by wg, route wg"},
		{"ended", newKey, peer.Key{}, false, []string{first}, "wg new 51820, wg>b's:51820, by wg, route wg", "wg b's 51820, wg>new:51820, by wg, route wg"},
		{"begun, with an older version", oldKey, newKey, true, []string{first}, "wg old 51820, wg2 new 51822, wg>b's:51820, by wg, route wg", "wg b's 51820, wg>old:51820, by wg, route wg"},
		{"switched, with an older version", newKey, newKey, true, nil, "wg new 51820, wg2 new 51822, wg>b's:51820, by wg, route wg", "wg b's 51820, wg>new:51820, by wg, route wg"},
	} {
		a.Record.WireGuard[0].Key = c.key
		a.Record.Rotation, b.Record.Rotation = &peer.Rotation{Port: 51822, Key: c.next}, &peer.Rotation{Port: 51822}
		if c.older {
			b.Record.Rotation = nil
		}
		if diff := cmp.Diff([]string{c.wantA, c.want}, []string{show(a, b.Record, c.alive...), show(b, a.Record, c.alive...)}); diff != "" {
			t.Errorf("%s:\n%s", c.name, diff)
		}
	}
}
