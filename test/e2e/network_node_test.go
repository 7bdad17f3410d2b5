package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// firewall holds commands that set up other programs' rules: docker's, in iptables-nft and
// iptables-legacy, and a firewall made with nft. Four of the chains drop forwarded packets.
var firewall = []string{
	"iptables-nft -t nat -N DOCKER", "iptables-nft -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER",
	"iptables-nft -P FORWARD DROP", "ip6tables-nft -P FORWARD DROP", "iptables-nft -A FORWARD -i docker0 -j ACCEPT",
	"iptables-legacy -P FORWARD DROP", "ip6tables-legacy -A FORWARD -i br0 -j ACCEPT",
	"nft add table inet firewall",
	"nft add chain inet firewall forward '{ type filter hook forward priority 0; policy drop; }'",
	"nft add rule inet firewall forward iifname docker0 accept",
	"nft add set inet firewall friends '{ type ipv4_addr; elements = { 10.0.0.1 }; }'",
}

// foreignRules returns all firewall rules of the node except for Husk's, without their counters.
func foreignRules(n *node.Node) string {
	own := regexp.MustCompile(`(?ms)^table inet ` + n.Instance().Table() + ` \{.*?^\}\n`)
	out := own.ReplaceAllString(n.Must("nft", "list", "ruleset"), "")
	for _, save := range []string{"iptables-legacy-save", "ip6tables-legacy-save", "iptables-nft-save", "ip6tables-nft-save"} {
		out += save + "\n" + n.Must(save)
	}
	counts := regexp.MustCompile(`\[\d+:\d+\]|packets \d+ bytes \d+|(?m)^# (Generated|Completed|Warning).*\n`)
	return counts.ReplaceAllString(out, "")
}

type check struct{ Name, Level, Finding, Remedy string }

// doctor returns the checks of husk doctor with a name.
func (w *netNode) doctor(name string) (out []check) {
	w.t.Helper()
	var all []check
	if r := w.Husk("doctor", "-o", "json"); json.Unmarshal([]byte(r.Stdout), &all) != nil {
		w.t.Fatalf("doctor: %s%s", r.Stdout, r.Stderr)
	}
	for _, c := range all {
		if c.Name == name {
			out = append(out, c)
		}
	}
	return out
}

// TestFirewall runs pods on a node whose firewalls drop forwarded packets. husk doctor must name
// each of them with a remedy that works, and Husk itself must never change them.
func TestFirewall(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	for _, conf := range []netConfig{netConfigs[0], netConfigs[3]} {
		t.Run(conf.name, func(t *testing.T) {
			t.Parallel()
			var before string
			w := newNetNode(t, conf, answers, func(n *node.Node) {
				for _, command := range firewall {
					n.Must("sh", "-c", command)
				}
				before = foreignRules(n)
			})
			unchanged := func(when string) {
				t.Helper()
				if now := foreignRules(w.Node); now != before {
					t.Errorf("%s: the rules are\n%s\nwant those from before:\n%s", when, now, before)
				}
			}
			unchanged("after the start of huskd")
			w.serve(w.OtherNet(), "other", ":7000")
			a := w.run("a", ports8080)
			unchanged("after the start of a pod")
			for _, s := range conf.families {
				w.unreachable("a", a.netns, "tcp"+s.suffix, s.other, 7000)
				w.unreachable("other", w.OtherNet(), "tcp"+s.suffix, s.node, 8080)
				w.reaches("node", w.Net(), "tcp"+s.suffix, s.of(a.IPs), 80, "a "+nodeSource(t, w, s, a))
			}
			if r := w.Husk("doctor"); r.Code != 1 {
				t.Errorf("husk doctor exits with %d, want 1", r.Code)
			}
			found := w.doctor("firewall")
			for _, where := range []string{"nftables table ip filter, chain FORWARD", "nftables table ip6 filter, chain FORWARD", "nftables table inet firewall, chain forward", "iptables-legacy table filter, chain FORWARD"} {
				if !strings.Contains(fmt.Sprint(found), where+" drops forwarded packets") {
					t.Errorf("husk doctor doesn't name %s: %v", where, found)
				}
			}
			if len(found) != 4 {
				t.Errorf("husk doctor finds %v, want 4 firewalls", found)
			}
			for _, c := range found {
				if c.Level != "fail" {
					t.Errorf("the check's level is not fail: %+v", c)
				}
				w.Must("sh", "-c", c.Remedy)
			}
			for _, s := range conf.families {
				w.reaches("a", a.netns, "tcp"+s.suffix, s.other, 7000, "other "+s.node)
				w.reaches("other", w.OtherNet(), "tcp"+s.suffix, s.node, 8080, "a "+s.other)
			}
			if found := w.doctor("firewall"); len(found) != 1 || found[0].Level != "ok" {
				t.Errorf("after the remedies, husk doctor finds %v", found)
			}
			before = foreignRules(w.Node)
			w.MustHusk("rm", "-f", "a")
			unchanged("after the removal of the pod")
			w.huskd.Stop()
			unchanged("after the end of huskd")
			for _, table := range []string{"ip filter", "ip nat", "ip6 filter", "inet firewall"} {
				w.Must("sh", "-c", "nft delete table "+table)
			}
			w.NothingLeft()
		})
	}
}

// nodeSource returns the source address that the kernel chooses for packets from the node to a pod.
func nodeSource(t *testing.T, w *netNode, s family, p podNetwork) string {
	t.Helper()
	out := w.Must("ip", "-o", "route", "get", s.of(p.IPs))
	_, source, _ := strings.Cut(out, " src ")
	if fields := strings.Fields(source); len(fields) > 0 {
		return fields[0]
	}
	t.Fatalf("ip route get prints no source address: %s", out)
	return ""
}

// TestUplinkMTU checks that pods take over the uplink's MTU, which is lower on a tunnel, for
// example.
func TestUplinkMTU(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	const mtu = 1430
	for _, conf := range []netConfig{netConfigs[0], netConfigs[3]} {
		t.Run(conf.name, func(t *testing.T) {
			t.Parallel()
			w := newNetNode(t, conf, answers, func(n *node.Node) { n.Must("ip", "link", "set", "up0", "mtu", fmt.Sprint(mtu)) })
			a, b := w.run("a", ""), w.run("b", "")
			if a.Sandbox.MTU != mtu {
				t.Errorf("the pod's MTU is %d, want %d", a.Sandbox.MTU, mtu)
			}
			w.interfaces(conf, "a", a)
			for _, s := range conf.families {
				header := map[string]int{"4": 28, "6": 48}[s.suffix]
				for _, to := range []string{s.of(b.IPs), s.other} {
					ping := func(size int, within string) node.Result {
						return w.Run("nsenter", "--net="+a.NetworkSettings.SandboxKey, "ping", "-M", "do", "-c", "1", "-W", within, "-s", fmt.Sprint(size-header), to)
					}
					if r := ping(mtu, "5"); r.Code != 0 {
						t.Errorf("%d bytes to %s: %s%s", mtu, to, r.Stdout, r.Stderr)
					}
					if r := ping(mtu+1, "0.2"); r.Code == 0 {
						t.Errorf("%d bytes to %s are sent, though they exceed the MTU", mtu+1, to)
					}
				}
			}
			w.end("a", "b")
		})
	}
}

// TestAddressQuarantine checks that the address of a removed pod is not reused at once, also after
// a restart of huskd.
func TestAddressQuarantine(t *testing.T) {
	t.Parallel()
	w := newNetNode(t, netConfigs[0], buildAnswer(t), nil)
	had := map[string]string{}
	for i := range 6 {
		name := fmt.Sprint("p", i)
		p := w.run(name, "")
		for _, ip := range p.IPs {
			if former := had[ip]; former != "" {
				t.Errorf("%s got the address %s, which %s had a moment ago", name, ip, former)
			}
			had[ip] = name
		}
		w.MustHusk("rm", "-f", name)
		switch i {
		case 2:
			w.huskd.Kill()
			w.huskd = w.Huskd(w.flags)
		case 4: // without pods, huskd removes its network when it stops
			w.huskd.Stop()
			w.huskd = w.Huskd(w.flags)
		}
	}
	// The last link is deleted in the background.
	node.Eventually(t, time.Minute, func() string {
		if found := fmt.Sprint(w.doctor("addresses")); !strings.Contains(found, "0 in use, 6 in quarantine") {
			return "doctor: " + found
		}
		return ""
	})
	w.end()
}

// TestRemovedPodLeavesNoState checks that a client that keeps sending from the same port gets
// answers from the pod that has the host port now, and none if there is no such pod.
func TestRemovedPodLeavesNoState(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	for _, conf := range []netConfig{netConfigs[0], netConfigs[3]} {
		t.Run(conf.name, func(t *testing.T) {
			t.Parallel()
			w := newNetNode(t, conf, answers, nil)
			clients := map[string]net.Conn{}
			for _, s := range conf.families {
				err := netns.Do(w.OtherNet(), func() (err error) {
					clients[s.suffix], err = net.Dial("udp", net.JoinHostPort(s.node, "8080"))
					return err
				})
				if err != nil {
					t.Fatal(err)
				}
				defer clients[s.suffix].Close()
			}
			hears := func(s family) string {
				c, buf := clients[s.suffix], make([]byte, 100)
				_, _ = c.Write([]byte("?"))
				_ = c.SetReadDeadline(time.Now().Add(silence))
				n, _ := c.Read(buf)
				return string(buf[:n])
			}
			for _, name := range []string{"first", "second"} {
				p := w.run(name, ports8080)
				for _, s := range conf.families {
					w.reaches("other", w.OtherNet(), "tcp"+s.suffix, s.node, 8080, name+" "+s.other)
					node.Eventually(t, time.Minute, func() string {
						if got, want := hears(s), name+" "+s.other; got != want {
							return fmt.Sprintf("answer from %s: %q, want %q", s.node, got, want)
						}
						return ""
					})
				}
				w.MustHusk("rm", "-f", name)
				for _, s := range conf.families {
					w.unreachable("other", w.OtherNet(), "tcp"+s.suffix, s.node, 8080)
					w.unreachable("node", w.Net(), "tcp"+s.suffix, s.loopback, 8080)
					node.Eventually(t, time.Minute, func() string {
						if got := hears(s); got != "" {
							return fmt.Sprintf("pod %s has been removed, but the answer is %q", name, got)
						}
						return w.traces(s.of(p.IPs))
					})
				}
			}
			w.end()
		})
	}
}

// traces returns a flow, rule, route or neighbour on the node that mentions an address, or "".
func (w *netNode) traces(address string) (found string) {
	w.t.Helper()
	addr := net.ParseIP(address)
	family := netlink.InetFamily(unix.AF_INET6)
	if netip.MustParseAddr(address).Is4() {
		family = unix.AF_INET
	}
	err := netns.Do(w.Net(), func() error {
		flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, family)
		for _, f := range flows {
			if f.Forward.DstIP.Equal(addr) || f.Reverse.SrcIP.Equal(addr) {
				found = "a flow: " + f.String()
			}
		}
		return err
	})
	if err != nil {
		return err.Error()
	}
	// Neighbours that can't be resolved don't count: senders that don't stop cause them.
	const known = " show nud permanent nud reachable nud stale"
	for _, command := range []string{"nft list table inet " + w.Instance().Table(), "ip -6 route", "ip route", "ip neighbour" + known, "ip -6 neighbour" + known} {
		for line := range strings.Lines(w.Must("sh", "-c", command)) {
			if strings.Contains(line, address+" ") {
				found = command + ": " + line
			}
		}
	}
	return found
}
