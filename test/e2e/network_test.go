package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

// ports8080 maps host port 8080, TCP and UDP, to port 80.
const ports8080 = "[{containerPort: 80, hostPort: 8080}, {containerPort: 80, hostPort: 8080, protocol: UDP}]"

// TestNetwork runs pods in every mode with every address family. Pods, the node and another node
// must reach each other, with the right source addresses, also while huskd is down and after a
// restart.
func TestNetwork(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	for _, conf := range netConfigs {
		t.Run(conf.name, func(t *testing.T) {
			t.Parallel()
			var before string
			w := newNetNode(t, conf, answers, func(n *node.Node) {
				if conf.mode == "bridge" {
					// br_netfilter would translate the replies to ::1 before the IPv6 layer sees
					// them, and that drops them.
					n.Run("sysctl", "-qw", "net.bridge.bridge-nf-call-ip6tables=0")
				}
				before = sysctls(n)
			})
			w.serve(w.OtherNet(), "other", ":7000")
			for _, s := range conf.families {
				w.serve(w.Net(), "node", fmt.Sprintf("[%s]:7000", s.node))
			}
			a, b := w.run("a", ports8080), w.run("b", "")
			w.MustHusk("run", "--wait", w.manifest("h", 7001, "", "  hostNetwork: true"))
			w.interfaces(conf, "a", a)
			w.interfaces(conf, "b", b)
			w.checkReachability(conf, a, b)
			for _, end := range []func(*node.Daemon){(*node.Daemon).Kill, (*node.Daemon).Stop} {
				end(w.huskd)
				w.checkReachability(conf, a, b)
				w.huskd = w.Huskd(w.flags)
				w.checkReachability(conf, a, b)
			}
			w.hostNetwork(conf, a)
			w.end("a", "b", "h")
			if changed := differences(before, sysctls(w.Node)); changed != "" {
				t.Errorf("these sysctls changed:\n%s", changed)
			}
		})
	}
}

// sysctls returns the node's network sysctls, one per line, without the kernel's counter among
// them.
func sysctls(n *node.Node) string {
	return regexp.MustCompile(`.*\.nf_conntrack_count = .*\n`).ReplaceAllString(n.Must("sysctl", "-a", "-r", `^net\.`), "")
}

// differences returns the lines that are in only one of two texts.
func differences(before, after string) string {
	var out strings.Builder
	only := func(mark, of, other string) {
		lines := strings.Split(other, "\n")
		for line := range strings.SplitSeq(of, "\n") {
			if !slices.Contains(lines, line) {
				out.WriteString(mark + line + "\n")
			}
		}
	}
	only("- ", before, after)
	only("+ ", after, before)
	return out.String()
}

// checkReachability checks that pods, the node and the other node reach each other.
func (w *netNode) checkReachability(conf netConfig, a, b podNetwork) {
	w.t.Helper()
	addresses := w.Must("ip", "-o", "address")
	for _, s := range conf.families {
		addrA, addrB := s.of(a.IPs), s.of(b.IPs)
		for _, proto := range []string{"tcp", "udp"} {
			network := proto + s.suffix
			w.reaches("a", a.netns, network, s.loopback, 80, "a "+s.loopback)
			w.reaches("a", a.netns, network, addrA, 80, "a "+addrA)
			w.reaches("a", a.netns, network, addrB, 80, "b "+addrA)
			w.reaches("b", b.netns, network, addrA, 80, "a "+addrB)
			w.reaches("a", a.netns, network, s.node, 7000, "node "+addrA)
			w.reaches("a", a.netns, network, s.other, 7000, "other "+s.node)

			w.reaches("other", w.OtherNet(), network, s.node, 8080, "a "+s.other)
			w.reaches("node", w.Net(), network, s.node, 8080, "a "+s.node)
			w.reaches("node", w.Net(), network, s.loopback, 8080, "a "+s.first())
			w.reaches("a, itself", a.netns, network, s.node, 8080, "a "+s.first())
			from := addrB
			if conf.mode == "bridge" {
				from = s.first() // otherwise the reply would bypass the reverse translation
			}
			w.reaches("b", b.netns, network, s.node, 8080, "a "+from)

			got, err := ask(w.Net(), network, addrA, 80, answerTime)
			if from, ok := strings.CutPrefix(got, "a "); err != nil || !ok || !strings.Contains(addresses, " "+from+"/") {
				w.t.Errorf("from the node to a over %s: got %q, %v", network, got, err)
			}
		}
		w.reaches("a", a.netns, "tcp"+s.suffix, s.node, 7001, "node "+addrA)
		w.reaches("other", w.OtherNet(), "tcp"+s.suffix, s.node, 7001, "node "+s.other)
	}
}

// link is a link in the output of ip -j address.
type link struct {
	Ifname, Address string
	Mtu             int
	Flags           []string
	AddrInfo        []struct {
		Local, Scope string
		Prefixlen    int
	} `json:"addr_info"`
}

// interfaces compares the output of husk inspect for a pod with that of ip.
func (w *netNode) interfaces(conf netConfig, name string, p podNetwork) {
	w.t.Helper()
	key := p.NetworkSettings.SandboxKey
	inside, isNamed := strings.CutPrefix(key, "/run/netns/husk-")
	if !isNamed || !strings.Contains(w.Must("ip", "netns", "list"), "husk-"+inside) {
		w.t.Fatalf("%s: ip netns does not list the namespace %s", name, key)
	}
	ip := func(args ...string) string {
		return w.Must("ip", append([]string{"netns", "exec", filepath.Base(key), "ip", "-j"}, args...)...)
	}
	var links []link
	if err := json.Unmarshal([]byte(ip("address")), &links); err != nil {
		w.t.Fatal(err)
	}
	if len(links) != 2 || links[0].Ifname != "lo" || !slices.Contains(links[0].Flags, "UP") || !slices.Contains(links[1].Flags, "UP") {
		w.t.Fatalf("%s has the links %+v, want lo and one more, both up", name, links)
	}
	end, eth := p.NetworkSettings.Networks["husk"], links[1]
	if end.IFName != eth.Ifname || end.MacAddress != eth.Address || p.Sandbox.MTU != eth.Mtu {
		w.t.Errorf("%s: inspect shows %+v, MTU %d; ip shows %+v", name, end, p.Sandbox.MTU, eth)
	}
	var actual, shown []string
	for _, a := range eth.AddrInfo {
		if a.Scope == "global" {
			actual = append(actual, fmt.Sprintf("%s/%d", a.Local, a.Prefixlen))
		}
	}
	for _, a := range []string{fmt.Sprintf("%s/%d", end.IPAddress, end.IPPrefixLen), fmt.Sprintf("%s/%d", end.GlobalIPv6Address, end.GlobalIPv6PrefixLen)} {
		if a != "/0" {
			shown = append(shown, a)
		}
	}
	if fmt.Sprint(actual) != fmt.Sprint(shown) || len(actual) != len(conf.families) || len(p.IPs) != len(actual) {
		w.t.Errorf("%s: inspect shows %v and %v; ip shows %v", name, shown, p.IPs, actual)
	}
	for _, s := range conf.families {
		gateway := map[string]string{"4": end.Gateway, "6": end.IPv6Gateway}[s.suffix]
		if route := ip("-"+s.suffix, "route", "show", "default"); !strings.Contains(route, fmt.Sprintf("%q", gateway)) {
			w.t.Errorf("%s: inspect shows the gateway %s; ip shows %s", name, gateway, route)
		}
	}
	if out := w.Must("ip", "link", "show", p.Sandbox.HostLink); !strings.Contains(out, fmt.Sprint("mtu ", eth.Mtu)) {
		w.t.Errorf("%s: the host's link doesn't have the MTU of eth0: %s", name, out)
	}
}

// hostNetwork checks pod h, which is in the node's network namespace.
func (w *netNode) hostNetwork(conf netConfig, a podNetwork) {
	w.t.Helper()
	h := w.inspect("h")
	if !h.HostNetwork || h.NetworkSettings.SandboxKey != "" || len(h.NetworkSettings.Networks) > 0 {
		w.t.Errorf("h: inspect shows %+v", h.NetworkSettings)
	}
	for _, s := range conf.families {
		if !slices.Contains(h.IPs, s.node) {
			w.t.Errorf("h has the addresses %v, not the node's %s", h.IPs, s.node)
		}
	}
	pid := inspect(w.t, w.Node, "h").Containers[0].Pid
	if mine, nodes := w.Must("readlink", fmt.Sprintf("/proc/%d/ns/net", pid)), w.Must("readlink", "/proc/1/ns/net"); mine != nodes {
		w.t.Errorf("h is in %s, the node in %s", mine, nodes)
	}
	if bindings := a.NetworkSettings.Ports["80/tcp"]; len(bindings) != 1 || bindings[0].HostPort != "8080" {
		w.t.Errorf("a: inspect shows the ports %v", a.NetworkSettings.Ports)
	}
}
