package cni

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/huskd/husk/internal/pod"
)

// hostLocal is an IPAM section for a subnet of the lab.
const hostLocal = `"ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"10.66.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}`

// bridgeChain is a typical chain of plugins.
const bridgeChain = `{"cniVersion":"1.0.0","name":"web","plugins":[
 {"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,"hairpinMode":true,` + hostLocal + `},
 {"type":"portmap","capabilities":{"portMappings":true}}]}`

func TestBridgeWithPorts(t *testing.T) {
	l := newLab(t)
	l.conf("10-web.conflist", bridgeChain)
	h, _ := l.host(nil)
	a := l.pod(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	got := attach(t, h, a)
	if len(got.Addresses) != 1 || got.Network != "web" || got.MAC == "" || got.HostLink == "" || len(got.Gateways) != 1 {
		t.Errorf("got %+v", got)
	}
	again := attach(t, h, a)
	if pretty(again) != pretty(got) {
		t.Errorf("the second Attach returned %+v, the first %+v", again, got)
	}
	b := l.pod()
	other := attach(t, h, b)
	l.serve(a.Netns, "a", 80)
	for from, to := range map[string]netip.AddrPort{
		l.node:  netip.AddrPortFrom(got.Addresses[0].Addr(), 80),
		b.Netns: netip.AddrPortFrom(got.Addresses[0].Addr(), 80),
		l.other: netip.MustParseAddrPort(node4 + ":8080"),
	} {
		if got := l.ask(from, to.Addr(), to.Port()); got != "a" {
			t.Errorf("%s to %s: %q", from, to, got)
		}
	}
	if other.Addresses[0] == got.Addresses[0] {
		t.Error("two pods have one address")
	}
	must(t, h.Check(t.Context(), b.Sandbox))
	must(t, h.Detach(t.Context(), a))
	must(t, h.Detach(t.Context(), a))
	must(t, h.Detach(t.Context(), b))
	l.nothingLeft()
	if list := h.Attachments(); len(list) != 0 {
		t.Errorf("attachments: %v", list)
	}
}

// TestReferenceChains runs chains from the plugins' documentation. The pod must be reachable
// and leave nothing behind.
func TestReferenceChains(t *testing.T) {
	for _, c := range []struct {
		name, conf string
		annotate   map[string]string
		reach      string // node or other
		check      func(*lab, pod.Attachment) string
		six        bool // also has an IPv6 address
		badCheck   bool // its CHECK fails although nothing has changed
	}{
		{name: "ptp", reach: "other", conf: `{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"ptp","ipMasq":true,` + hostLocal + `}]}`},
		{name: "single conf", reach: "node", conf: `{"cniVersion":"0.3.1","name":"n","type":"ptp",` + hostLocal + `}`},
		{name: "0.2.0", reach: "node", conf: `{"cniVersion":"0.2.0","name":"n","type":"ptp","ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.66.0.0/24","routes":[{"dst":"0.0.0.0/0"}]}}`},
		{name: "0.1.0", reach: "node", conf: `{"name":"n","type":"ptp","ipam":{"type":"host-local","dataDir":"DATA","subnet":"10.66.0.0/24"}}`},
		{name: "dual stack", reach: "node", six: true,
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,"ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"10.66.0.0/24"}],[{"subnet":"fd66::/64"}]]}}]}`},
		{name: "ranges of the node", reach: "node",
			conf: `{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"ptp","capabilities":{"ipRanges":true},"ipam":{"type":"host-local","dataDir":"DATA"}}]}`},
		{name: "macvlan", reach: "other", conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"macvlan","master":"up0","mode":"bridge","ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"192.0.2.0/24","rangeStart":"192.0.2.100"}]]}}]}`},
		{name: "static", reach: "node", annotate: map[string]string{"cni.husk.dev/ips": "10.66.0.77/24"},
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","bridge":"br0","isGateway":false,"ipam":{"type":"static"},"capabilities":{"ips":true}}]}`,
			check: func(l *lab, a pod.Attachment) string {
				l.ip(l.node, "addr add 10.66.0.1/24 dev br0")
				return l.ip(a.Netns, "-o addr show dev eth0 to 10.66.0.77/24")
			}},
		{name: "chosen address and mac", reach: "node", annotate: map[string]string{"cni.husk.dev/ips": "10.66.0.50", "cni.husk.dev/mac": "02:00:00:00:00:50"},
			conf: `{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,"capabilities":{"ips":true,"mac":true},` + hostLocal + `},{"type":"tuning","capabilities":{"mac":true}}]}`,
			check: func(l *lab, a pod.Attachment) string {
				l.ip(a.Netns, "-o addr show dev eth0 to 10.66.0.50")
				return l.run(a.Netns, "sh", "-c", "ip -o link show eth0 | grep 02:00:00:00:00:50")
			}},
		{name: "tuning", reach: "node",
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp",` + hostLocal + `},{"type":"tuning","sysctl":{"net.core.somaxconn":"499"},"mtu":1400}]}`,
			check: func(l *lab, a pod.Attachment) string {
				return l.run(a.Netns, "grep", "-x", "499", "/proc/sys/net/core/somaxconn")
			}},
		{name: "bandwidth", reach: "node", annotate: map[string]string{"kubernetes.io/ingress-bandwidth": "20M"},
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp",` + hostLocal + `},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`,
			check: func(l *lab, _ pod.Attachment) string {
				return l.run(l.node, "sh", "-c", "tc qdisc show | grep 'tbf.*rate 20Mbit'")
			}},
		{name: "firewall", reach: "other",
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp","ipMasq":true,` + hostLocal + `},{"type":"firewall","backend":"iptables"}]}`,
			check: func(l *lab, _ pod.Attachment) string {
				return l.run(l.node, "sh", "-c", "iptables-save | grep 'CNI-FORWARD.*10.66.0'")
			}},
		{name: "sbr", reach: "node", badCheck: true, // ptp misses the routes that sbr has moved
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"ptp",` + hostLocal + `},{"type":"sbr"}]}`,
			check: func(l *lab, a pod.Attachment) string {
				return l.run(a.Netns, "sh", "-c", "ip rule | grep 'from 10.66.0'")
			}},
		{name: "all of a node", reach: "other", annotate: map[string]string{"kubernetes.io/egress-bandwidth": "1G"},
			conf: `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge","bridge":"br0","isGateway":true,"ipMasq":true,` + hostLocal + `},{"type":"portmap","capabilities":{"portMappings":true}},{"type":"firewall"},{"type":"tuning","sysctl":{"net.core.somaxconn":"499"}}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t)
			l.conf("10-n.conflist", c.conf)
			h, _ := l.host(nil, func(c *Config) { c.Ranges = []netip.Prefix{netip.MustParsePrefix("10.66.0.0/24")} })
			if s := h.Networks(); s.Err != nil {
				t.Fatal(s.Err)
			}
			a := l.pod()
			a.Annotations = c.annotate
			got := attach(t, h, a)
			if c.check != nil {
				c.check(l, a)
			}
			l.serve(a.Netns, "pod", 80)
			from := l.node
			if c.reach == "other" {
				from = l.other
			}
			if c.name == "macvlan" { // the master interface can't reach it
				l.ip(l.other, "neigh flush dev eth0")
			}
			if answer := l.ask(from, got.Addresses[0].Addr(), 80); answer != "pod" {
				t.Errorf("%s answers %q", got.Addresses[0], answer)
			}
			if c.six {
				if answer := l.ask(from, got.Addresses[1].Addr(), 80); answer != "pod" || len(got.Gateways) != 2 {
					t.Errorf("%+v answers %q", got, answer)
				}
			}
			if err := h.Check(t.Context(), a.Sandbox); err != nil && !c.badCheck {
				t.Error(err)
			}
			must(t, h.Detach(t.Context(), a))
			l.nothingLeft()
			if list := h.Attachments(); len(list) != 0 {
				t.Errorf("attachments: %v", list)
			}
		})
	}
}

// TestSeveralNetworks attaches a pod to two default networks and two that it names.
func TestSeveralNetworks(t *testing.T) {
	l := newLab(t)
	for i := range 4 {
		l.conf(fmt.Sprintf("%d.conflist", i), fmt.Sprintf(`{"cniVersion":"1.0.0","name":"n%d","plugins":[{"type":"bridge","bridge":"br%d","ipam":{"type":"host-local","dataDir":"DATA","ranges":[[{"subnet":"10.66.%d.0/24"}]]}}]}`, i, i, i))
	}
	h, _ := l.host(nil, func(c *Config) { c.MaxNetworks = 2 })
	a := l.pod()
	a.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "kube-system/n3, n2@data0"}
	all, err := h.Attach(t.Context(), a)
	must(t, err)
	want := []string{"n0 eth0", "n1 eth1", "n3 eth2", "n2 data0"}
	for i, got := range all {
		if s := got.Network + " " + got.IfName; s != want[i] {
			t.Errorf("attachment %d is %s, want %s", i, s, want[i])
		}
		l.ip(a.Netns, "addr show dev "+got.IfName+" to "+got.Addresses[0].String())
	}
	if len(all) != 4 || len(h.Attachments()) != 4 {
		t.Errorf("%d attached, %d recorded", len(all), len(h.Attachments()))
	}
	must(t, h.Detach(t.Context(), a))
	l.nothingLeft()

	b := l.pod()
	b.Annotations = map[string]string{"network.alpha.kubernetes.io/network": `[{"name":"n2","interface":"eth7"},{"name":"gone"}]`}
	refused(t, h, b, "pod default/"+b.Pod.Name, "network gone", "not configured")
	b.Annotations = map[string]string{"cni.husk.dev/mac": "x", "kubernetes.io/ingress-bandwidth": "fast"}
	refused(t, h, b, "annotation cni.husk.dev/mac: ", "; annotation kubernetes.io/ingress-bandwidth: ")
	b.Annotations = map[string]string{"cni.husk.dev/mac": "02:00:00:00:00:01"}
	refused(t, h, b, "pod default/"+b.Pod.Name, "no plugin of network n0 has the capability mac")
	b.Annotations = map[string]string{"k8s.v1.cni.cncf.io/networks": "n3@eth0"}
	refused(t, h, b, "eth0", "default network")
	l.nothingLeft()
}

// TestOneOfSeveralFails checks that a failing network detaches the ones before it.
func TestOneOfSeveralFails(t *testing.T) {
	l := newLab(t)
	l.conf("1.conflist", bridgeChain)
	l.plugin("bad", answersVersion+`[ $CNI_COMMAND = DEL ] && exit 0; echo '{"code":100,"msg":"no more"}'; exit 1`)
	l.conf("2.conflist", `{"cniVersion":"1.0.0","name":"second","plugins":[{"type":"bad"}]}`)
	h, _ := l.host(nil, func(c *Config) { c.MaxNetworks = 2 })
	refused(t, h, l.pod(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}), "network second: plugin bad: ADD: no more")
	l.nothingLeft()
	if list := h.Attachments(); len(list) != 0 {
		t.Errorf("attachments: %v", list)
	}
}

// TestRangesOfTheCluster checks that new attachments use the pod CIDRs of SetRanges, also
// after a restart of huskd, and that existing ones keep their addresses.
func TestRangesOfTheCluster(t *testing.T) {
	l := newLab(t)
	l.conf("1.conflist", `{"cniVersion":"1.0.0","name":"web","plugins":[{"type":"ptp","capabilities":{"ipRanges":true},"ipam":{"type":"host-local","dataDir":"DATA"}}]}`)
	configured := func(c *Config) { c.Ranges = []netip.Prefix{netip.MustParsePrefix("10.66.1.0/24")} }
	h, stop := l.host(nil, configured)
	gets := func(h *Host, subnet string) pod.Attachment {
		t.Helper()
		a := l.pod()
		if got := attach(t, h, a).Addresses[0]; got.Masked().String() != subnet {
			t.Errorf("got %v, want one of %s", got, subnet)
		}
		return a
	}
	first := gets(h, "10.66.1.0/24")
	must(t, h.SetRanges([]netip.Prefix{netip.MustParsePrefix("10.66.2.0/24")}))
	second := gets(h, "10.66.2.0/24")
	stop()
	h, _ = l.host([]pod.Attachment{first, second}, configured)
	third := gets(h, "10.66.2.0/24")
	for _, a := range []pod.Attachment{first, second, third} {
		must(t, h.Detach(t.Context(), a))
	}
	l.nothingLeft()
}
