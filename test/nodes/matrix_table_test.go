package nodes

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// policyRow is a row of the table: what happens, and who reaches whom after each step of it.
type policyRow struct {
	name  string
	steps []policyStep
}

type policyStep struct {
	change   func(*lab) // what happens first; may be nil
	policies string     // all that there are, see lab.apply
	expect   []string   // see expect
	also     func(*testing.T, *lab)
}

// rule returns a NetworkPolicy of the name, namespace/name, with a spec.
func rule(namespace, name, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {namespace: %s, name: %s}\nspec: {%s}", namespace, name, spec)
}

// clusterRule returns a ClusterNetworkPolicy.
func clusterRule(name, spec string) string {
	return fmt.Sprintf("\n---\napiVersion: policy.networking.k8s.io/v1alpha2\nkind: ClusterNetworkPolicy\nmetadata: {name: %s}\nspec: {%s}", name, spec)
}

// one returns a row of one step.
func one(name, policies string, expect ...string) policyRow {
	return policyRow{name, []policyStep{{policies: policies, expect: expect}}}
}

// onA is a NetworkPolicy for the ingress of x.a.
func onA(ingress string) string {
	return rule("x", "a", "podSelector: {matchLabels: {pod: a}}, ingress: ["+ingress+"]")
}

// toA returns what is expected if only some reach x.a, at its own address and at the host port.
func toA(allowed ...string) []string {
	return append([]string{"deny * x.a *", "deny * n1:8080 *"}, allowed...)
}

// fromA is a NetworkPolicy for the egress of x.a.
func fromA(egress string) string {
	return rule("x", "a", "podSelector: {matchLabels: {pod: a}}, policyTypes: [Egress], egress: ["+egress+"]")
}

const (
	all         = "podSelector: {}"
	denyIngress = all + ", policyTypes: [Ingress]"
	denyEgress  = all + ", policyTypes: [Egress]"
	denyBoth    = all + ", policyTypes: [Ingress, Egress]"
)

var policyRows = []policyRow{
	one("no policy", ""),
	one("ingress is denied", rule("x", "p", denyIngress), "deny * x.* *", "deny * n1:8080 *"),
	one("egress is denied", rule("x", "p", denyEgress), "deny x.* * *"),
	{"all is denied, and allowed again", []policyStep{
		{
			policies: rule("x", "p", denyBoth) + rule("w", "p", denyBoth) + rule("z", "p", denyBoth),
			expect:   []string{"deny * ?.? *", "deny ?.? * *", "deny * n1:8080 *"},
		},
		{expect: nil},
	}},
	one("ingress is allowed from everywhere", rule("x", "p", denyIngress)+rule("x", "q", all+", ingress: [{}]")),
	one("egress is allowed to everywhere", rule("x", "p", denyEgress)+rule("x", "q", all+", policyTypes: [Egress], egress: [{}]")),
	one("the same namespace", rule("x", "p", all+", ingress: [{from: [{podSelector: {}}]}]"),
		"deny * x.* *", "deny * n1:8080 *", "allow x.* x.* *", "allow x.*@n1 n1:8080 *"),
	one("a namespace by its labels", onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}}]}"), toA("allow w.* x.a *", "allow w.*@n1 n1:8080 *")...),
	one("namespaces by expressions", onA("{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: NotIn, values: [x, z]}]}}]}"), toA("allow w.* x.a *", "allow w.*@n1 n1:8080 *")...),
	one("all namespaces", onA("{from: [{namespaceSelector: {}}]}"), toA("allow ?.? x.a *", "allow ?.?@n1 n1:8080 *")...),
	one("no namespace", onA("{from: [{namespaceSelector: {matchExpressions: [{key: ns, operator: DoesNotExist}]}}]}"), toA()...),
	one("pods by expressions", onA("{from: [{podSelector: {matchExpressions: [{key: pod, operator: In, values: [b, d]}]}}]}"), toA("allow x.b x.a *", "allow x.b@n1 n1:8080 *")...),
	one("pods and their namespace", onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"), toA("allow w.b x.a *", "allow w.b@n1 n1:8080 *")...),
	one("pods or a namespace", onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}}, {podSelector: {matchLabels: {pod: b}}}]}"),
		toA("allow w.* x.a *", "allow x.b x.a *", "allow w.*@n1 n1:8080 *", "allow x.b@n1 n1:8080 *")...),
	one("two policies of one pod", onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}}], ports: [{port: 80}]}")+rule("x", "q", all+", ingress: [{from: [{namespaceSelector: {matchLabels: {ns: z}}}], ports: [{port: 81}]}]"),
		"deny * x.* *", "deny * n1:8080 *", "allow w.* x.a tcp/80", "allow z.* x.* tcp/81", "allow w.*@n1 n1:8080 tcp/8080"),
	one("both ends must allow it", onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}}]}")+rule("w", "p", "podSelector: {matchLabels: {pod: b}}, policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: z}}}]}]"),
		toA("allow w.* x.a *", "allow w.*@n1 n1:8080 *", "deny w.b * *", "allow w.b z.* *")...),

	one("a port", onA("{ports: [{port: 80}]}"), "deny * x.a *", "allow * x.a tcp/80", "deny * n1:8080 udp/8080"),
	one("a protocol", onA("{ports: [{protocol: UDP}]}"), "deny * x.a *", "allow * x.a udp/80", "deny * n1:8080 tcp/8080"),
	one("a port by its name", onA("{ports: [{port: serve-81-tcp}]}"), toA("allow * x.a tcp/81")...),
	one("egress to ports by their names", fromA("{ports: [{port: serve-80-udp, protocol: UDP}]}"), "deny x.a * *", "allow x.a ?.? udp/80"),
	one("a name that no port has", onA("{ports: [{port: nothing}]}"), toA()...),
	one("a range of ports", onA("{ports: [{port: 1, endPort: 80}]}"), "deny * x.a tcp/81", "deny * x.a udp/80", "deny * n1:8080 udp/8080"),
	one("a range of one port", onA("{ports: [{port: 81, endPort: 81}]}"), toA("allow * x.a tcp/81")...),
	one("egress to a range", fromA("{ports: [{port: 80, endPort: 65535}, {port: 80, endPort: 80, protocol: UDP}]}"), "deny x.a n1:8080 udp/8080"),
	one("egress to a port of a namespace", fromA("{to: [{namespaceSelector: {matchLabels: {ns: w}}}], ports: [{port: 81}]}"), "deny x.a * *", "allow x.a w.* tcp/81"),

	one("an address of a pod", onA("{from: [$ip(w.b)]}"), toA("allow w.b x.a *", "allow w.b@n1 n1:8080 *")...),
	one("all addresses but one", onA("{from: [$allbut(w.b)]}"), "deny w.b x.a *", "deny w.b@n1 n1:8080 *"),
	one("egress to the host outside", fromA("{to: [$ip(out)]}"), "deny x.a * *", "allow x.a out *"),
	one("egress to all but the host outside", fromA("{to: [$allbut(out)]}"), "deny x.a out *"),
	one("a node", onA("{from: [$ip(n1)]}"), toA()...), // its own node reaches it anyway
	// Pods that connect to a host port of another node have their own node's address there.
	{"a client of the host port", []policyStep{
		{policies: onA("{from: [$ip(out)], ports: [{port: 80}]}"), expect: toA("allow out n1:8080 tcp/8080")},
		{policies: onA("{from: [$ip(out)], ports: [{port: 8080}]}"), expect: toA()},
		{policies: onA("{from: [$allbut(out)]}"), expect: []string{"deny out n1:8080 *"}},
	}},
	one("egress to what answers at a host port", rule("w", "p", all+", policyTypes: [Egress], egress: [{to: [{namespaceSelector: {matchLabels: {ns: x}}}], ports: [{port: 80}]}]"),
		"deny w.* * *", "allow w.* x.* tcp/80", "allow w.*@n1 n1:8080 tcp/8080"),
	one("egress to a host port of another node", rule("w", "p", all+", policyTypes: [Egress], egress: [{to: [$ip(n1)], ports: [{port: 8080}]}]"),
		"deny w.* * *", "allow w.*@n2 n1:8080 tcp/8080", "allow w.*@n3 n1:8080 tcp/8080"),

	{"pods and namespaces are relabelled", []policyStep{
		{policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"), expect: toA("allow w.b x.a *", "allow w.b@n1 n1:8080 *")},
		{
			change:   func(l *lab) { l.relabel("w.c", map[string]string{"pod": "b"}) },
			policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"),
			expect:   toA("allow w.[bc] x.a *", "allow w.[bc]@n1 n1:8080 *"),
		},
		{
			change:   func(l *lab) { l.namespace("w", nil); l.namespace("z", map[string]string{"ns": "w"}) },
			policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"),
			expect:   toA("allow z.b x.a *", "allow z.b@n1 n1:8080 *"),
		},
		{
			// Now the subject is x.b.
			change: func(l *lab) {
				l.relabel("x.a", map[string]string{"pod": "b"})
				l.relabel("x.b", map[string]string{"pod": "a"})
			},
			policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"),
			expect:   []string{"deny * x.b *", "allow z.b x.b *"},
		},
		{
			change: func(l *lab) {
				l.namespace("w", map[string]string{"ns": "w"})
				l.namespace("z", map[string]string{"ns": "z"})
				for _, p := range l.pods() {
					l.relabel(p.name, map[string]string{"pod": p.object.Name})
				}
			},
		},
	}},
	{"a pod is replaced", []policyStep{
		{policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"), expect: toA("allow w.b x.a *", "allow w.b@n1 n1:8080 *")},
		{
			// z.b gets a network while w.b has none: it may even get the same addresses.
			change: func(l *lab) {
				w, z := l.party("w.b"), l.party("z.b")
				l.detach(w)
				l.detach(z)
				l.attach(z)
				l.attach(w)
			},
			policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}]}"),
			expect:   toA("allow w.b x.a *", "allow w.b@n1 n1:8080 *"),
		},
	}},
	{"huskd restarts", []policyStep{
		{policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: w}}}]}"), expect: toA("allow w.* x.a *", "allow w.*@n1 n1:8080 *")},
		{
			change: func(l *lab) {
				for _, r := range l.nodes {
					r.huskd.Kill()
				}
			},
			policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}"),
			expect:   toA("allow w.* x.a *", "allow w.*@n1 n1:8080 *"),
		},
		{
			change: func(l *lab) {
				for _, r := range l.nodes {
					r.restart()
				}
			},
			policies: onA("{from: [{namespaceSelector: {matchLabels: {ns: z}}}]}"),
			expect:   toA("allow z.* x.a *", "allow z.*@n1 n1:8080 *"),
		},
	}},

	one("the admin denies what a policy allows", onA("{from: [{namespaceSelector: {}}]}")+clusterRule("c", "tier: Admin, priority: 10, subject: {namespaces: {}}, ingress: [{name: no-z, action: Deny, from: [{namespaces: {matchLabels: {ns: z}}}]}]"),
		toA("allow ?.? x.a *", "allow ?.?@n1 n1:8080 *", "deny z.* ?.? *", "deny z.*@n1 n1:8080 *")...),
	one("the admin allows what a policy denies", rule("x", "p", denyIngress)+clusterRule("c", "tier: Admin, priority: 10, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Accept, from: [{pods: {namespaceSelector: {matchLabels: {ns: w}}, podSelector: {matchLabels: {pod: b}}}}]}]"),
		"deny * x.* *", "deny * n1:8080 *", "allow w.b x.* *", "allow w.b@n1 n1:8080 *"),
	one("the admin passes", clusterRule("c", "tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Pass, from: [{namespaces: {matchLabels: {ns: w}}}]}]")+
		clusterRule("d", "tier: Admin, priority: 2, subject: {namespaces: {matchLabels: {ns: x}}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]")+onA("{from: [{podSelector: {}}, {namespaceSelector: {matchLabels: {ns: w}}}], ports: [{port: 80}]}"),
		"deny ?.? x.* *", "deny ?.?@n1 n1:8080 *", "allow w.* x.[bc] *", "deny * x.a *", "deny * n1:8080 *", "allow w.* x.a tcp/80", "allow w.*@n1 n1:8080 tcp/8080"),
	one("the baseline is for pods without policies", onA("{from: [{podSelector: {}}]}")+clusterRule("c", "tier: Baseline, priority: 1, subject: {namespaces: {}}, ingress: [{action: Deny, from: [{namespaces: {}}]}]"),
		"deny ?.? ?.? *", "deny * x.a *", "deny * n1:8080 *", "allow x.* x.a *", "allow x.*@n1 n1:8080 *"),
	one("egress to networks and nodes", clusterRule("c", "tier: Admin, priority: 1, subject: {namespaces: {matchLabels: {ns: x}}}, egress: [{action: Deny, to: [{networks: [$net(out)]}, {nodes: {matchExpressions: [{key: node, operator: In, values: [n2, n3]}]}}]}]"),
		"deny x.* out *", "never x.* n[23] *"),

	{"ICMP errors", []policyStep{{
		policies: rule("x", "p", all+", policyTypes: [Ingress, Egress], ingress: [], egress: [{to: [$ip(out)], ports: [{port: 80, protocol: UDP}]}, {to: [{namespaceSelector: {matchLabels: {ns: w}}}], ports: [{port: 82, protocol: UDP}]}]"),
		expect:   []string{"deny * x.* *", "deny * n1:8080 *", "deny x.* * *", "allow x.* out udp/80"},
		also:     icmpErrors,
	}}},
	{"no policy any more", []policyStep{{also: noRules}}},
}

// narrow is the MTU of the link to the host outside.
const narrow = 1300

// icmpErrors checks that isolated pods get the ICMP errors that belong to their connections: from
// the router, that a packet is too large for the link to the host outside, and from a pod, that
// nothing listens on a port. The router sends its errors to the node, which has masqueraded the
// connection.
func icmpErrors(t *testing.T, l *lab) {
	out := l.party("out")
	for _, from := range l.pods() {
		if from.object.Namespace != "x" {
			continue
		}
		for _, own := range from.addresses {
			tooLarge := func() error { return send(from.host, netip.AddrPortFrom(out.address(own.Is6()), 80), narrow) }
			node.Eventually(t, 10*time.Second, func() string {
				if err := tooLarge(); !errors.Is(err, unix.EMSGSIZE) {
					return fmt.Sprintf("%s sends packets of more than %d bytes to %v: %v", from.name, narrow, out.address(own.Is6()), err)
				}
				return ""
			})
			for _, to := range l.pods() {
				if to.object.Namespace != "w" {
					continue
				}
				node.Eventually(t, 10*time.Second, func() string {
					if err := send(from.host, netip.AddrPortFrom(to.address(own.Is6()), 82), 10); !errors.Is(err, unix.ECONNREFUSED) {
						return fmt.Sprintf("%s sends to a port of %s on which nothing listens: %v", from.name, to.name, err)
					}
					return ""
				})
			}
		}
	}
}

// send sends a datagram that must not be fragmented, and returns the error that comes back.
func send(from *host, to netip.AddrPort, size int) error {
	return netns.Do(from.netns, func() error {
		d := net.Dialer{Control: dontFragment}
		c, err := d.Dial("udp", to.String())
		if err != nil {
			return err
		}
		defer c.Close()
		if _, err := c.Write(make([]byte, size)); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, err = c.Read(make([]byte, 2*size))
		return err
	})
}

// noRules checks that nodes have no rules without policies.
func noRules(t *testing.T, l *lab) {
	for _, r := range l.nodes {
		node.Eventually(t, 10*time.Second, func() string {
			if tables := r.Must("nft", "list", "tables"); strings.Contains(tables, "-policy") {
				return "rules without policies:\n" + tables
			}
			return ""
		})
	}
}
