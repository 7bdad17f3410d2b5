package overlay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/wgctrl/wgtypes"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
)

// TestWays sends packets of full size between the pods of three nodes by each way and underlay.
func TestWays(t *testing.T) {
	for name, c := range map[string]struct {
		layout
		backend backend.Backend
		way     backend.Way
		pods    string // families that pods have
	}{
		"direct":               {layout{3, false, "46"}, backend.HostGW, backend.Direct, "46"},
		"direct over IPv6":     {layout{3, false, "6"}, backend.HostGW, backend.Direct, "46"},
		"direct on Ethernet":   {layout{3, false, "46"}, backend.OnlyVXLAN, backend.Direct, "46"},
		"vxlan":                {layout{3, true, "4"}, backend.OnlyVXLAN, backend.VXLAN, "46"},
		"vxlan over IPv6":      {layout{3, true, "6"}, backend.OnlyVXLAN, backend.VXLAN, "46"},
		"vxlan of both":        {layout{3, true, "46"}, backend.Auto, backend.VXLAN, "46"},
		"ipip":                 {layout{3, true, "4"}, backend.OnlyIPIP, backend.IPIP, "4"},
		"wireguard":            {layout{3, true, "46"}, backend.OnlyWireGuard, backend.WireGuard, "46"},
		"wireguard over IPv6":  {layout{2, true, "6"}, backend.OnlyWireGuard, backend.WireGuard, "46"},
		"wireguard of a wire":  {layout{2, false, "4"}, backend.OnlyWireGuard, backend.WireGuard, "46"},
		"vxlan, flannel's way": {layout{2, true, "46"}, backend.OnlyVXLAN, backend.VXLAN, "46"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, c.layout)
			if !l.nodes[0].supports(c.way) {
				l.nodes[0].self.Backend = c.backend
				_, err := l.nodes[0].Apply(backend.For(l.nodes[0].self, l.peers(l.nodes[0])))
				if err == nil || !strings.Contains(err.Error(), "the kernel has no "+kinds[c.way]) {
					t.Errorf("Apply without it: %v", err)
				}
				return
			}
			for _, n := range l.nodes {
				n.self.Record.IPIP = c.way == backend.IPIP
				if c.way != backend.WireGuard {
					n.self.Record.WireGuard = nil
				}
				if strings.Contains(name, "flannel") {
					n.self.Record.VXLAN.MAC6 = peer.MAC{2, 6, 6, 6, 6, n.self.Record.Name[1]}
				}
				if c.pods == "4" {
					n.self.Record.Blocks = n.self.Record.Blocks[:1]
				}
			}
			var before []string
			for _, n := range l.nodes {
				before = append(before, n.inventory())
			}
			l.apply(c.backend)
			for _, n := range l.nodes {
				for _, p := range n.plan.Peers {
					if p.Way != c.way {
						t.Fatalf("%s is reached by %q: %s", p.Name, p.Way, p.Why)
					}
				}
			}
			l.reach(c.pods)
			for i, n := range l.nodes {
				n.reopen()
				must(t, n.Teardown())
				if diff := cmp.Diff(before[i], n.inventory()); diff != "" {
					t.Errorf("left of %s:\n%s", n.self.Record.Name, diff)
				}
			}
		})
	}
}

// TestAsymmetric sends packets by different ways to and fro, past a strict filter of the reverse
// path, as happens while one node falls back to another way.
func TestAsymmetric(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, false, "4"})
	a, b := l.nodes[0], l.nodes[1]
	netnstest.Set(t, b.path, "net/ipv4/conf/all/rp_filter", "1")
	a.self.Broken = map[string][]backend.Way{b.self.Record.Name: {backend.Direct}}
	for _, n := range l.nodes {
		n.self.Record.IPIP, n.self.Record.WireGuard, n.self.Record.Blocks = false, nil, n.self.Record.Blocks[:1]
	}
	l.apply(backend.Auto)
	if by, back := a.plan.Peers[0].Way, b.plan.Peers[0].Way; by != backend.VXLAN || back != backend.Direct {
		t.Fatalf("by %s, back by %s", by, back)
	}
	l.reach("4")
}

// TestMTU sends packets to a node with a smaller MTU: pods learn it.
func TestMTU(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "4"})
	l.ip(l.nodes[1].path, "link set eth0 mtu 1400")
	l.ip(l.router, "link set node2 mtu 1400")
	for _, n := range l.nodes {
		var err error
		n.self.Underlay, err = n.Underlay()
		must(t, err)
		n.self.Record.MTU = n.self.Underlay[0].MTU
	}
	l.apply(backend.OnlyVXLAN)
	small, large := l.nodes[1].plan.MTU, l.nodes[0].plan.MTU
	if small != 1350 || large != 1450 {
		t.Fatalf("MTUs %d and %d", small, large)
	}
	for _, six := range []bool{false, true} {
		if err := udp(l.nodes[0].pod, podAddress(1, six), l.nodes[1].pod, podAddress(2, six), large); err == nil {
			t.Errorf("a packet of %d bytes came through", large)
		}
		if err := udp(l.nodes[0].pod, podAddress(1, six), l.nodes[1].pod, podAddress(2, six), small); err != nil {
			t.Errorf("a packet of %d bytes: %v", small, err)
		}
		path := l.ip(l.nodes[0].pod, "route get "+podAddress(2, six).String())
		if !strings.Contains(path, "mtu 1350") {
			t.Errorf("the pod doesn't know the MTU: %s", path)
		}
	}
}

// TestMultipath has a route by two gateways, as BGP may learn.
func TestMultipath(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{3, false, "46"})
	n := l.nodes[0]
	four, six := block(2, false), block(2, true)
	addr := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	n.self.Cluster = []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd68::/32")}
	n.self.Learned = map[netip.Prefix][]netip.Addr{
		four: {addr("192.0.2.2"), addr("192.0.2.3")}, six: {addr("2001:db8::2"), addr("2001:db8::3")},
		block(3, false): {addr("2001:db8::2"), addr("192.0.2.3")},
		block(3, true):  {addr("2001:db8::3")},
	}
	l.apply(backend.HostGW)
	n.self.Backend = backend.OnlyBGP
	n.plan = backend.For(n.self, l.peers(n))
	_, err := n.Apply(n.plan)
	must(t, err)
	n.agrees()
	for _, command := range []string{"route show 10.201.2.0/24", "route show 10.201.3.0/24", "-6 route show fd68:0:0:2::/64"} {
		if out := l.ip(n.path, command); strings.Count(out, "nexthop") != 2 {
			t.Errorf("%s: %s", command, out)
		}
	}
	l.reach("46")
	n.self.Learned[four] = n.self.Learned[four][1:]
	n.self.Learned[six] = n.self.Learned[six][:1]
	n.plan = backend.For(n.self, l.peers(n))
	_, err = n.Apply(n.plan)
	must(t, err)
	n.agrees()
	must(t, n.Teardown())
	n.plan = backend.Plan{}
	n.agrees()
}

// many returns a plan with peers, of which half are on the node's link.
func many(n *node, peers int) backend.Plan {
	records := make([]*peer.Node, peers)
	for i := range records {
		name := fmt.Sprintf("peer%05d", i)
		hi, lo := byte(i>>8), byte(i)
		records[i] = &peer.Node{Version: 1, Name: name, VXLAN: backend.VXLANOf(name),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16 + hi, lo, 1})},
			Blocks: []netip.Prefix{
				netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 64 + hi, lo, 0}), 24),
				netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x99, 6: hi, 7: lo}), 64),
			}}
	}
	n.self.Backend, n.self.Record.IPIP, n.self.Record.WireGuard = backend.OnlyVXLAN, false, nil
	return backend.For(n.self, records)
}

// TestChanges applies a random sequence of plans, each as a change of the one before.
func TestChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{1, false, "46"})
	n := l.nodes[0]
	before := n.inventory()
	all := many(n, 60)
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 60 {
		p := all
		p.Peers = nil
		for _, of := range all.Peers {
			one := *of
			switch random.IntN(4) {
			case 0: // it has left
				continue
			case 1: // it has another address
				one.Forwards = append([]backend.Forward(nil), one.Forwards...)
				one.Forwards[0].To = netip.AddrFrom4([4]byte{172, 31, byte(step), byte(random.IntN(256))})
			case 2: // it is reached directly
				one.Forwards, one.Neighbours = nil, nil
				one.Routes = append([]plan.Route(nil), one.Routes...)
				one.Routes[0].Link, one.Routes[0].Via, one.Routes[0].Source = "eth0", netip.AddrFrom4([4]byte{192, 0, 2, byte(2 + random.IntN(200))}), netip.Addr{}
				one.Routes[1].Link, one.Routes[1].Via, one.Routes[1].Source = "eth0", netip.MustParseAddr("2001:db8::99"), netip.Addr{}
				one.Routes[random.IntN(2)].MTU = 1400
			}
			p.Peers = append(p.Peers, &one)
		}
		n.plan = p
		if _, err := n.Apply(p); err != nil {
			t.Fatal(err)
		}
		if n.agrees(); t.Failed() {
			t.Fatalf("after step %d", step)
		}
	}
	must(t, n.Teardown())
	if diff := cmp.Diff(before, n.inventory()); diff != "" {
		t.Error(diff)
	}
}

// TestBlockChangesHands moves a block from one peer to another.
func TestBlockChangesHands(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{3, true, "4"})
	l.apply(backend.OnlyVXLAN)
	a, b, c := l.nodes[0], l.nodes[1], l.nodes[2]
	b.self.Record.Blocks, c.self.Record.Blocks = c.self.Record.Blocks, b.self.Record.Blocks
	a.plan = backend.For(a.self, l.peers(a))
	_, err := a.Apply(a.plan)
	must(t, err)
	a.agrees()
}

// TestLinkChanges changes the node's address and the MTU of the underlay: the link remains.
func TestLinkChanges(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "46"})
	ways := []backend.Way{backend.VXLAN, backend.IPIP, backend.WireGuard}
	l.apply(backend.HostGW)
	n := l.nodes[0]
	n.self.Record.IPIP = n.Supports(backend.IPIP) == nil
	if n.Supports(backend.WireGuard) != nil {
		n.self.Record.WireGuard = nil
	}
	n.self.Backend = backend.Auto
	n.plan = backend.For(n.self, l.peers(n))
	_, err := n.Apply(n.plan)
	must(t, err)
	indexes := func() (out []string) {
		for _, w := range ways {
			if n.Supports(w) == nil {
				out = append(out, strings.Fields(l.ip(n.path, "-o link show "+backend.LinkName(instance, w, false)))[0])
			}
		}
		return out
	}
	before := indexes()
	l.ip(n.path, "addr add 198.18.1.77/24 dev eth0")
	n.self.Underlay[0].Address, n.self.Underlay[0].MTU = netip.MustParsePrefix("198.18.1.77/24"), 1400
	n.self.Record.Blocks[0] = netip.MustParsePrefix("10.201.99.0/24")
	l.ip(n.path, "addr add 10.201.99.1/32 dev lo")
	n.plan = backend.For(n.self, l.peers(n))
	_, err = n.Apply(n.plan)
	must(t, err)
	n.agrees()
	if diff := cmp.Diff(before, indexes()); diff != "" {
		t.Errorf("links were made again:\n%s", diff)
	}
	n.self.Record.VXLAN.VNI = 77
	for _, p := range l.nodes[1:] {
		p.self.Record.VXLAN.VNI = 77
	}
	n.plan = backend.For(n.self, l.peers(n))
	_, err = n.Apply(n.plan)
	must(t, err)
	n.agrees()
	if out := l.ip(n.path, "-d link show "+backend.LinkName(instance, backend.VXLAN, false)); !strings.Contains(out, "vxlan id 77 local 198.18.1.77") || !strings.Contains(out, "nolearning") {
		t.Error(out)
	}
}

// TestStrangers checks that links and routes of others stay, and are named.
func TestStrangers(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, false, "46"})
	n := l.nodes[0]
	name := backend.LinkName(instance, backend.VXLAN, false)
	n.self.Record.IPIP, n.self.Record.WireGuard = false, nil
	n.self.Backend = backend.Auto
	l.ip(n.path, "link add "+name+" type bridge")
	l.ip(n.path, "link add "+backend.LinkPrefix(instance)+"xx type bridge")
	l.ip(n.path, "route add 10.201.2.0/24 via 192.0.2.66 proto static")
	l.ip(n.path, "route add 10.201.2.0/24 via 192.0.2.67 proto 104 metric 7")
	l.ip(n.path, "route add unreachable 10.201.1.0/24 proto 104 metric "+fmt.Sprint(backend.Tag(instance)))
	l.ip(n.path, "-6 route add fd68:0:0:2::/64 via 2001:db8::66 proto bird metric 5")
	netnstest.Run(t, n.path, "bridge", "fdb", "add", "02:00:00:00:00:77", "dev", name, "self", "permanent")
	entries := netnstest.Run(t, n.path, "bridge", "fdb", "show", "dev", name)
	before := n.inventory()
	n.plan = backend.For(n.self, l.peers(n))
	notes, err := n.Apply(n.plan)
	if err == nil || !strings.Contains(err.Error(), "link "+name+`: a link of kind "bridge" has this name`) {
		t.Errorf("Apply with another's link: %v", err)
	}
	want := []string{
		"route 10.201.2.0/24 via 192.0.2.66 dev eth0 of protocol 4 and metric 0 isn't Husk's, and the kernel prefers it to Husk's: remove it",
		"route fd68:0:0:2::/64 via 2001:db8::66 dev eth0 of protocol 12 and metric 5 isn't Husk's, and the kernel prefers it to Husk's: remove it",
	}
	if diff := cmp.Diff(want, notes); diff != "" {
		t.Error(diff)
	}
	diffs, err := n.Verify(n.plan)
	must(t, err)
	if got := fmt.Sprint(diffs); got != "[link "+name+`: somebody else's, of kind "bridge"]` {
		t.Errorf("Verify: %s", got)
	}
	must(t, n.Teardown())
	if diff := cmp.Diff(before, n.inventory()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(entries, netnstest.Run(t, n.path, "bridge", "fdb", "show", "dev", name)); diff != "" {
		t.Error(diff)
	}
	l.ip(n.path, "link del "+name)
	l.ip(n.path, "link add flannel.1 type vxlan id 1 dstport 8472 local 192.0.2.1")
	if _, err = n.Apply(n.plan); err == nil || !strings.Contains(err.Error(), "link flannel.1 has VNI 1 and port 8472 already") {
		t.Errorf("with flannel's link: %v", err)
	}
}

// TestWithoutIPv6 applies a plan for both families on a node that has IPv6 switched off.
func TestWithoutIPv6(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{3, true, "4"})
	n := l.nodes[0]
	for _, conf := range []string{"all", "default"} {
		netnstest.Set(t, n.path, "net/ipv6/conf/"+conf+"/disable_ipv6", "1")
	}
	for _, n := range l.nodes {
		n.self.Record.IPIP, n.self.Record.WireGuard = false, nil
	}
	l.apply(backend.OnlyVXLAN)
	for range 2 {
		notes, err := n.Apply(n.plan)
		if diff := cmp.Diff([]string{"no routes to IPv6 addresses of pods of other nodes: net.ipv6.conf.default.disable_ipv6 is 1"}, notes); diff != "" || err != nil {
			t.Error(diff, err)
		}
		n.plan.Peers = n.plan.Peers[:1]
	}
	n.agrees()
	if err := udp(n.pod, podAddress(1, false), l.nodes[1].pod, podAddress(2, false), n.plan.MTU); err != nil {
		t.Error(err)
	}
	for _, conf := range []string{"all", "default"} {
		netnstest.Set(t, n.path, "net/ipv6/conf/"+conf+"/disable_ipv6", "0")
	}
	l.ip(n.path, "addr add fd68:0:0:1::1/128 dev lo nodad preferred_lft 0") // which the kernel has removed
	if notes, err := n.Apply(n.plan); len(notes) > 0 || err != nil {
		t.Error(notes, err)
	}
	n.agrees()
}

// TestSourceGone removes the address that the node sends from itself: pods go on.
func TestSourceGone(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "4"})
	for _, n := range l.nodes {
		n.self.Record.IPIP, n.self.Record.WireGuard = false, nil
	}
	l.apply(backend.OnlyVXLAN)
	n := l.nodes[0]
	l.ip(n.path, "addr del 10.201.1.1/32 dev lo")
	l.ip(n.path, "-6 addr del fd68:0:0:1::1/128 dev lo")
	for range 2 {
		if _, err := n.Apply(n.plan); err == nil || !strings.Contains(err.Error(), "route 10.201.2.0/24") { // Linux 6.1 doesn't refuse that of IPv6
			t.Errorf("Apply: %v", err)
		}
		l.reach("46")
	}
	l.ip(n.path, "addr add 10.201.1.1/32 dev lo scope link")
	l.ip(n.path, "addr add fd68:0:0:1::1/128 dev lo nodad preferred_lft 0")
	_, err := n.Apply(n.plan)
	must(t, err)
	n.agrees()
}

// TestHealing has others remove what is Husk's.
func TestHealing(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{3, true, "46"})
	n := l.nodes[0]
	wireGuard := n.Supports(backend.WireGuard) == nil
	for _, n := range l.nodes {
		n.self.Record.IPIP = false
		if !wireGuard {
			n.self.Record.WireGuard = nil
		}
	}
	third := l.nodes[2].self.Record
	third.Encrypted = wireGuard
	n.self.Backend = backend.Auto
	n.plan = backend.For(n.self, []*peer.Node{&l.nodes[1].self.Record, &third})
	_, err := n.Apply(n.plan)
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error)
	var calls atomic.Int32
	go func() {
		watched <- n.Watch(ctx, func() {
			_, _ = n.Apply(n.plan) // Verify is what counts
			calls.Add(1)
		})
	}()
	eventually(t, func() string {
		if calls.Load() == 0 {
			return "Watch hasn't begun"
		}
		return ""
	})
	vx, vx6 := backend.LinkName(instance, backend.VXLAN, false), backend.LinkName(instance, backend.VXLAN, true)
	commands := []string{
		"ip route flush proto 104 table main", "ip -6 route flush proto 104", "ip link del " + vx, "ip link del " + vx6,
		"ip link set " + vx + " down", "ip link set " + vx + " mtu 1300", "ip neigh flush dev " + vx + " nud permanent", "ip addr flush dev " + vx,
		"ip route del 10.201.2.0/24", "ip addr del 10.201.1.1/32 dev lo;ip addr add 10.201.1.1/32 dev lo",
	}
	if _, err := exec.LookPath("bridge"); err == nil {
		commands = append(commands, fmt.Sprintf("bridge fdb del %v dev %s dst 198.18.2.1", plan.MAC(l.nodes[1].self.Record.VXLAN.MAC), vx))
	}
	if wireGuard {
		commands = append(commands, "ip link del "+backend.LinkName(instance, backend.WireGuard, false))
	}
	for _, command := range commands {
		began, before := time.Now(), calls.Load()
		for one := range strings.SplitSeq(command, ";") {
			if out, err := netnstest.Try(n.path, strings.Fields(one)...); err != nil {
				t.Fatalf("%s: %v: %s", one, err, out)
			}
		}
		eventually(t, func() string {
			if diffs, err := n.Verify(n.plan); err != nil || len(diffs) > 0 || calls.Load() == before {
				return fmt.Sprint(command, ": ", diffs, err)
			}
			return ""
		})
		t.Logf("%s: healed after %v", command, time.Since(began).Round(time.Millisecond))
	}
	if wireGuard {
		must(t, n.devices.client.ConfigureDevice(backend.LinkName(instance, backend.WireGuard, false), wgtypes.Config{Peers: dropAll(n.plan)}))
		eventually(t, func() string {
			if diffs, err := n.Verify(n.plan); err != nil || len(diffs) > 0 {
				return fmt.Sprint("a peer of WireGuard: ", diffs, err)
			}
			return ""
		})
	}
	cancel()
	must(t, <-watched)
	n.agrees()
}

// TestOwnChangesAreQuiet applies plans of many peers while it watches: only the changes of others
// matter.
func TestOwnChangesAreQuiet(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{1, false, "46"})
	n := l.nodes[0]
	p := many(n, 2000)
	for _, peers := range [][]*backend.Peer{nil, p.Peers[:1]} {
		_, err := n.Apply(backend.Plan{Links: p.Links, Peers: peers})
		must(t, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	calls, watched := make(chan struct{}, 100), make(chan error)
	go func() { watched <- n.Watch(ctx, func() { calls <- struct{}{} }) }()
	<-calls // it has begun
	for _, peers := range [][]*backend.Peer{p.Peers, p.Peers[:1000], p.Peers[:999], p.Peers[:1]} {
		_, err := n.Apply(backend.Plan{Links: p.Links, Peers: peers})
		must(t, err)
	}
	if len(calls) > 0 {
		t.Error("called for its own changes")
	}
	l.ip(n.path, "route del "+p.Peers[0].Routes[0].Dst.String())
	select {
	case <-calls:
	case <-time.After(time.Minute):
		t.Error("not called for a change by others")
	}
	cancel()
	must(t, <-watched)
	if len(calls) > 0 {
		t.Error("called more than once for one change")
	}
}

// TestUplinkDown sets the uplink down and up. The kernel removes IPv4 routes without a word.
func TestUplinkDown(t *testing.T) {
	t.Parallel()
	for _, wait := range []time.Duration{0, 200 * time.Millisecond} {
		l := newLab(t, layout{2, false, "4"})
		for _, n := range l.nodes {
			n.self.Record.Blocks = n.self.Record.Blocks[:1]
		}
		l.apply(backend.HostGW)
		n := l.nodes[0]
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan error)
		var calls atomic.Int32
		go func() {
			watched <- n.Watch(ctx, func() {
				_, _ = n.Apply(n.plan)
				calls.Add(1)
			})
		}()
		called := func(times int32) func() string {
			return func() string {
				if calls.Load() < times {
					return "not called"
				}
				return ""
			}
		}
		eventually(t, called(1))
		l.ip(n.path, "link set eth0 down")
		time.Sleep(wait) // both within and beyond the time in which events are collected
		l.ip(n.path, "link set eth0 up")
		eventually(t, called(2))
		eventually(t, func() string {
			if diffs, err := n.Verify(n.plan); err != nil || len(diffs) > 0 {
				return fmt.Sprint(diffs, err)
			}
			return ""
		})
		cancel()
		must(t, <-watched)
	}
}

// TestWatchUnderlay changes the underlay, and waits to be called.
func TestWatchUnderlay(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, false, "46"})
	l.apply(backend.OnlyVXLAN)
	n := l.nodes[0]
	ctx, cancel := context.WithCancel(t.Context())
	calls, watched := make(chan struct{}, 100), make(chan error)
	go func() { watched <- n.Watch(ctx, func() { calls <- struct{}{} }) }()
	defer func() {
		cancel()
		must(t, <-watched)
	}()
	wait := func() {
		t.Helper()
		select {
		case <-calls:
		case <-time.After(time.Minute):
			t.Fatal("not called")
		}
	}
	wait() // it has begun
	for _, c := range []struct{ command, want string }{
		{"link set eth0 mtu 1400", "[{eth0 192.0.2.1/24 1400 eth0} {eth0 2001:db8::1/64 1400 eth0}]"},
		{"route replace default via 192.0.2.254 mtu 1300", "[{eth0 192.0.2.1/24 1300 eth0} {eth0 2001:db8::1/64 1400 eth0}]"},
		{"-6 addr del 2001:db8::1/64 dev eth0", "[{eth0 192.0.2.1/24 1300 eth0}]"},
		{"route del default", "[]"},
	} {
		l.ip(n.path, c.command)
		wait()
		u, err := n.Underlay()
		must(t, err)
		if got := fmt.Sprint(u); got != c.want {
			t.Errorf("%s: %s, want %s", c.command, got, c.want)
		}
	}
}

// TestWatchAgainAndAgain lets a program remove a route for as long as it is put back.
func TestWatchAgainAndAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "4"})
	l.apply(backend.OnlyVXLAN)
	n := l.nodes[0]
	ctx, cancel := context.WithCancel(t.Context())
	watched := make(chan error)
	var applied atomic.Int32
	var notes atomic.Pointer[[]string]
	go func() {
		watched <- n.Watch(ctx, func() {
			got, err := n.Apply(n.plan)
			if err != nil {
				t.Error(err)
			}
			notes.Store(&got)
			applied.Add(1)
		})
	}()
	removed := 0
	end := time.Now().Add(time.Minute)
	for ; time.Now().Before(end) && (notes.Load() == nil || len(*notes.Load()) == 0); time.Sleep(10 * time.Millisecond) {
		if _, err := netnstest.Try(n.path, "ip", "route", "flush", "proto", "104"); err == nil {
			removed++
		}
	}
	began, before := time.Now(), applied.Load()
	for time.Since(began) < 3*time.Second {
		_, _ = netnstest.Try(n.path, "ip", "route", "flush", "proto", "104")
	}
	if more := int(applied.Load() - before); more > 2+int(time.Since(began)/callPause) {
		t.Errorf("%d more calls in %v", more, time.Since(began))
	}
	cancel()
	must(t, <-watched)
	if got := *notes.Load(); len(got) != 1 || !strings.Contains(got[0], "again and again") {
		t.Errorf("notes %q", got)
	}
}

// TestUnderlay chooses addresses.
func TestUnderlay(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{1, false, "46"})
	n := l.nodes[0]
	l.ip(n.path, "addr add 192.0.2.200/32 dev lo")
	l.ip(n.path, "addr add 2001:db8::dead/64 dev eth0 nodad preferred_lft 0")
	l.ip(n.path, "link add beside type veth peer name beside0")
	l.ip(n.path, "addr add 192.0.2.9/24 dev beside")
	l.ip(n.path, "link add apart type veth peer name apart0")
	l.ip(n.path, "addr add 198.51.100.9/24 dev apart")
	o, err := Open(Config{Netns: n.path, Instance: instance, NodeIPs: []netip.Addr{netip.MustParseAddr("192.0.2.200")}})
	must(t, err)
	defer o.Close()
	for _, c := range []struct {
		o    *Overlay
		want string
	}{{n.Overlay, "[{eth0 192.0.2.1/24 1500 eth0 beside} {eth0 2001:db8::1/64 1500 eth0}]"}, {o, "[{lo 192.0.2.200/32 65536 }]"}} {
		u, err := c.o.Underlay()
		must(t, err)
		if got := fmt.Sprint(u); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
	l.ip(n.path, "addr del 192.0.2.200/32 dev lo")
	if _, err := o.Underlay(); err == nil || !strings.Contains(err.Error(), "no address 192.0.2.200") {
		t.Errorf("an address that is gone: %v", err)
	}
}

// TestTxChecksum switches the offloading of checksums off, which outlives the link.
func TestTxChecksum(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{2, true, "4"})
	l.apply(backend.OnlyVXLAN)
	n, name := l.nodes[0], backend.LinkName(instance, backend.VXLAN, false)
	offloads := func() bool {
		on, err := n.kernel.ethtool(name, unix.ETHTOOL_GTXCSUM, 0)
		must(t, err)
		return on != 0
	}
	if !offloads() {
		t.Error("checksums are not offloaded from the beginning")
	}
	must(t, n.TxChecksum(name, false))
	l.reach("46")
	l.ip(n.path, "link del "+name)
	_, err := n.Apply(n.plan)
	must(t, err)
	if offloads() {
		t.Error("the new link offloads checksums")
	}
	n.reopen()
	_, err = n.Apply(n.plan)
	if must(t, err); !slices.Equal(n.Unsummed(), []string{name}) {
		t.Errorf("after a restart, the links without offloading are %v", n.Unsummed())
	}
	must(t, n.TxChecksum(name, true))
	if !offloads() {
		t.Error("checksums are not offloaded again")
	}
}

// applyIn is the environment variable with the namespace in which a copy of the test program
// applies plans until it is killed.
const applyIn = "HUSK_TEST_APPLY_IN"

const killedPeers = 300

func applyForever(path string) {
	o, err := Open(Config{Netns: path, Instance: instance})
	n := &node{self: backend.Self{Instance: instance, Record: peer.Node{Name: "n1", VXLAN: backend.VXLANOf("n1"), Blocks: []netip.Prefix{block(1, false), block(1, true)}}}}
	if err == nil {
		n.self.Underlay, err = o.Underlay()
	}
	for err == nil {
		if _, err = o.Apply(many(n, killedPeers)); err == nil {
			err = o.Teardown()
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestKilled kills a process at random moments while it applies a plan or removes it.
func TestKilled(t *testing.T) {
	t.Parallel()
	l := newLab(t, layout{1, true, "4"})
	n := l.nodes[0]
	before := n.inventory()
	p := many(n, killedPeers)
	partial := 0
	for round := range 12 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), applyIn+"="+n.path)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		must(t, cmd.Start())
		eventually(t, func() string { // it has begun
			if out, _ := netnstest.Try(n.path, "ip", "-br", "link"); strings.Contains(out, backend.LinkPrefix(instance)) {
				return ""
			}
			return "there is no link: " + stderr.String()
		})
		time.Sleep(time.Duration(rand.IntN(100)) * time.Millisecond)
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		n.reopen()
		n.plan = p
		if round%2 == 1 {
			n.plan = backend.Plan{}
		}
		if diffs, err := n.Verify(p); err != nil || len(diffs) > 0 {
			partial++
		}
		_, err := n.Apply(n.plan)
		must(t, err)
		n.agrees()
	}
	must(t, n.Teardown())
	if diff := cmp.Diff(before, n.inventory()); diff != "" {
		t.Error(diff)
	}
	if partial == 0 {
		t.Error("no plan was applied in part")
	}
}
