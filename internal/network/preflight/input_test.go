package preflight

import (
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
)

// TestDroppedInput sets rules as people and programs do, and runs the suggested commands literally.
func TestDroppedInput(t *testing.T) {
	packets := []Packet{
		{"UDP port 8472", "eth0", netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_UDP, 8472},
		{"TCP port 179", "eth0", netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_TCP, 179},
		{"protocol 4", "eth0", netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.1"), unix.IPPROTO_IPIP, 0},
		{"UDP port 51820", "eth0", netip.MustParseAddr("2001:db8::2"), netip.MustParseAddr("2001:db8::1"), unix.IPPROTO_UDP, 51820},
	}
	const (
		all  = "UDP port 8472, TCP port 179, protocol 4, UDP port 51820"
		fw   = "nft add table inet fw"
		in   = "nft 'add chain inet fw in { type filter hook input priority 10; policy drop; }'"
		open = "nft 'add chain inet fw in { type filter hook input priority 10; policy accept; }'"
		rule = "nft add rule inet fw in "
	)
	for _, c := range []struct {
		name  string
		setup []string
		drops string
	}{
		{"nothing", nil, ""},
		{"accept", []string{fw, open}, ""},
		{"drop", []string{fw, in}, all},
		{"a usual firewall", []string{fw, in, rule + "ct state established,related accept", rule + "iif lo accept", rule + "tcp dport 22 accept",
			rule + "ip protocol icmp accept", rule + "'ip6 nexthdr icmpv6 accept'", rule + "udp dport { 53, 67-68 } accept"}, all},
		{"verdict map", []string{fw, in, rule + "'ct state vmap { established : accept, related : accept, invalid : drop }'", rule + "udp dport 8472 accept"},
			"TCP port 179, protocol 4, UDP port 51820"},
		{"ports in a set", []string{fw, in, rule + "'udp dport { 53, 8472, 51820 } accept'", rule + "'tcp dport { 100-200 } accept'"}, "protocol 4"},
		{"concatenation", []string{fw, in, rule + "'meta l4proto . th dport { udp . 8472, tcp . 179 } accept'"}, "UDP port 51820"},
		{"by source", []string{fw, in, rule + "ip saddr 192.0.2.0/24 accept"}, "UDP port 51820"},
		{"by another source", []string{fw, in, rule + "ip saddr 198.51.100.0/24 accept"}, all},
		{"by link", []string{fw, in, rule + "'iifname \"eth*\" accept'"}, ""},
		{"by another link", []string{fw, in, rule + "'iifname { \"lo\", \"eth1\" } accept'"}, all},
		{"ip6 only", []string{"nft add table ip6 fw", "nft 'add chain ip6 fw in { type filter hook input priority 0; policy drop; }'"}, "UDP port 51820"},
		{"explicit drop", []string{fw, open, rule + "udp dport 8472 drop", rule + "tcp dport != 179 reject"}, "UDP port 8472"},
		{"rejected by a chain", []string{fw, open, "nft add chain inet fw services", rule + "jump services", "nft add rule inet fw services tcp dport 22 accept",
			"nft add rule inet fw services meta l4proto '{ udp, tcp }' reject"}, "UDP port 8472, TCP port 179, UDP port 51820"},
		{"accepted by a chain", []string{fw, in, "nft add chain inet fw services", rule + "jump services", rule + "drop", "nft add rule inet fw services udp dport 1024-65535 accept"}, "TCP port 179, protocol 4"},
		{"what can't be evaluated may accept", []string{fw, in, rule + "limit rate 10/second accept"}, ""},
		{"what can't be evaluated may not drop", []string{fw, open, rule + "limit rate over 10/second drop"}, ""},
		{"what can't be decoded may accept", []string{fw, in, rule + "ct original ip daddr 192.0.2.1 drop"}, ""},
		{"what can't be decoded in a chain", []string{fw, open, "nft add chain inet fw services", rule + "tcp dport 179 drop", rule + "jump services", rule + "drop",
			"nft add rule inet fw services ct original ip daddr 192.0.2.1 accept"}, "TCP port 179"},
		{"prerouting", []string{fw, "nft 'add chain inet fw pre { type filter hook prerouting priority raw; }'", "nft add rule inet fw pre udp dport 51820 drop"}, "UDP port 51820"},
		{"other hooks", []string{fw, "nft 'add chain inet fw out { type filter hook output priority 0; policy drop; }'", "nft 'add chain inet fw forward { type filter hook forward priority 0; policy drop; }'"}, ""},
		{"iptables-nft", []string{"iptables-nft -P INPUT DROP", "iptables-nft -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
			"iptables-nft -A INPUT -p udp -m udp --dport 8472 -j ACCEPT", "iptables-nft -A INPUT -p tcp -m multiport --dports 22,80 -m comment --comment web -j ACCEPT"}, "protocol 4"},
		{"iptables-nft with REJECT", []string{"iptables-nft -A INPUT -s 198.51.100.0/24 -j ACCEPT", "iptables-nft -A INPUT -p udp --dport 8472 -j REJECT"}, "UDP port 8472"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.sh(c.setup...)
			find := func() (out []DroppedPacket) {
				must(t, netns.Do(n.path, func() (err error) {
					out, err = DroppedInput(packets)
					return err
				}))
				return out
			}
			var names []string
			for _, d := range find() {
				names = append(names, d.Name)
				n.sh(d.Fix)
			}
			if got := strings.Join(names, ", "); got != c.drops {
				t.Errorf("drops %q, want %q", got, c.drops)
			}
			if left := find(); len(left) > 0 {
				t.Errorf("not fixed: %v", left)
			}
		})
	}
}
