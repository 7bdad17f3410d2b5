package policy

import (
	"net/netip"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"
)

// TestDecide checks the verdicts in a small world: three namespaces with a pod "a" of port 80 each,
// and what lies outside.
func TestDecide(t *testing.T) {
	x, y, z, outside := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::3"), netip.MustParseAddr("192.0.2.1")
	selector := func(s string) labels.Selector {
		parsed, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return parsed
	}
	in := func(namespaces string) []Peer {
		return []Peer{{Pods: &PodSelector{Namespaces: selector(namespaces), Pods: labels.Everything()}}}
	}
	networks := func(prefix string, except ...string) []Peer {
		n := &Networks{Prefix: netip.MustParsePrefix(prefix)}
		for _, e := range except {
			n.Except = append(n.Except, netip.MustParsePrefix(e))
		}
		return []Peer{{Networks: n}}
	}
	isolate := func(namespace string, rules ...Rule) Policy {
		return Policy{Name: "NetworkPolicy " + namespace + "/p", Tier: Namespaced, Subject: PodSelector{Namespace: namespace, Pods: labels.Everything()}, Ingress: &Rules{rules}}
	}
	all := PodSelector{Namespaces: labels.Everything(), Pods: labels.Everything()}
	accept := func(peers []Peer, ports ...Port) Rule {
		return Rule{Name: "rule 1", Action: Accept, Peers: peers, Ports: ports}
	}
	tier := func(tier Tier, priority int32, rules ...Rule) Policy {
		return Policy{Name: string(rules[0].Action), Tier: tier, Priority: priority, Subject: all, Ingress: &Rules{rules}}
	}
	node := netip.MustParseAddr("192.0.2.9")
	isolated := Policy{Name: "NetworkPolicy x/e", Tier: Namespaced, Subject: all, Egress: &Rules{}}
	egress := func(tier Tier) Policy {
		return Policy{Name: "egress", Tier: tier, Subject: all, Egress: &Rules{[]Rule{{Action: Deny, Peers: []Peer{{Nodes: labels.Everything()}}}}}}
	}
	everyPort := func(p Protocol) Port { return Port{Protocol: p, Last: 65535} }

	for name, c := range map[string]struct {
		policies []Policy
		flow     Flow
		want     bool
	}{
		"no policy":                         {nil, Flow{x, y, TCP, 80, false}, true},
		"isolated":                          {[]Policy{isolate("y")}, Flow{x, y, TCP, 80, false}, false},
		"isolated, to itself":               {[]Policy{isolate("y")}, Flow{y, y, TCP, 80, false}, true},
		"another is isolated":               {[]Policy{isolate("z")}, Flow{x, y, TCP, 80, false}, true},
		"an isolated pod connects":          {[]Policy{isolate("x")}, Flow{x, y, TCP, 80, false}, true},
		"allowed to everybody":              {[]Policy{isolate("y", accept(nil))}, Flow{outside, y, TCP, 80, false}, true},
		"allowed to nobody":                 {[]Policy{isolate("y", accept([]Peer{}))}, Flow{x, y, TCP, 80, false}, false},
		"allowed by one of two":             {[]Policy{isolate("y"), isolate("y", accept(nil))}, Flow{x, y, TCP, 80, false}, true},
		"the namespace matches":             {[]Policy{isolate("y", accept(in("name=x")))}, Flow{x, y, TCP, 80, false}, true},
		"the namespace doesn't":             {[]Policy{isolate("y", accept(in("name!=x")))}, Flow{x, y, TCP, 80, false}, false},
		"outside is in no namespace":        {[]Policy{isolate("y", accept(in("")))}, Flow{outside, y, TCP, 80, false}, false},
		"the port":                          {[]Policy{isolate("y", accept(nil, Port{TCP, 80, 80, ""}))}, Flow{x, y, TCP, 80, false}, true},
		"another protocol":                  {[]Policy{isolate("y", accept(nil, Port{TCP, 80, 80, ""}))}, Flow{x, y, UDP, 80, false}, false},
		"the end of a range":                {[]Policy{isolate("y", accept(nil, Port{TCP, 70, 80, ""}))}, Flow{x, y, TCP, 80, false}, true},
		"past the end of a range":           {[]Policy{isolate("y", accept(nil, Port{TCP, 70, 80, ""}))}, Flow{x, y, TCP, 81, false}, false},
		"no ports, so every protocol":       {[]Policy{isolate("y", Rule{Action: Accept})}, Flow{x, y, 1, 0, false}, true},
		"ICMP has no ports":                 {[]Policy{isolate("y", accept(nil, everyPort(TCP), everyPort(UDP)))}, Flow{x, y, 1, 0, false}, false},
		"a named port":                      {[]Policy{isolate("y", accept(nil, Port{Protocol: TCP, Name: "web"}))}, Flow{x, y, TCP, 80, false}, true},
		"a named port of another protocol":  {[]Policy{isolate("y", accept(nil, Port{Protocol: UDP, Name: "web"}))}, Flow{x, y, UDP, 80, false}, false},
		"a named port that isn't one":       {[]Policy{isolate("y", accept(nil, Port{Name: "ping"}))}, Flow{x, y, 1, 0, false}, false},
		"a network contains a pod":          {[]Policy{isolate("y", accept(networks("10.0.0.0/30")))}, Flow{x, y, TCP, 80, false}, true},
		"except contains it":                {[]Policy{isolate("y", accept(networks("10.0.0.0/30", "10.0.0.1/32")))}, Flow{x, y, TCP, 80, false}, false},
		"an address of IPv4 in that of v6":  {[]Policy{isolate("y", accept(networks("10.0.0.0/30")))}, Flow{netip.AddrFrom16(x.As16()), netip.AddrFrom16(y.As16()), TCP, 80, false}, true},
		"admin denies what one allows":      {[]Policy{isolate("y", accept(nil)), tier(Admin, 1, Rule{Action: Deny})}, Flow{x, y, TCP, 80, false}, false},
		"the first of admin decides":        {[]Policy{tier(Admin, 2, Rule{Action: Deny}), tier(Admin, 1, Rule{Action: Accept})}, Flow{x, y, TCP, 80, false}, true},
		"admin passes, one denies":          {[]Policy{isolate("y"), tier(Admin, 1, Rule{Action: Pass}), tier(Admin, 2, Rule{Action: Accept})}, Flow{x, y, TCP, 80, false}, false},
		"admin passes to baseline":          {[]Policy{tier(Admin, 1, Rule{Action: Pass}), tier(Baseline, 1, Rule{Action: Deny})}, Flow{x, y, TCP, 80, false}, false},
		"baseline is behind NetworkPolicy":  {[]Policy{isolate("y", accept(nil)), tier(Baseline, 1, Rule{Action: Deny})}, Flow{x, y, TCP, 80, false}, true},
		"a node":                            {[]Policy{tier(Admin, 1, Rule{Action: Deny, Peers: []Peer{{Nodes: labels.Everything()}}})}, Flow{node, y, TCP, 80, false}, false},
		"not a node":                        {[]Policy{tier(Admin, 1, Rule{Action: Deny, Peers: []Peer{{Nodes: labels.Everything()}}})}, Flow{outside, y, TCP, 80, false}, true},
		"the own node":                      {[]Policy{isolated, tier(Admin, 1, Rule{Action: Accept, Peers: in("name=none")})}, Flow{x, node, TCP, 80, true}, true},
		"the own node's address elsewhere":  {[]Policy{isolated}, Flow{x, node, TCP, 80, false}, false},
		"the own node, denied":              {[]Policy{isolated, egress(Admin)}, Flow{x, node, TCP, 80, true}, false},
		"the own node, denied at last":      {[]Policy{egress(Baseline)}, Flow{x, node, TCP, 80, true}, false},
		"the own node, allowed before":      {[]Policy{isolated, egress(Baseline)}, Flow{x, node, TCP, 80, true}, true},
		"the address of a pod that is gone": {[]Policy{isolate("old")}, Flow{x, y, TCP, 80, false}, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := &World{Policies: c.policies, Namespaces: map[string]labels.Set{}, Nodes: []Node{{"n", nil, []netip.Addr{node}}}}
			for namespace, addr := range map[string]netip.Addr{"x": x, "y": y, "z": z} {
				w.Namespaces[namespace] = labels.Set{"name": namespace}
				w.Pods = append(w.Pods, Pod{Namespace: namespace, Name: "a", Addresses: []netip.Addr{addr}, Ports: []NamedPort{{"web", TCP, 80}, {"ping", 1, 0}}, Started: time.Unix(2, 0)})
			}
			w.Pods = append(w.Pods, Pod{Namespace: "old", Name: "a", Addresses: []netip.Addr{y}, Started: time.Unix(1, 0)})
			if got := w.Decide(c.flow); got.Allowed != c.want {
				t.Errorf("allowed is %v: egress %+v, ingress %+v", got.Allowed, got.Egress, got.Ingress)
			}
		})
	}
}
