package datapath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/rtnetlink"
	"github.com/huskd/husk/internal/pod"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const instance = pod.Instance("be0f")

var subnets = []netip.Prefix{netip.MustParsePrefix("10.88.0.0/16"), netip.MustParsePrefix("fd88::/64")}

// node is a network namespace with a datapath.
type node struct {
	*Datapath
	t    testing.TB
	path string
	base plan.Base
	mode plan.Mode
	pods int
}

func newNode(t testing.TB, mode plan.Mode) *node {
	t.Helper()
	hosttest.Root(t)
	n := &node{t: t, mode: mode, path: namespace(t)}
	d, err := Open(n.path, instance, "")
	must(t, err)
	t.Cleanup(func() { must(t, d.Close()) })
	n.Datapath = d
	n.base = plan.ForNode(plan.BaseConfig{Instance: instance, Tag: d.deletion.tag, Mode: mode, Subnets: subnets, Masquerade: true})
	must(t, d.Ensure(n.base))
	return n
}

func namespace(t testing.TB) string {
	t.Helper()
	path := t.TempDir() + "/net"
	netnstest.Make(t, path)
	return path
}

func (n *node) ip(ns, args string) string {
	n.t.Helper()
	return netnstest.IP(n.t, ns, args)
}

// plan returns the plan of a new pod in a new namespace.
func (n *node) plan(ports ...pod.PortMapping) plan.Plan {
	n.t.Helper()
	return n.planIn(namespace(n.t), ports...)
}

func (n *node) planIn(ns string, ports ...pod.PortMapping) plan.Plan {
	n.pods++
	a := pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Namespace: "default", Name: fmt.Sprint("pod", n.pods)}, Netns: ns, IfName: "eth0", Ports: ports}
	i := n.pods + 1
	return plan.For(plan.Node{Instance: instance, Mode: n.mode, MTU: 1400}, a, []netip.Prefix{
		netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88, byte(i >> 8), byte(i)}), 16),
		netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 1: 0x88, 14: byte(i >> 8), 15: byte(i)}), 64),
	})
}

func (n *node) differences(p plan.Plan) (out []string) {
	n.t.Helper()
	all, err := n.Verify(p)
	must(n.t, err)
	for _, d := range all[p.Sandbox] {
		out = append(out, strings.NewReplacer(p.Veth.Host, "HOST", p.Netns, "NS", p.Veth.HostMAC.String(), "HOSTMAC", p.Veth.PodMAC.String(), "PODMAC").Replace(d.String()))
	}
	slices.Sort(out)
	return out
}

func (n *node) empty() {
	n.t.Helper()
	swept, err := n.Sweep(n.base, nil)
	must(n.t, err)
	if len(swept) > 0 {
		n.t.Errorf("%d objects are left: %v …", len(swept), swept[0])
	}
}

var port = pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}

func TestApplyAndCutCanBeRepeated(t *testing.T) {
	for _, mode := range []plan.Mode{plan.PTP, plan.Bridge} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, mode)
			p, q := n.plan(port), n.plan()
			must(t, n.Apply(q))
			for range 2 {
				must(t, n.Apply(p))
				if diffs := n.differences(p); len(diffs) > 0 {
					t.Errorf("after Apply: %v", diffs)
				}
			}
			index := n.ip(n.path, "-o link show "+p.Veth.Host)[:3]
			must(t, n.Apply(p))
			if again := n.ip(n.path, "-o link show "+p.Veth.Host)[:3]; again != index {
				t.Error("Apply made a new link")
			}
			for range 2 {
				must(t, n.Cut(p))
			}
			if diffs := n.differences(p); !slices.Contains(diffs, "link HOST: marked for deletion") {
				t.Errorf("after Cut: %v", diffs)
			}
			must(t, n.Apply(p)) // as if the process had crashed after Cut
			if diffs := n.differences(p); len(diffs) > 0 {
				t.Errorf("applied after Cut: %v", diffs)
			}
			for range 2 {
				must(t, n.Cut(p))
				must(t, n.Reap())
			}
			if diffs := n.differences(q); len(diffs) > 0 {
				t.Errorf("the other pod: %v", diffs)
			}
			must(t, n.Cut(q))
			must(t, n.Reap())
			n.empty()
		})
	}
}

// TestVerify breaks an attachment in every way, one at a time. Apply repairs each.
func TestVerify(t *testing.T) {
	n := newNode(t, plan.PTP)
	p := n.plan(port)
	must(t, n.Apply(p))
	table := "inet " + instance.Table()
	for _, c := range []struct{ ns, command, want string }{
		{n.path, "ip route del 10.88.0.2 metric 1", "route 10.88.0.2/32 dev HOST src 10.88.0.1: missing"},
		{n.path, "ip -6 route del fd88::2", "route fd88::2/128 dev HOST: missing"},
		{n.path, "ip -6 route del local ::1 dev HOST table local", "route local ::1/128 dev HOST: missing"},
		{n.path, "ip neigh del 10.88.0.2 dev HOST", "neighbour 10.88.0.2 lladdr PODMAC dev HOST: missing"},
		{n.path, "ip neigh replace fd88::2 lladdr 02:00:00:00:00:01 dev HOST nud permanent", "neighbour fd88::2 lladdr PODMAC dev HOST: missing"},
		{n.path, "sysctl -q net.ipv4.conf.HOST.route_localnet=0", "link HOST: route_localnet is off"},
		{n.path, "sysctl -q net.ipv4.conf.HOST.forwarding=0", "link HOST: doesn't forward"},
		{n.path, "nft delete element " + table + " pods4 { 10.88.0.2 }", "element pods4 { 10.88.0.2 }: missing"},
		{n.path, "nft delete element " + table + " sources6 { HOST . fd88::2 }", "element sources6 { HOST . fd88::2 }: missing"},
		{n.path, "nft delete element " + table + " ports4 { tcp . 8080 }", "element ports4 { tcp . 8080 : 10.88.0.2 . 80 }: missing"},
		{n.path, "nft delete element " + table + " hairpin6 { fd88::2 . fd88::2 }", "element hairpin6 { fd88::2 . fd88::2 }: missing"},
		{p.Netns, "ip addr del 10.88.0.2/32 dev eth0", "address 10.88.0.2/32 dev eth0 in NS: missing"},
		{p.Netns, "ip -6 addr del fd88::2/128 dev eth0", "address fd88::2/128 dev eth0 in NS: missing"},
		{p.Netns, "ip route del 169.254.1.1", "route 169.254.1.1/32 dev eth0 in NS: missing"},
		{p.Netns, "ip route del default", "route 0.0.0.0/0 via 169.254.1.1 dev eth0 in NS: missing"},
		{p.Netns, "ip -6 route del default", "route ::/0 via fe80::1 dev eth0 in NS: missing"},
		{p.Netns, "ip neigh del 169.254.1.1 dev eth0", "neighbour 169.254.1.1 lladdr HOSTMAC dev eth0 in NS: missing"},
	} {
		command := strings.ReplaceAll(c.command, "HOST", p.Veth.Host)
		netnstest.Run(t, c.ns, strings.Fields(command)...)
		if got := n.differences(p); !slices.Contains(got, c.want) || len(got) > 4 { // without its last address, a link has no routes
			t.Errorf("%s: %q, want %q", command, got, c.want)
		}
		must(t, n.Apply(p))
		if got := n.differences(p); len(got) > 0 {
			t.Fatalf("%s: after the repair, still %q", command, got)
		}
	}
	for _, c := range []struct{ ns, command, want string }{
		{n.path, "ip link set HOST down", "link HOST: down"},
		{p.Netns, "ip link set eth0 down", "link eth0 in NS: down"},
		{p.Netns, "ip link set eth0 address 02:00:00:00:00:01", "link eth0 in NS: MAC 02:00:00:00:00:01, not PODMAC"},
		{n.path, "ip link del HOST", "link HOST: missing"},
	} {
		command := strings.ReplaceAll(c.command, "HOST", p.Veth.Host)
		netnstest.Run(t, c.ns, strings.Fields(command)...)
		if got := n.differences(p); !slices.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", command, got, c.want)
		}
		must(t, n.Apply(p))
		if got := n.differences(p); len(got) > 0 {
			t.Fatalf("%s: after the repair, still %q", command, got)
		}
	}
	for _, c := range []struct{ ns, command, want string }{
		{n.path, "ip link set HOST mtu 1300", "link HOST: MTU 1300, not 1400"},
		{n.path, "ip addr add 10.66.0.1/32 dev HOST", "address 10.66.0.1/32 dev HOST: foreign"},
		{n.path, fmt.Sprintf("ip route add 10.66.0.2/32 dev HOST proto %d", plan.Protocol), "route 10.66.0.2/32 dev HOST: foreign"},
	} {
		command := strings.ReplaceAll(c.command, "HOST", p.Veth.Host)
		netnstest.Run(t, c.ns, strings.Fields(command)...)
		if got := n.differences(p); !slices.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", command, got, c.want)
		}
	}
	netnstest.Run(t, n.path, "nft", "flush", "ruleset")
	if got := n.differences(p); !slices.Contains(got, "element pods4 { 10.88.0.2 }: missing") {
		t.Errorf("without a table: %q", got)
	}
	must(t, netns.Remove(p.Netns))
	if got := n.differences(p); !slices.Contains(got, "network namespace NS: missing") {
		t.Errorf("without namespace: %q", got)
	}
}

// TestApplyReplacesVethOfOtherNamespace checks that after a restart of the sandbox a new veth
// replaces the old one, even if that is in a namespace which a process keeps alive.
func TestApplyReplacesVethOfOtherNamespace(t *testing.T) {
	n := newNode(t, plan.PTP)
	p := n.plan()
	must(t, n.Apply(p))
	p.Netns = namespace(t)
	must(t, n.Apply(p))
	if got := n.differences(p); len(got) > 0 {
		t.Errorf("differences: %q", got)
	}
	taken := n.plan()
	n.ip(taken.Netns, "link add eth0 type veth peer name eth9")
	if err := n.Apply(taken); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("a namespace with its own eth0: %v", err)
	}
}

func TestManyElements(t *testing.T) {
	n := newNode(t, plan.PTP)
	var all []plan.Element
	for i := range 20000 {
		addr := netip.AddrFrom4([4]byte{10, 88, byte(i >> 8), byte(i)})
		all = append(all, plan.Element{Set: "pods4", Addr: addr},
			plan.Element{Set: "sources4", Link: fmt.Sprintf("hkbe0f%09d", i), Addr: addr},
			plan.Element{Set: "ports4", Protocol: pod.TCP, Port: uint16(i + 1), To: netip.AddrPortFrom(addr, 80)})
	}
	for range 2 {
		must(t, n.table.add(all))
	}
	got, err := n.table.list()
	must(t, err)
	want := map[plan.Element]bool{}
	for _, e := range all {
		want[e] = true
	}
	for _, e := range got {
		if !want[e] {
			t.Fatalf("listed: %v", e)
		}
	}
	if len(got) != len(all) {
		t.Errorf("%d elements, want %d", len(got), len(all))
	}
	must(t, n.table.remove(all[:30000]))
	must(t, n.table.remove(all[30000-10:])) // some of them are gone
	n.empty()
}

func TestTableIsUpgraded(t *testing.T) {
	n := newNode(t, plan.PTP)
	want := netnstest.Run(t, n.path, "nft", "list", "ruleset")
	for _, old := range []string{
		"add table inet husk-be0f { set pods4 { type ipv6_addr; }; chain old { }; }",
		"add table inet husk-be0f { map ports4 { type inet_service : ipv4_addr; }; chain guard { type filter hook input priority 0; }; }",
	} {
		netnstest.Run(t, n.path, "nft", "delete", "table", "inet", "husk-be0f")
		netnstest.Run(t, n.path, "nft", old)
		must(t, n.Ensure(n.base))
		if got := netnstest.Run(t, n.path, "nft", "list", "ruleset"); got != want {
			t.Errorf("after %s:\n%s\nwant:\n%s", old, got, want)
		}
	}
	// A table of a version without the chain input keeps its elements.
	of := []plan.Element{{Set: "pods4", Addr: netip.MustParseAddr("10.88.0.2")}, {Set: "sources6", Link: "hkbe0f1", Addr: netip.MustParseAddr("fd88::2")},
		{Set: "addrport4", Addr: netip.MustParseAddr("192.0.2.1"), Protocol: pod.TCP, Port: 80, To: netip.MustParseAddrPort("10.88.0.2:8080")}}
	must(t, n.table.add(of))
	netnstest.Run(t, n.path, "nft", "flush", "chain", "inet", "husk-be0f", "guard")
	netnstest.Run(t, n.path, "nft", "delete", "chain", "inet", "husk-be0f", "guard")
	netnstest.Run(t, n.path, "nft", "add chain inet husk-be0f guard { type filter hook prerouting priority raw; }")
	must(t, n.Ensure(n.base))
	got, err := n.table.list()
	must(t, err)
	if diff := cmp.Diff(of, got, cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}), cmpopts.SortSlices(func(a, b plan.Element) bool { return a.Set < b.Set })); diff != "" {
		t.Errorf("elements after the upgrade: %s", diff)
	}
	must(t, n.table.remove(of))
	if got := netnstest.Run(t, n.path, "nft", "list", "ruleset"); got != want {
		t.Errorf("after the upgrade:\n%s\nwant:\n%s", got, want)
	}
	if !n.TableExists() {
		t.Error("the table doesn't exist")
	}
	netnstest.Run(t, n.path, "nft", "flush", "ruleset")
	if n.TableExists() {
		t.Error("the table exists")
	}
	if err := n.table.add([]plan.Element{{Set: "pods4", Addr: netip.MustParseAddr("10.88.0.2")}}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("add without table: %v", err)
	}
	must(t, n.Ensure(n.base))
	must(t, n.table.add([]plan.Element{{Set: "pods4", Addr: netip.MustParseAddr("10.88.0.2")}}))
}

// TestRulesAreAsDocumented compares the comment in rules.go with nft's output.
func TestRulesAreAsDocumented(t *testing.T) {
	n := newNode(t, plan.PTP)
	got := netnstest.Run(t, n.path, "nft", "list", "table", "inet", instance.Table())
	for _, want := range []string{
		`iifname "hkbe0f*" jump from-pod`, `iifname "hkbrbe0f" jump from-pod`, "iifname . ip saddr @sources4 ip daddr != 127.0.0.0/8 accept", "icmpv6 type nd-router-advert drop", "icmpv6 type nd-redirect drop",
		"iifname . ip6 saddr @sources6 accept", "ip6 saddr fe80::/10 jump discovery", "ip6 saddr :: jump discovery",
		"icmpv6 type nd-neighbor-solicit accept", "icmpv6 type mld2-listener-report accept",
		`iifname != "lo" jump from-outside`, `ip saddr @blocks4 counter name "spoofed" drop`, `ip6 saddr @pods6 counter name "spoofed" drop`, "fib daddr type local jump hostports",
		"dnat ip to ip daddr . meta l4proto . th dport map @addrport4", "dnat ip to meta l4proto . th dport map @ports4",
		"dnat ip6 to ip6 daddr . meta l4proto . th dport map @addrport6", "dnat ip6 to meta l4proto . th dport map @ports6",
		"ip saddr 127.0.0.0/8 ip daddr @pods4 snat ip to 10.88.0.1", "ip6 saddr ::1 ip6 daddr @pods6 snat ip6 to fd88::1",
		"ip saddr . ip daddr @hairpin4 snat ip to 10.88.0.1", `oifname "hkbrbe0f" ct status dnat ip saddr @pods4 snat ip to 10.88.0.1`,
		"ip saddr @pods4 ip daddr != @direct4 masquerade fully-random", "ip6 saddr @pods6 ip6 daddr != @direct6 masquerade fully-random",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no rule %q in\n%s", want, got)
		}
	}
	if strings.Contains(got, `"hnbe0f*"`) || strings.Contains(got, "notrack") || strings.Contains(got, "dport 53") {
		t.Error("a node by itself, without a DNS server, has rules for packets to these")
	}
	names := n.base
	for _, c := range [][3]string{{"169.254.64.1", "ip", "asking4"}, {"fd68:7573:6b01::1", "ip6", "asking6"}} {
		names.Table.Resolver = netip.MustParseAddr(c[0])
		must(t, n.Ensure(names))
		got = netnstest.Run(t, n.path, "nft", "list", "table", "inet", instance.Table())
		for _, start := range []string{"udp dport 53", "tcp dport 53 tcp flags & syn == syn"} {
			if want := c[1] + " daddr " + c[0] + " " + start + " update @" + c[2] + " { " + c[1] + " saddr limit rate over 2000/second burst 2000 packets } drop"; !strings.Contains(got, want) {
				t.Errorf("no rule %q in\n%s", want, got)
			}
		}
		if diffs, err := n.table.compare(names.Table); err != nil || len(diffs) > 0 {
			t.Errorf("differences %v, %v", diffs, err)
		}
	}
	joined := n.base
	joined.Sysctls = nil
	joined.Table.NodeLinks, joined.Table.TunnelPort, joined.Table.NodePorts, joined.Table.Cluster = "hnbe0f", 8472, plan.NodePorts(true), subnets
	joined.Table.Routers = []netip.Addr{netip.MustParseAddr("192.0.2.254")}
	must(t, n.Ensure(joined))
	got = netnstest.Run(t, n.path, "nft", "list", "table", "inet", instance.Table())
	if strings.Contains(got, "@underlay4") || strings.Contains(got, "@self4") {
		t.Errorf("a node that knows no others has rules about them:\n%s", got)
	}
	joined.Table.Nodes = &plan.Nodes{Self: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Others: []netip.Addr{netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("2001:db8::2")}, Links: []string{"eth0"}}
	must(t, n.RepairBase(joined, nil))
	if diffs, err := n.VerifyBase(joined); err != nil || len(diffs) > 0 {
		t.Errorf("%v, %v", diffs, err)
	}
	if known, err := n.Nodes(); err != nil || !known.Equal(joined.Table.Nodes) {
		t.Errorf("the kernel has the nodes %+v, %v", known, err)
	}
	if got := netnstest.Run(t, n.path, "nft", "list", "set", "inet", instance.Table(), "underlay4"); !strings.Contains(got, `"eth0"`) {
		t.Errorf("nft lists the links as %s", got)
	}
	netnstest.Run(t, n.path, "nft", "delete", "element", "inet", instance.Table(), "nodes4", "{ 192.0.2.2 }")
	if diffs, err := n.VerifyBase(joined); err != nil || len(diffs) != 1 || diffs[0].String() != "element nodes4 { 192.0.2.2 }: missing" {
		t.Errorf("without an element: %v, %v", diffs, err)
	}
	got = netnstest.Run(t, n.path, "nft", "list", "table", "inet", instance.Table())
	for _, want := range []string{`iifname "hnbe0f*" jump from-node`, "udp dport 8472 fib daddr type local notrack", "udp dport 8472 notrack",
		"ip saddr @blocks4 drop", "ip saddr @pods4 drop", "ip daddr @blocks4 accept", "ip daddr @pods4 accept",
		`ip saddr @cluster4 iifname != @underlay4 counter name "spoofed" drop`, "type filter hook forward priority filter - 2", "type filter hook input priority filter - 2",
		"meta l4proto . th dport @node-ports jump to-node", "meta l4proto . th dport @node-ports jump at-node", "meta l4proto ipencap jump to-node", "meta l4proto ipv6 jump at-node",
		"ip daddr @nodes4 jump node-port", "ip6 daddr @nodes6 jump node-port", "jump node-port", "ct direction reply return", `iifname "hkbe0f*" counter name "pod-to-node" drop`,
		`iifname "hkbrbe0f" counter name "pod-to-node" drop`, `ct status dnat counter name "pod-to-node" drop`, "ip saddr @nodes4 ip daddr @self4 return", "udp dport 51820 return", "udp dport 51822 return",
		"tcp dport 179 ip daddr 192.0.2.254 jump node-port", "udp dport 3784 ip daddr 192.0.2.254 jump node-port",
		`udp dport 8472 iifname "hkbe0f*" counter name "pod-to-node" drop`, `udp dport 8473 iifname "hkbrbe0f" counter name "pod-to-node" drop`,
		"tcp dport 179 ip saddr 192.0.2.254 return", "udp dport 3784 ip saddr 192.0.2.254 return", `counter name "no-node" drop`,
		"ip6 saddr @blocks6 drop", "ip6 saddr @pods6 drop", "ip6 daddr @blocks6 accept", "ip6 daddr @pods6 accept",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no rule %q in\n%s", want, got)
		}
	}
	bare := n.base
	bare.Table.Masquerade = false
	must(t, n.Ensure(bare))
	if got := netnstest.Run(t, n.path, "nft", "list", "table", "inet", instance.Table()); strings.Contains(got, "masquerade") {
		t.Error("it still masquerades")
	}
}

// TestSubnetSets changes the sets of subnets, in one direction and back, including subnets that are
// neighbours and one that ends with the last address of all.
func TestSubnetSets(t *testing.T) {
	n := newNode(t, plan.PTP)
	for _, c := range []struct{ subnets, blocks4, blocks6 string }{
		{"10.0.0.0/24 10.0.1.0/24 fd00::/64", "10.0.0.0/24, 10.0.1.0/24", "fd00::/64"},
		{"10.0.0.128/25 10.0.1.0/24", "10.0.0.128/25, 10.0.1.0/24", ""},
		{"0.0.0.0/0", "0.0.0.0/0", ""},
		{"192.0.0.0/2 10.0.1.0/24 8000::/1", "10.0.1.0/24, 192.0.0.0/2", "8000::/1"},
		{"", "", ""},
		{"10.0.0.0/8", "10.0.0.0/8", ""},
		{"10.0.0.0/24 10.0.1.0/24 fd00::/64", "10.0.0.0/24, 10.0.1.0/24", "fd00::/64"},
	} {
		b := n.base
		b.Table.Blocks = nil
		for _, s := range strings.Fields(c.subnets) {
			b.Table.Blocks = append(b.Table.Blocks, netip.MustParsePrefix(s))
		}
		for range 2 {
			must(t, n.Ensure(b))
		}
		for set, want := range map[string]string{"blocks4": c.blocks4, "blocks6": c.blocks6} {
			got := netnstest.Run(t, n.path, "nft", "list", "set", "inet", instance.Table(), set)
			_, elements, _ := strings.Cut(got, "elements = {")
			elements, _, _ = strings.Cut(elements, "}")
			if elements = strings.Join(strings.Fields(elements), " "); elements != want {
				t.Errorf("%q: %s has %q, want %q", c.subnets, set, elements, want)
			}
		}
	}
}

// TestSweepBase retires the subnets of a base one by one. What another one needs, or others made,
// stays.
func TestSweepBase(t *testing.T) {
	n := newNode(t, plan.PTP)
	cluster := []netip.Prefix{netip.MustParsePrefix("10.88.0.0/15")}
	c := plan.BaseConfig{Instance: instance, Tag: n.deletion.tag, Mode: plan.PTP, Subnets: subnets, Cluster: cluster}
	resolvers := plan.Resolvers(instance)
	must(t, n.Ensure(plan.ForNode(c)))
	n.ip(n.path, fmt.Sprintf("route add unreachable 10.99.0.0/16 proto %d metric 7", plan.Protocol))
	show := func() string {
		var out []string
		for _, r := range strings.Split(n.ip(n.path, "route")+n.ip(n.path, "-6 route show type unreachable")+n.ip(n.path, "-o addr show dev lo"), "\n") {
			for _, f := range strings.Fields(r) {
				if strings.Contains(f, "/") && f != "127.0.0.1/8" && f != "::1/128" {
					out = append(out, f)
				}
			}
		}
		return strings.Join(out, " ")
	}
	for _, step := range []struct {
		change func()
		want   string
	}{
		{func() {}, "10.88.0.0/16 10.88.0.0/15 10.99.0.0/16 fd88::/64 10.88.0.1/32 fd88::1/128"},
		{func() {
			c.Subnets, c.Leased = subnets[1:], map[plan.Mode][]netip.Prefix{plan.PTP: subnets[:1]}
		}, "10.88.0.0/16 10.88.0.0/15 10.99.0.0/16 fd88::/64 10.88.0.1/32 fd88::1/128"},
		{func() { c.Leased = nil }, "10.88.0.0/15 10.99.0.0/16 fd88::/64 fd88::1/128"},
		{func() { c.Subnets = subnets }, "10.88.0.0/16 10.88.0.0/15 10.99.0.0/16 fd88::/64 10.88.0.1/32 fd88::1/128"},
		{func() { c.Cluster = nil }, "10.88.0.0/16 10.99.0.0/16 fd88::/64 10.88.0.1/32 fd88::1/128"},
		{func() { c.Resolver = resolvers[0] }, "10.88.0.0/16 10.99.0.0/16 fd88::/64 10.88.0.1/32 " + resolvers[0].String() + "/32 fd88::1/128"},
		{func() { c.Resolver = resolvers[1] }, "10.88.0.0/16 10.99.0.0/16 fd88::/64 10.88.0.1/32 " + resolvers[1].String() + "/128 fd88::1/128"},
		{func() { c.Resolver = netip.Addr{} }, "10.88.0.0/16 10.99.0.0/16 fd88::/64 10.88.0.1/32 fd88::1/128"},
		{func() { c.Resolver = resolvers[0] }, "10.88.0.0/16 10.99.0.0/16 fd88::/64 10.88.0.1/32 " + resolvers[0].String() + "/32 fd88::1/128"},
	} {
		step.change()
		b := plan.ForNode(c)
		must(t, n.Ensure(b))
		must(t, n.SweepBase(b))
		if got := show(); got != step.want {
			t.Errorf("got %s, want %s", got, step.want)
		}
	}
	must(t, n.Teardown())
	if got := show(); got != "10.99.0.0/16" {
		t.Errorf("after Teardown, %s is left", got)
	}
}

func TestErrorsIncludeKernelMessage(t *testing.T) {
	n := newNode(t, plan.PTP)
	must(t, n.withConn(func(c *nlsock.Conn) error {
		bad := plan.Route{Kind: plan.Unicast, Dst: netip.MustParsePrefix("10.1.1.1/16"), Link: "lo"}
		err := c.Do(rtnetlink.Route(unix.RTM_NEWROUTE, 1, bad))[0].Err
		if !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "Invalid prefix") {
			t.Errorf("got %v", err)
		}
		if _, err := rtnetlink.LinkByName(c, "nothere"); !errors.Is(err, unix.ENODEV) {
			t.Errorf("got %v", err)
		}
		return nil
	}))
	if _, err := Open(n.path, "bad", ""); err == nil {
		t.Error("an invalid instance is accepted")
	}
	if _, err := Open("/nowhere", instance, ""); err == nil {
		t.Error("a missing namespace is accepted")
	}
}

func FuzzElement(f *testing.F) {
	f.Add("hkbe0f012345678", []byte{10, 0, 0, 1}, uint16(80), uint16(8080))
	f.Add("", []byte("0123456789abcdef"), uint16(0), uint16(65535))
	t := &table{sets: map[string]plan.Set{}}
	for _, s := range plan.Sets() {
		t.sets[s.Name()] = s
	}
	f.Fuzz(func(tt *testing.T, link string, ip []byte, port, to uint16) {
		addr, ok := netip.AddrFromSlice(ip)
		if !ok || len(link) > 15 || strings.Contains(link, "\x00") {
			return
		}
		for name, s := range t.sets {
			if s.Six != addr.Is6() {
				continue
			}
			e := plan.Element{Set: name}
			for _, field := range append(slices.Clone(s.Key), s.Value...) {
				switch field {
				case plan.FieldLink:
					e.Link = link
				case plan.FieldAddr:
					e.Addr = addr
				case plan.FieldPeer:
					e.Peer = addr
				case plan.FieldProtocol:
					e.Protocol = pod.UDP
				case plan.FieldPort:
					e.Port = port
				case plan.FieldToPort:
					e.To = netip.AddrPortFrom(addr, to)
				}
			}
			key, value := t.encode(e)
			if got := t.decode(name, key, value); got != e {
				tt.Fatalf("got %+v, want %+v", got, e)
			}
			t.decode(name, ip, []byte(link)) // content added by others must not crash it
		}
	})
}

// FuzzAnswers checks that malformed answers from a socket don't crash the parsers.
func FuzzAnswers(f *testing.F) {
	f.Add([]byte{})
	f.Add(rtnetlink.GetLink("eth0", 3).Serialize()[unix.SizeofNlMsghdr:])
	f.Fuzz(func(_ *testing.T, data []byte) {
		_, _ = rtnetlink.ParseLink(data)
	})
}
