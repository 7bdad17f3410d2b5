package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// The subnets of a cluster, and blocks of them.
var (
	cluster = prefixes("10.88.0.0/16", "fd88::/48")
	blocks1 = prefixes("10.88.1.0/24", "fd88:0:0:1::/64")
	blocks2 = prefixes("10.88.2.0/24", "fd88:0:0:2::/64")
)

// clusterConfig returns the configuration of a node of a cluster.
func (l *lab) clusterConfig() Config {
	cfg := l.config()
	cfg.Subnets, cfg.Cluster = nil, cluster
	return cfg
}

// subnetRoutes lists the node's unreachable routes and addresses on lo.
func (l *lab) subnetRoutes() (out []string) {
	l.t.Helper()
	tag, err := plan.Tag("be0f")
	must(l.t, err)
	for _, line := range strings.Split(l.ip(l.node, "route show type unreachable")+l.ip(l.node, "-6 route show type unreachable"), "\n") {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		for rank := plan.Own; rank <= plan.Remainder; rank++ {
			if strings.Contains(line, fmt.Sprint("metric ", rank.Metric(tag))) {
				out = append(out, fmt.Sprint(fields[1], " ", rank))
			}
		}
	}
	for _, f := range strings.Fields(l.ip(l.node, "-o addr show dev lo")) {
		if strings.Contains(f, "/") && f != "127.0.0.1/8" && f != "::1/128" {
			out = append(out, f)
		}
	}
	return out
}

func same(t testing.TB, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestNodeWithoutABlock(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	reason := errors.New("no answer of etcd since 12:00")
	cfg.May = func(b netip.Prefix) error {
		if b.IsValid() {
			return nil
		}
		return reason
	}
	before := l.kernel(cfg.Instance)
	n := l.open(cfg)
	want := "this node has no block of pod addresses yet: no answer of etcd since 12:00"
	a := l.attachment(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	if _, err := n.Attach(t.Context(), a); !errors.Is(err, errdefs.ErrUnavailable) || err.Error() != want {
		t.Errorf("attach: %v", err)
	}
	if err := n.Status(); !errors.Is(err, errdefs.ErrUnavailable) || err.Error() != "pod network: "+want {
		t.Errorf("status: %v", err)
	}
	if s, err := n.Settings(); err != nil || len(s.Subnets)+len(s.Gateways) > 0 || len(s.Cluster) != 2 {
		t.Errorf("settings: %+v, %v", s, err)
	}
	if l.read(l.node, plan.Forward4) != "1" || l.read(l.node, plan.Forward6) != "1" {
		t.Error("the node doesn't forward")
	}
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "fd88::/48 1")

	must(t, n.SetBlocks(t.Context(), blocks1[:1]))
	if _, err := n.Attach(t.Context(), a); !errors.Is(err, errdefs.ErrUnavailable) || !strings.HasPrefix(err.Error(), "this node has no block of IPv6 pod addresses yet") {
		t.Errorf("attach with a block of IPv4 only: %v", err)
	}
	must(t, n.SetBlocks(t.Context(), blocks1))
	must(t, n.Status())
	got, err := n.Attach(t.Context(), a)
	must(t, err)
	if len(got.Addresses) != 2 || !blocks1[0].Contains(got.Addresses[0].Addr()) || !blocks1[1].Contains(got.Addresses[1].Addr()) {
		t.Errorf("attached: %v", got.Addresses)
	}
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "10.88.1.0/24 0", "fd88:0:0:1::/64 0", "fd88::/48 1", "10.88.1.1/32", "fd88:0:0:1::1/128")
	l.serve(a.Netns, "tcp", "a", 80)
	for _, s := range stacks {
		l.reaches("other", l.other, "tcp"+s.suffix, s.node, 8080, "a "+s.other)
		l.reaches("the node", l.node, "tcp"+s.suffix, s.loopback, 8080, "a "+plan.First(blocks1[s.family/6]).String())
	}
	must(t, n.Detach(t.Context(), a))
	reaped(t, n)
	must(t, n.Teardown())
	if err := n.SetBlocks(t.Context(), blocks2); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("after Teardown: %v", err)
	}
	if after := l.kernel(cfg.Instance); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
}

// TestBlocksAreRemembered restarts huskd, and then the node, while the registry is away.
func TestBlocksAreRemembered(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), append(blocks2, blocks1...)))
	n.SetMTU(1402)
	first := l.attach(n)
	must(t, n.SetBlocks(t.Context(), blocks1))
	if second := l.attach(n); !blocks1[0].Contains(second.addr(4)) || !blocks2[1].Contains(first.addr(6)) {
		t.Errorf("attached %v and %v", first.Addresses, second.Addresses)
	}
	routes := l.subnetRoutes()
	usage := n.Usage()
	must(t, n.Close())

	n = l.open(cfg)
	same(t, l.subnetRoutes(), routes...)
	byRange := cmpopts.SortSlices(func(a, b ipam.Usage) bool { return a.Range.Compare(b.Range) < 0 })
	if diff := cmp.Diff(usage, n.Usage(), byRange, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
	g := l.attach(n)
	if !blocks1[0].Contains(g.addr(4)) || g.Attached.MTU != 1402 {
		t.Errorf("after a restart, attached %+v", g.Attached)
	}
	must(t, n.Close())

	for _, family := range []string{"", "-6 "} {
		l.ip(l.node, family+fmt.Sprintf("route flush proto %d", plan.Protocol))
	}
	l.run(l.node, "nft", "flush", "ruleset")
	l.write(l.node, plan.Forward4, "0")
	l.ip(l.node, "addr flush dev lo")
	for _, ns := range []string{first.Netns, g.Netns} {
		must(t, netns.Remove(ns))
	}
	n, err := open(cfg, "another boot")
	must(t, err)
	defer func() { must(t, n.Close()) }()
	must(t, n.Reconcile(t.Context(), nil))
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "10.88.1.0/24 0", "fd88:0:0:1::/64 0", "fd88::/48 1", "10.88.1.1/32", "fd88:0:0:1::1/128")
	if u := n.Usage(); len(u.Ranges) != 2 || u.Ranges[0].Free != u.Ranges[0].Size {
		t.Errorf("usage: %+v", u)
	}
	if g := l.attach(n); !blocks1[0].Contains(g.addr(4)) || g.Attached.MTU != 1402 {
		t.Errorf("after a reboot, attached %+v", g.Attached)
	}
}

// TestRetiredBlock takes a node's block away while a pod has an address of it. The pod works on,
// even when the block is another node's.
func TestRetiredBlock(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	cfg.Quarantine = -1
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	a := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	b := l.attach(n)
	l.serve(a.Netns, "tcp", "a", 80)
	reachable := func() {
		t.Helper()
		for _, s := range stacks {
			l.reaches("other", l.other, "tcp"+s.suffix, s.node, 8080, "a "+s.other)
			l.reaches("b", b.Netns, "tcp"+s.suffix, a.addr(s.family).String(), 80, "a "+b.addr(s.family).String())
			if got, err := l.ask(l.node, "tcp"+s.suffix, s.loopback, 8080); err != nil || !strings.HasPrefix(got, "a ") {
				t.Errorf("from the node's loopback: %q, %v", got, err)
			}
		}
		must(t, n.Reconcile(t.Context(), []pod.Attachment{a.Attachment, b.Attachment}))
	}
	reachable()
	must(t, n.SetBlocks(t.Context(), nil))
	reachable()
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "10.88.1.0/24 0", "fd88:0:0:1::/64 0", "fd88::/48 1", "10.88.1.1/32", "fd88:0:0:1::1/128")
	if _, err := n.Attach(t.Context(), l.attachment()); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("attach: %v", err)
	}
	must(t, n.SetBlocks(t.Context(), blocks2))
	reachable()
	c := l.attach(n)
	l.reaches("c", c.Netns, "tcp4", a.addr(4).String(), 80, "a "+c.addr(4).String())
	l.ip(l.node, fmt.Sprintf("route add 10.88.1.0/24 via %s proto %d metric %d", other4, plan.Protocol, backend.Tag(cfg.Instance)))
	if got := l.ip(l.node, "route get 10.88.1.200"); !strings.Contains(got, "via "+other4) {
		t.Errorf("the route to the block's new node doesn't count: %s", got)
	}
	reachable()
	l.ip(l.node, fmt.Sprintf("route del 10.88.1.0/24 proto %d metric %d", plan.Protocol, backend.Tag(cfg.Instance)))
	c = guest{c.Attachment, nil}
	must(t, n.Detach(t.Context(), c.Attachment))

	must(t, n.SetBlocks(t.Context(), blocks1))
	reachable()
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "10.88.1.0/24 0", "fd88:0:0:1::/64 0", "fd88::/48 1", "10.88.1.1/32", "fd88:0:0:1::1/128")
	must(t, n.SetBlocks(t.Context(), blocks2))
	must(t, n.Detach(t.Context(), a.Attachment))
	reaped(t, n)
	must(t, n.remakeBase(nil))
	if u := n.Blocks(); len(u) != 4 || u[0].Block != blocks1[0] || u[0].Used != 1 || u[1].Block != blocks2[0] || u[1].Used != 0 {
		t.Errorf("while b is left: %v", u)
	}
	must(t, n.Detach(t.Context(), b.Attachment))
	reaped(t, n)
	must(t, n.remakeBase(nil))
	same(t, l.subnetRoutes(), "10.88.0.0/16 1", "10.88.2.0/24 0", "fd88:0:0:2::/64 0", "fd88::/48 1", "10.88.2.1/32", "fd88:0:0:2::1/128")
	if u := n.Blocks(); len(u) != 2 || u[0].Size != 253 {
		t.Errorf("at the end: %v", u)
	}
}

// TestVeto checks that May is asked when addresses are reserved and again before the pod gets them.
func TestVeto(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	var asked, permitted atomic.Int32
	permitted.Store(1 << 20)
	cfg.May = func(netip.Prefix) error {
		if asked.Add(1) > permitted.Load() {
			return errors.New("its lease ran out at 12:00")
		}
		return nil
	}
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	g := l.attach(n)
	before := l.kernel(cfg.Instance)
	used := n.Blocks()
	for i := range asked.Load() {
		permitted.Store(asked.Load() + i)
		_, err := n.Attach(t.Context(), l.attachment())
		if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), "now: its lease ran out at 12:00") {
			t.Errorf("vetoed at question %d: %v", i, err)
		}
		if after := l.kernel(cfg.Instance); after != before {
			t.Errorf("vetoed at question %d: left\n%s\nbefore\n%s", i, after, before)
		}
		if diff := cmp.Diff(fmt.Sprint(used), fmt.Sprint(n.Blocks())); diff != "" {
			t.Error(diff)
		}
	}
	if asked.Load() < 4 {
		t.Errorf("asked %d times", asked.Load())
	}
	if err := n.Status(); err == nil || !strings.Contains(err.Error(), "its lease ran out at 12:00") {
		t.Errorf("status: %v", err)
	}
	must(t, n.Reconcile(t.Context(), []pod.Attachment{g.Attachment}))
	again, err := n.Attach(t.Context(), g.Attachment)
	if err != nil || fmt.Sprint(again) != fmt.Sprint(g.Attached) {
		t.Errorf("the running pod: %v, %v", again, err)
	}
}

func TestBlocksThatCanNotBeUsed(t *testing.T) {
	l := newLab(t)
	n := l.open(l.clusterConfig())
	l.ip(l.node, "route add 10.88.7.0/25 via "+other4)
	err := n.SetBlocks(t.Context(), prefixes("10.88.7.0/24", "10.99.0.0/24", "10.88.1.0/24", "10.88.0.0/15", "10.88.1.128/25", "10.88.1.0/31", "10.88.1.0/24", "fd88:0:0:1::/64"))
	for _, want := range []string{
		"pod subnet 10.88.7.0/24 overlaps route 10.88.7.0/25 dev up0", "block 10.99.0.0/24 is outside the pod subnets [10.88.0.0/16 fd88::/48]",
		"block 10.88.0.0/15 is outside", "block 10.88.1.128/25 overlaps another", "range 10.88.1.0/31: use a prefix length",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
	if g := l.attach(n); !blocks1[0].Contains(g.addr(4)) || len(n.Blocks()) != 2 {
		t.Errorf("attached %v, blocks %v", g.Addresses, n.Blocks())
	}
	if err := n.SetBlocks(t.Context(), prefixes("10.88.1.128/25", "fd88:0:0:1::/64")); !errors.Is(err, errdefs.ErrFailedPrecondition) || !strings.Contains(err.Error(), "10.88.1.128/25 overlaps block 10.88.1.0/24, which pods of this node have") {
		t.Errorf("got %v", err)
	}
	l.ip(l.node, "route del 10.88.7.0/25")
	must(t, n.SetBlocks(t.Context(), prefixes("10.88.7.0/24", "fd88:0:0:1::/64")))
	must(t, n.SetBlocks(t.Context(), prefixes("10.88.7.128/25", "fd88:0:0:1::/64"))) // no pod had the former one
	alone := l.config()
	alone.Dir, alone.Instance = t.TempDir(), "be10"
	alone.Subnets = prefixes("10.77.0.0/24")
	if err := l.open(alone).SetBlocks(t.Context(), blocks1); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("a node by itself: %v", err)
	}
}

func TestShareIsPartlyUsable(t *testing.T) {
	s := share{Blocks: prefixes("10.88.1.0/24", "10.99.0.0/24", "10.88.1.0/25"), Retired: prefixes("10.88.1.0/26", "fd88::/64"), MTU: 1400}
	got, err := s.valid(cluster)
	if fmt.Sprint(got) != "{[10.88.1.0/24] [fd88::/64] 1400}" || err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("got %v, %v", got, err)
	}
	used := []ipam.Usage{{Range: s.Blocks[0], Used: 1}}
	if next, err := got.next(nil, used, nil); err != nil || fmt.Sprint(next) != "{[] [10.88.1.0/24] 1400}" {
		t.Errorf("got %v, %v", next, err)
	}
}

// TestJoinAndLeaveCluster changes a node with a running pod from one by itself to one of a cluster,
// whose subnets contain its own, and back.
func TestJoinAndLeaveCluster(t *testing.T) {
	l := newLab(t)
	alone := l.config()
	alone.Subnets = prefixes("10.88.0.0/16", "fd88::/64")
	n := l.open(alone)
	a := l.attach(n)
	l.serve(a.Netns, "tcp", "a", 7000)
	live := []pod.Attachment{a.Attachment}
	reachable := func() {
		t.Helper()
		must(t, n.Reconcile(t.Context(), live))
		for _, s := range stacks {
			b := l.attach(n)
			l.reaches("b", b.Netns, "tcp"+s.suffix, a.addr(s.family).String(), 7000, "a "+b.addr(s.family).String())
			must(t, n.Detach(t.Context(), b.Attachment))
		}
		must(t, n.Close())
	}
	reachable()
	n = l.open(l.clusterConfig())
	must(t, n.SetBlocks(t.Context(), blocks1))
	reachable()
	n = l.open(alone)
	reachable()
	n = l.open(alone)
	same(t, l.subnetRoutes(), "10.88.0.0/16 0", "fd88::/64 0", "10.88.0.1/32", "fd88::1/128")
	if _, ok := n.ledger.journal.Get(shareKey); ok {
		t.Error("the node still has a share of the cluster")
	}
}

func TestSetMTU(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	g := l.attach(n)
	for mtu, want := range map[int]int{1400: 1400, 0: 1500, 9: 1280, 1 << 20: 65535} {
		n.SetMTU(mtu)
		if s, err := n.Settings(); err != nil || s.MTU != want {
			t.Errorf("MTU %d: settings have %d, %v", mtu, s.MTU, err)
		}
		if got := l.attach(n).Attached.MTU; got != want {
			t.Errorf("MTU %d: the next pod has %d", mtu, got)
		}
	}
	if again, err := n.Attach(t.Context(), g.Attachment); err != nil || again.MTU != 1500 {
		t.Errorf("the former pod: %+v, %v", again, err)
	}
	must(t, n.Close())
	cfg.MTU = 1390
	n = l.open(cfg)
	n.SetMTU(1300)
	if got := l.attach(n).Attached.MTU; got != 1390 {
		t.Errorf("with a configured MTU: %d", got)
	}
}

// TestPodsKeepTheirAddressInTheCluster lets the other host be another node with pods.
func TestPodsKeepTheirAddressInTheCluster(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	cfg.NonMasquerade = prefixes("203.0.113.0/24", "2001:db8:113::/64")
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	g := l.attach(n)
	l.serve(l.other, "tcp", "other", 7000)
	for _, s := range []struct{ family, other, pod, plain, outside string }{
		{"", other4, "10.88.9.5", "203.0.113.1", "198.51.100.1"},
		{"-6 ", other6, "fd88:0:0:9::5", "2001:db8:113::1", "2001:db8:100::1"},
	} {
		for _, a := range []string{s.pod, s.plain, s.outside} {
			l.ip(l.other, s.family+"addr add "+a+" dev lo")
		}
		l.ip(l.node, s.family+"route add "+s.pod+" via "+s.other)
		for _, b := range blocks1 {
			if b.Addr().Is4() == (s.family == "") {
				l.ip(l.other, s.family+"route add "+b.String()+" via "+map[bool]string{true: node4, false: node6}[b.Addr().Is4()])
			}
		}
	}
	for _, s := range stacks {
		own := g.addr(s.family).String()
		to := map[int][3]string{4: {"10.88.9.5", "203.0.113.1", "198.51.100.1"}, 6: {"fd88:0:0:9::5", "2001:db8:113::1", "2001:db8:100::1"}}[s.family]
		l.reaches("a pod", g.Netns, "tcp"+s.suffix, to[0], 7000, "other "+own)
		l.reaches("a pod", g.Netns, "tcp"+s.suffix, to[1], 7000, "other "+own)
		l.reaches("a pod", g.Netns, "tcp"+s.suffix, to[2], 7000, "other "+s.node)
		l.reaches("a pod", g.Netns, "tcp"+s.suffix, s.other, 7000, "other "+s.node)
		for _, nowhere := range map[int][]string{4: {"10.88.200.1", "10.88.1.200"}, 6: {"fd88:0:0:200::1", "fd88:0:0:1::200"}}[s.family] {
			began := time.Now()
			if _, err := l.ask(g.Netns, "tcp"+s.suffix, nowhere, 7000); !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
				t.Errorf("an address of no pod, %s: %v after %v, want unreachable at once", nowhere, err, time.Since(began))
			}
		}
	}
}

// TestPacketsFromOtherNodes sends packets through a link to another node, from and to all kinds of
// addresses.
func TestPacketsFromOtherNodes(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	former := l.attach(n)
	must(t, n.SetBlocks(t.Context(), blocks2))
	local, second := l.attach(n), l.attach(n)
	outside := l.namespace("outside") // reached by the node only
	l.ip(l.node, "link add out0 type veth peer name eth0")
	l.ip(l.node, "link set eth0 netns "+outside)
	l.ip(l.node, "link add hnbe0fvx type veth peer name vx0")
	l.ip(l.node, "link set vx0 netns "+l.other)
	for _, c := range [][2]string{
		{l.node, "addr add 198.51.100.1/24 dev out0"}, {outside, "addr add 198.51.100.2/24 dev eth0"},
		{l.node, "-6 addr add 2001:db8:100::1/64 dev out0 nodad"}, {outside, "-6 addr add 2001:db8:100::2/64 dev eth0 nodad"},
		{l.node, "link set out0 up"}, {outside, "link set eth0 up"}, {l.node, "link set hnbe0fvx up"}, {l.other, "link set vx0 up"},
	} {
		l.ip(c[0], c[1])
	}
	for _, link := range []string{"all", "hnbe0fvx"} { // what it drops must be dropped by us
		l.write(l.node, "net/ipv4/conf/"+link+"/rp_filter", "0")
	}
	mac := strings.Fields(l.ip(l.node, "-br link show hnbe0fvx"))[2]
	for _, c := range []struct {
		from, to string
		at       string // the namespace that has the address to
		arrives  bool
		what     string
	}{
		{"10.88.9.5", local.addr(4).String(), local.Netns, true, "a pod of another node"},
		{"10.88.9.5", former.addr(4).String(), former.Netns, true, "a pod of another node, to a pod of a former block"},
		{"192.0.2.99", local.addr(4).String(), local.Netns, true, "another node"},
		{"10.88.1.77", local.addr(4).String(), local.Netns, true, "a pod of another node, which has the former block now"},
		{"10.88.9.5", "10.88.2.1", l.node, true, "to the address from which the node sends by tunnels"},
		{"10.88.2.77", local.addr(4).String(), local.Netns, false, "an address of this node's block"},
		{second.addr(4).String(), local.addr(4).String(), local.Netns, false, "a local pod"},
		{former.addr(4).String(), local.addr(4).String(), local.Netns, false, "a local pod of a former block"},
		{"10.88.9.5", "198.51.100.2", outside, false, "to outside: no node is another's router"},
		{"10.88.9.5", node4, l.node, false, "to the node's own address, which others reach by its uplink"},
		{"fd88:0:0:9::5", local.addr(6).String(), local.Netns, true, "a pod of another node"},
		{"fd88:0:0:1::77", former.addr(6).String(), former.Netns, true, "a pod of another node, which has the former block now"},
		{"fd88:0:0:2::77", local.addr(6).String(), local.Netns, false, "an address of this node's block"},
		{former.addr(6).String(), local.addr(6).String(), local.Netns, false, "a local pod of a former block"},
		{"fd88:0:0:9::5", "2001:db8:100::2", outside, false, "to outside: no node is another's router"},
	} {
		flag, bits, nodad := "", "/32", ""
		if strings.Contains(c.from, ":") {
			flag, bits, nodad = "-6 ", "/128", " nodad"
		}
		l.ip(l.other, flag+"addr add "+c.from+bits+" dev lo"+nodad)
		l.ip(l.other, flag+"neigh replace "+c.to+" lladdr "+mac+" dev vx0 nud permanent")
		l.ip(l.other, flag+"route replace "+c.to+bits+" dev vx0 src "+c.from)
		if got := l.arrives(c.at, c.from, c.to); got != c.arrives {
			t.Errorf("from %s (%s) to %s: arrives %v, want %v", c.from, c.what, c.to, got, c.arrives)
		}
		l.ip(l.other, flag+"addr del "+c.from+bits+" dev lo")
	}
}

// TestPacketsInTheClear: a node whose peers encrypt takes no packets of their pods by the uplink.
func TestPacketsInTheClear(t *testing.T) {
	for _, encrypted := range []bool{false, true} {
		l := newLab(t)
		cfg := l.clusterConfig()
		cfg.Encrypted = encrypted
		n := l.open(cfg)
		must(t, n.SetBlocks(t.Context(), blocks1))
		local := l.attach(n)
		for _, c := range []struct {
			from    string
			family  int
			arrives bool
		}{{"10.88.9.5", 4, !encrypted}, {"fd88:0:0:9::5", 6, !encrypted}, {"203.0.113.5", 4, true}, {"2001:db8:113::5", 6, true}} {
			to := local.addr(c.family).String()
			flag, bits, via, nodad := "", "/32", node4, ""
			if c.family == 6 {
				flag, bits, via, nodad = "-6 ", "/128", node6, " nodad"
			}
			l.ip(l.other, flag+"addr add "+c.from+bits+" dev lo"+nodad)
			l.ip(l.other, flag+"route replace "+to+bits+" via "+via+" src "+c.from)
			l.ip(l.node, flag+"route replace "+c.from+bits+" dev up0")
			if got := l.arrives(local.Netns, c.from, to); got != c.arrives {
				t.Errorf("encrypted %v, from %s: arrives %v, want %v", encrypted, c.from, got, c.arrives)
			}
		}
		must(t, n.Close())
	}
}

// arrives sends datagrams from an address of the other host, and reports whether one arrives in a
// namespace.
func (l *lab) arrives(at, from, to string) bool {
	l.t.Helper()
	return l.arrivesAt(at, to, from, to)
}

// arrivesAt is arrives for packets whose destination is translated to another address.
func (l *lab) arrivesAt(at, listen, from, to string) (arrived bool) {
	l.t.Helper()
	var in net.PacketConn
	eventually(l.t, "the port is free", func() bool { // another test's child may hold the last socket until it executes its program
		err := netns.Do(at, func() (err error) {
			in, err = net.ListenPacket("udp", net.JoinHostPort(listen, "7000"))
			return err
		})
		if !errors.Is(err, unix.EADDRINUSE) {
			must(l.t, err)
		}
		return err == nil
	})
	defer in.Close()
	must(l.t, netns.Do(l.other, func() error {
		d := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}}
		out, err := d.DialContext(l.t.Context(), "udp", net.JoinHostPort(to, "7000"))
		if err != nil {
			return err
		}
		defer out.Close()
		for end := time.Now().Add(brevity); !arrived && time.Now().Before(end); {
			if _, err := out.Write([]byte("?")); err != nil {
				return err
			}
			_ = in.SetReadDeadline(time.Now().Add(brevity / 4))
			_, by, err := in.ReadFrom(make([]byte, 8))
			arrived = err == nil && by.(*net.UDPAddr).IP.String() == from
		}
		return nil
	}))
	return arrived
}

// TestBlocksChangeUnderLoad attaches and detaches pods while the node's blocks come and go.
func TestBlocksChangeUnderLoad(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	cfg.Quarantine = -1
	n := l.open(cfg)
	before := l.kernel(cfg.Instance)
	all := [][]netip.Prefix{blocks1, append(prefixes(), append(blocks1, blocks2...)...), blocks2, nil}
	must(t, n.SetBlocks(t.Context(), all[0]))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var attached atomic.Int32
	for range 3 {
		a := l.attachment()
		wg.Go(func() {
			for ctx.Err() == nil {
				_, err := n.Attach(t.Context(), a)
				switch {
				case err == nil:
					attached.Add(1)
				case !errors.Is(err, errdefs.ErrUnavailable):
					t.Error(err)
					return
				}
				if err := n.Detach(t.Context(), a); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for i := 0; i < 40 || attached.Load() < 20 && i < 4000; i++ {
		must(t, n.SetBlocks(t.Context(), all[i%len(all)]))
	}
	cancel()
	wg.Wait()
	reaped(t, n)
	must(t, n.SetBlocks(t.Context(), nil))
	must(t, n.remakeBase(nil))
	if u := n.Blocks(); len(u) > 0 {
		t.Errorf("left: %v", u)
	}
	if after := l.kernel(cfg.Instance); after != before {
		t.Errorf("left:\n%s\nbefore:\n%s", after, before)
	}
	t.Logf("%d attachments", attached.Load())
}
