package preflight

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/network/service/placement"
	"github.com/huskd/husk/internal/pod"
)

const instance = pod.Instance("be0f")

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a network namespace.
type node struct {
	t    *testing.T
	path string
}

func newNode(t *testing.T) node {
	t.Helper()
	n := node{t, t.TempDir() + "/node"}
	netnstest.Make(t, n.path)
	return n
}

func (n node) run(args ...string) string {
	n.t.Helper()
	return netnstest.Run(n.t, n.path, args...)
}

func (n node) sh(commands ...string) {
	n.t.Helper()
	for _, c := range commands {
		n.run("sh", "-c", c)
	}
}

func (n node) firewalls(mode plan.Mode) (out []BlockingFirewall) {
	n.t.Helper()
	must(n.t, netns.Do(n.path, func() (err error) {
		out, err = ForwardPolicy(instance, mode)
		return err
	}))
	return out
}

// TestForwardPolicy sets policies as other programs do, and runs the suggested commands literally.
func TestForwardPolicy(t *testing.T) {
	for _, c := range []struct {
		name  string
		setup []string
		where []string
	}{
		{"nothing", nil, nil},
		{"accept", []string{"iptables-legacy -P FORWARD ACCEPT", "nft add table ip f", "nft 'add chain ip f c { type filter hook forward priority 0; }'"}, nil},
		{"legacy", []string{"iptables-legacy -P FORWARD DROP"}, []string{"iptables-legacy table filter, chain FORWARD"}},
		{"legacy IPv6", []string{"ip6tables-legacy -P FORWARD DROP"}, []string{"ip6tables-legacy table filter, chain FORWARD"}},
		{"legacy with rules of others", []string{
			"iptables-legacy -P FORWARD DROP", "iptables-legacy -N DOCKER-USER", "iptables-legacy -A FORWARD -j DOCKER-USER",
			"iptables-legacy -A FORWARD -i docker0 -j ACCEPT", "iptables-legacy -A FORWARD -i hk+ -p tcp -j ACCEPT",
			"iptables-legacy -A FORWARD -i hk+ -s 10.0.0.0/8 -j ACCEPT", "iptables-legacy -A FORWARD -i hk+ -m state --state NEW -j ACCEPT",
			"iptables-legacy -A FORWARD ! -i hk+ -j ACCEPT", "iptables-legacy -A FORWARD -o hk+ -j DROP", "iptables-legacy -A INPUT -i hk+ -j ACCEPT",
			"iptables-legacy -A FORWARD -i hkbe0f -j ACCEPT", "iptables-legacy -A FORWARD -i hkbe0fa+ -j ACCEPT",
		}, []string{"iptables-legacy table filter, chain FORWARD"}},
		{"legacy, let through by a wider rule", []string{"iptables-legacy -P FORWARD DROP", "iptables-legacy -A FORWARD -i hk+ -j ACCEPT", "iptables-legacy -A FORWARD -o hk+ -j ACCEPT"}, nil},
		{"nft", []string{"nft add table inet fw", "nft 'add chain inet fw forward { type filter hook forward priority 10; policy drop; }'"}, []string{"nftables table inet fw, chain forward"}},
		{"nft of one family", []string{"nft add table ip6 fw", "nft 'add chain ip6 fw forward { type filter hook forward priority 0; policy drop; }'"}, []string{"nftables table ip6 fw, chain forward"}},
		{"nft with rules of others", []string{
			"nft add table inet fw", "nft 'add chain inet fw forward { type filter hook forward priority 0; policy drop; }'",
			"nft add rule inet fw forward ct state established accept", "nft 'add rule inet fw forward iifname \"hk*\" tcp dport 80 accept'",
			"nft 'add rule inet fw forward oifname \"hk*\" drop'", "nft 'add rule inet fw forward iifname != \"hk*\" accept'", "nft 'add rule inet fw forward oifname \"eth0\" accept'",
		}, []string{"nftables table inet fw, chain forward"}},
		{"other hooks", []string{"nft add table inet fw", "nft 'add chain inet fw in { type filter hook input priority 0; policy drop; }'", "nft 'add chain inet fw out { type filter hook output priority 0; policy drop; }'"}, nil},
		{"iptables-nft", []string{"iptables-nft -P FORWARD DROP"}, []string{"nftables table ip filter, chain FORWARD"}},
		{"all at once", []string{"iptables-nft -P FORWARD DROP", "iptables-legacy -P FORWARD DROP", "ip6tables-legacy -P FORWARD DROP"}, []string{
			"nftables table ip filter, chain FORWARD", "iptables-legacy table filter, chain FORWARD", "ip6tables-legacy table filter, chain FORWARD"}},
	} {
		for _, mode := range []plan.Mode{plan.PTP, plan.Bridge} {
			t.Run(fmt.Sprint(c.name, " ", mode), func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				n.sh(c.setup...)
				before := n.run("nft", "list", "ruleset")
				found := n.firewalls(mode)
				if after := n.run("nft", "list", "ruleset"); after != before {
					t.Errorf("ForwardPolicy changed the rules:\n%s", after)
				}
				var where []string
				for _, b := range found {
					where = append(where, b.Where)
					if !strings.HasSuffix(b.String(), " drops forwarded packets") {
						t.Errorf("finding %q", b)
					}
				}
				if fmt.Sprint(where) != fmt.Sprint(c.where) {
					t.Errorf("found %q, want %q", where, c.where)
				}
				for _, b := range found {
					n.sh(b.Fix...)
				}
				if left := n.firewalls(mode); len(left) > 0 {
					t.Errorf("not fixed by %q: %q", found, left)
				}
			})
		}
	}
}

// TestForwardPolicyCreatesNoLegacyTable guards against asking the kernel for a table, which creates
// it.
func TestForwardPolicyCreatesNoLegacyTable(t *testing.T) {
	n := newNode(t)
	n.firewalls(plan.PTP)
	for _, file := range []string{"ip_tables_names", "ip6_tables_names"} {
		if got := n.run("cat", "/proc/net/"+file); got != "" {
			t.Errorf("%s: %s", file, got)
		}
	}
}

func TestOverlap(t *testing.T) {
	n := newNode(t)
	const tag = uint32('h')<<24 | 'u'<<16 | 0xbe0f
	n.sh("ip link add hkbe0f012345678 type veth peer name up0", "ip link set up0 up", "ip link set hkbe0f012345678 up",
		"ip addr add 10.1.0.1/24 dev up0", "ip route add 10.2.0.0/16 via 10.1.0.9", "ip route add unreachable 10.3.0.0/24",
		"ip -6 addr add fd01::1/64 dev up0 nodad", "ip route add default via 10.1.0.9", "ip route add 128.0.0.0/1 via 10.1.0.9",
		"ip route add 10.4.0.1/32 dev hkbe0f012345678", "ip addr add 10.4.1.1/32 dev hkbe0f012345678",
		fmt.Sprintf("ip route add unreachable 10.5.0.0/24 proto %d metric %d", plan.Protocol, tag), "ip addr add 10.5.0.1/32 dev lo",
		fmt.Sprintf("ip route add unreachable 10.6.0.0/24 proto %d metric %d", plan.Protocol, tag+1),
		fmt.Sprintf("ip route add unreachable 10.8.0.0/16 proto %d metric %d", plan.Protocol, plan.Remainder.Metric(tag)), "ip addr add 10.8.0.1/32 dev lo",
		"ip link add hnbe0fvx type veth peer name hnbe10vx", "ip link set hnbe0fvx up", "ip link set hnbe10vx up",
		"ip addr add 10.9.0.0/32 dev hnbe0fvx", "ip addr add 10.10.0.0/32 dev hnbe10vx", "ip route add 10.9.1.0/24 via 10.9.1.0 dev hnbe0fvx onlink",
		fmt.Sprintf("ip route add 10.11.0.0/24 via 10.1.0.9 proto %d metric %d", plan.Protocol, backend.Tag("be0f")),
		fmt.Sprintf("ip route add 10.12.0.0/24 via 10.1.0.9 proto %d metric %d", plan.Protocol, tag+1))
	for subnet, want := range map[string]string{
		"10.1.0.0/16":   "overlaps address 10.1.0.1/24 of up0",
		"10.2.3.0/24":   "overlaps route 10.2.0.0/16 dev up0",
		"10.0.0.0/14":   "overlaps route 10.2.0.0/16 dev up0",
		"10.3.0.128/25": "overlaps route 10.3.0.0/24:",
		"10.6.0.0/24":   "overlaps route 10.6.0.0/24:",
		"fd01::/48":     "overlaps address fd01::1/64 of up0",
		"127.0.0.0/24":  "overlaps address 127.0.0.1/8 of lo",
		"10.4.0.0/16":   "",
		"10.5.0.0/24":   "",
		"10.8.0.0/24":   "overlaps address 10.8.0.1/32 of lo", // a cluster's subnet has none
		"10.8.1.0/24":   "",
		"10.9.0.0/16":   "",
		"10.10.0.0/24":  "overlaps address 10.10.0.0/32 of hnbe10vx",
		"10.11.0.0/16":  "",
		"10.12.0.0/24":  "overlaps route 10.12.0.0/24 dev up0",
		"200.0.0.0/24":  "",
		"fd02::/64":     "",
	} {
		err := netns.Do(n.path, func() error { return Overlap(instance, "", []netip.Prefix{netip.MustParsePrefix(subnet)}) })
		if (err != nil) != (want != "") || err != nil && (!strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "pod-subnets")) {
			t.Errorf("%s: got %v, want …%s…", subnet, err, want)
		}
	}
	if err := Overlap("bad!", "", nil); err == nil {
		t.Error("an invalid instance is accepted")
	}
}

// TestPlaces checks what is found of a node's addresses, networks and gateways.
func TestPlaces(t *testing.T) {
	n := newNode(t)
	n.sh("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding", "ip link set lo up", "ip link add up0 type veth peer name up1", "ip link set up0 up", "ip link set up1 up",
		"ip addr add 10.1.0.2/24 dev up0", "ip -6 addr add fd01::2/64 dev up0 nodad", "ip addr add 10.7.0.1/32 dev lo",
		"ip route add default via 10.1.0.1", "ip -6 route add default via fd01::1", "ip route add 10.2.0.0/16 via 10.1.0.9 table 77",
		"ip route add 128.0.0.0/1 via 10.1.0.8", "ip route add unreachable 10.3.0.0/24", "ip route add local 10.4.0.0/24 dev lo",
		"ip route add 10.5.0.0/24 nexthop via 10.1.0.6 nexthop via 10.1.0.7")
	wants := map[string]string{
		"10.1.0.2": "is an address of this node on up0", "10.7.0.1": "is an address of this node on lo", "fd01::2": "is an address of this node on up0",
		"10.4.0.9": "is an address of this node on lo", "10.1.0.255": "is a broadcast address of up0", "fd01::": "is a broadcast address of up0",
		"10.1.0.1": "is the address of a gateway of up0", "fd01::1": "is the address of a gateway of up0", "10.1.0.9": "is the address of a gateway of up0",
		"10.1.0.8": "is the address of a gateway of up0", "10.1.0.6": "is the address of a gateway", "10.1.0.7": "is the address of a gateway",
		"10.1.0.77": "is in the network 10.1.0.0/24 of up0", "fd01::77": "is in the network fd01::/64 of up0", "10.2.0.1": "is in the network 10.2.0.0/16 of up0",
		"10.3.0.1": "is in the network 10.3.0.0/24", "10.6.0.1": "", "fd02::1": "", "192.168.0.1": "",
	}
	// The kernel adds routes of IPv6 addresses later.
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		s := placement.Surroundings{}
		must(t, netns.Do(n.path, func() (err error) {
			s.Places, err = Places()
			return err
		}))
		var wrong []string
		for address, want := range wants {
			if got := s.ClusterIP(netip.MustParseAddr(address)); got != want {
				wrong = append(wrong, fmt.Sprintf("%s: got %q, want %q", address, got, want))
			}
		}
		if len(wrong) == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal(strings.Join(wrong, "\n"))
		}
	}
}

func TestPortsFreeOfMissingProtocols(t *testing.T) {
	n := newNode(t)
	must(t, netns.Do(n.path, func() error {
		return PortsFree([]pod.PortMapping{{Protocol: pod.SCTP, HostPort: 80, Port: 80}, {Protocol: pod.TCP, HostIP: netip.MustParseAddr("203.0.113.9"), HostPort: 80, Port: 80}})
	}))
}

// TestKubeProxy makes the rules by which kube-proxy is known, with each kind of iptables. Looking
// for them makes no table.
func TestKubeProxy(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, want string
		commands   []string
	}{
		{"nothing", "", nil},
		{"others", "", []string{"nft add table ip nat", "iptables-legacy -t nat -N KUBE-SERVICES-2", "ip6tables-legacy -N KUBE-SERVICES"}},
		{"nftables", "nftables table kube-proxy", []string{"nft add table ip kube-proxy"}},
		{"iptables-nft", "iptables chain KUBE-SERVICES", []string{"iptables-nft -t nat -N KUBE-SERVICES"}},
		{"iptables-legacy", "iptables-legacy chain KUBE-SERVICES", []string{
			"iptables-legacy -t nat -N KUBE-NODEPORTS", "iptables-legacy -t nat -N KUBE-SERVICES", "iptables-legacy -t nat -N OTHER",
			"iptables-legacy -t nat -A KUBE-SERVICES -d 10.96.0.1 -p tcp --dport 443 -j KUBE-NODEPORTS", "iptables-legacy -t nat -A PREROUTING -j KUBE-SERVICES",
		}},
		{"ip6tables-legacy", "ip6tables-legacy chain KUBE-SERVICES", []string{"ip6tables-legacy -t nat -N KUBE-SERVICES"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.sh(tt.commands...)
			before := n.run("cat", "/proc/net/ip_tables_names", "/proc/net/ip6_tables_names")
			var got string
			must(t, netns.Do(n.path, func() (err error) {
				got, err = KubeProxy()
				return err
			}))
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if after := n.run("cat", "/proc/net/ip_tables_names", "/proc/net/ip6_tables_names"); after != before {
				t.Errorf("looking made tables: %q, before %q", after, before)
			}
		})
	}
}
