package network

import (
	"regexp"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/pod"
)

// TestForeignRulesAreUntouched compares, byte by byte, the rules, links, addresses and routes of
// others on the node before, during and after the use of Husk.
func TestForeignRulesAreUntouched(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		for _, command := range []string{
			"iptables-nft -t nat -N DOCKER", "iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
			"iptables-nft -t nat -A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE", "iptables-nft -N DOCKER-USER", "iptables-nft -A FORWARD -j DOCKER-USER",
			"iptables-legacy -t nat -A PREROUTING -p tcp --dport 9000 -j DNAT --to-destination 172.17.0.2:80", "iptables-legacy -A FORWARD -i br0 -j ACCEPT",
			"ip6tables-legacy -A FORWARD -i br0 -j ACCEPT", "ip6tables-nft -A FORWARD -i br0 -j ACCEPT",
			"nft add table inet other", "nft add chain inet other forward { type filter hook forward priority 0; }", "nft add rule inet other forward ct state invalid drop",
			"nft add table ip husk", "nft add set ip husk pods4 { type ipv4_addr; elements = { 10.0.0.1 }; }",
			"nft add table inet husk-be0", "nft add table inet husk-be0ff",
			"ip link add docker0 type bridge", "ip link set docker0 up", "ip addr add 172.17.0.1/16 dev docker0", "ip neigh add 172.17.0.2 lladdr 02:00:00:00:00:02 dev docker0 nud permanent",
			"ip route add 172.18.0.0/16 via 172.17.0.2 proto 104", "ip route add unreachable 172.19.0.0/16 proto 104 metric 7", "ip rule add from 172.17.0.0/16 table 7 priority 7",
			"ip link add hkaaaa012345678 type veth peer name hkaaab012345678",
		} {
			l.run(l.node, "sh", "-c", strings.NewReplacer("{", "'{", "}", "}'").Replace(command))
		}
		own := regexp.MustCompile(`(?ms)^table inet husk-be0f \{.*?^\}\n`)
		link := regexp.MustCompile(`(?m)^.*(hkbe0f|hkbrbe0f|up0|10\.88\.0|fd88:|fe80:|ff00:|multicast).*\n`)
		count := regexp.MustCompile(`\[\d+:\d+\]|counter packets \d+ bytes \d+|# (Generated|Completed) .*|state [A-Z]+|<[A-Z,_-]*>|(?m)^\d+: |@if\d+`)
		others := func() string {
			all := own.ReplaceAllString(l.run(l.node, "nft", "list", "ruleset"), "")
			for _, command := range []string{"iptables-legacy-save", "ip6tables-legacy-save", "ip -o link", "ip -o addr", "ip route show table all", "ip -6 route show table all", "ip rule", "ip neigh show nud permanent"} {
				all += "\n" + command + "\n" + link.ReplaceAllString(l.run(l.node, strings.Fields(command)...), "")
			}
			return count.ReplaceAllString(all, "")
		}
		before := others()
		check := func(when string) {
			t.Helper()
			if now := others(); now != before {
				t.Errorf("%s:\n%s\nbefore:\n%s", when, now, before)
			}
		}
		n := l.open(cfg)
		check("opened")
		a, b := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}), l.attach(n)
		l.serve(a.Netns, "tcp", "a", 80)
		for _, s := range stacks {
			l.reaches("other", l.other, "tcp"+s.suffix, s.node, 8080, "a "+s.other)
		}
		check("attached")
		must(t, n.Detach(t.Context(), b.Attachment))
		must(t, n.Reconcile(t.Context(), []pod.Attachment{a.Attachment}))
		check("reconciled")
		must(t, n.Detach(t.Context(), a.Attachment))
		reaped(t, n)
		must(t, n.Teardown())
		check("torn down")
		if rules := l.run(l.node, "nft", "list", "ruleset"); own.MatchString(rules) {
			t.Error("our table is still there")
		}
	})
}

// TestBlockingFirewalls checks that firewalls which drop forwarded packets are found, as Docker's
// does, and that the suggested commands fix them.
func TestBlockingFirewalls(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		a := l.attach(n)
		l.serve(l.other, "tcp", "other", 7000)
		try := func() {
			t.Helper()
			for _, s := range stacks {
				l.reaches("a", a.Netns, "tcp"+s.suffix, s.other, 7000, "other "+s.node)
			}
		}
		found, err := n.BlockingFirewalls()
		if err != nil || len(found) > 0 {
			t.Errorf("found %v, %v", found, err)
		}
		try()
		for _, command := range []string{"iptables-nft", "ip6tables-nft", "iptables-legacy", "ip6tables-legacy"} {
			l.run(l.node, command, "-P", "FORWARD", "DROP")
		}
		for _, s := range stacks {
			l.fails("a", a.Netns, "tcp"+s.suffix, s.other, 7000)
		}
		found, err = n.BlockingFirewalls()
		must(t, err)
		if len(found) != 4 {
			t.Errorf("found %v", found)
		}
		for _, b := range found {
			for _, command := range b.Fix {
				l.run(l.node, "sh", "-c", command)
			}
		}
		try()
	})
}
