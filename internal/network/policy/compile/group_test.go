package compile

import (
	"fmt"
	"maps"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// TestGroups checks that rules for everybody, for all pods, or for all addresses of a family are
// matches of groups, however many classes there are, and that others aren't.
func TestGroups(t *testing.T) {
	everybody := []policy.Peer(nil)
	allOf := func(prefix string, except ...netip.Prefix) []policy.Peer {
		return []policy.Peer{{Networks: &policy.Networks{Prefix: netip.MustParsePrefix(prefix), Except: except}}}
	}
	pods := func(namespaces, pods string) []policy.Peer {
		return []policy.Peer{{Pods: &policy.PodSelector{Namespaces: parse(t, namespaces), Pods: parse(t, pods)}}}
	}
	tcp := func(n uint16) []policy.Port { return []policy.Port{{Protocol: policy.TCP, First: n, Last: n}} }
	accept := func(peers []policy.Peer, ports []policy.Port) policy.Rule {
		return policy.Rule{Action: policy.Accept, Peers: peers, Ports: ports}
	}
	deny := func(peers []policy.Peer, ports []policy.Port) policy.Rule {
		return policy.Rule{Action: policy.Deny, Peers: peers, Ports: ports}
	}
	match := func(n uint16, groups ...Identity) map[ruleset.Match]struct{} {
		out := map[ruleset.Match]struct{}{}
		for _, g := range groups {
			out[ruleset.Match{Identity: g, Protocol: ruleset.Protocol(policy.TCP), First: n, Last: n}] = struct{}{}
		}
		return out
	}
	both := func(a, b map[ruleset.Match]struct{}) map[ruleset.Match]struct{} {
		maps.Copy(a, b)
		return a
	}
	for name, c := range map[string]struct {
		admin, rules []policy.Rule
		want         map[ruleset.Match]struct{} // of groups
		classes      bool                       // whether there are matches of classes
	}{
		"everybody":     {rules: []policy.Rule{accept(everybody, tcp(80))}, want: match(80, ruleset.AllIPv4, ruleset.AllIPv6)},
		"IPv4":          {rules: []policy.Rule{accept(allOf("0.0.0.0/0"), tcp(80))}, want: match(80, ruleset.AllIPv4)},
		"IPv6":          {rules: []policy.Rule{accept(allOf("::/0"), tcp(80))}, want: match(80, ruleset.AllIPv6)},
		"IPv4 and IPv6": {rules: []policy.Rule{accept(append(allOf("::/0"), allOf("0.0.0.0/0")...), tcp(80))}, want: match(80, ruleset.AllIPv4, ruleset.AllIPv6)},
		"all pods":      {rules: []policy.Rule{accept(pods("", ""), tcp(80))}, want: match(80, ruleset.PodsIPv4, ruleset.PodsIPv6)},
		"all pods, and everybody elsewhere": {rules: []policy.Rule{accept(pods("", ""), tcp(80)), accept(everybody, tcp(443))},
			want: both(match(80, ruleset.PodsIPv4, ruleset.PodsIPv6), match(443, ruleset.AllIPv4, ruleset.AllIPv6))},
		"all pods of some namespaces": {rules: []policy.Rule{accept(pods("a", ""), tcp(80))}, want: match(0)},
		"IPv4 but some":               {rules: []policy.Rule{accept(allOf("0.0.0.0/0", netip.MustParsePrefix("192.0.2.0/24")), tcp(80))}, want: match(0), classes: true},
		"everybody, and some others": {rules: []policy.Rule{accept(everybody, tcp(80)), accept(pods("", "app=a3"), tcp(443))},
			want: match(80, ruleset.AllIPv4, ruleset.AllIPv6), classes: true},
		"denied to some before": {admin: []policy.Rule{deny(pods("", "app=a3"), tcp(80))}, rules: []policy.Rule{accept(everybody, append(tcp(80), tcp(81)...))},
			want: match(81, ruleset.AllIPv4, ruleset.AllIPv6), classes: true},
		"accepted before it is denied": {admin: []policy.Rule{accept(everybody, tcp(80)), deny(pods("", "app=a3"), nil)},
			want: match(80, ruleset.AllIPv4, ruleset.AllIPv6)},
		"denied to all pods": {admin: []policy.Rule{deny(pods("", ""), nil)}, rules: []policy.Rule{accept(everybody, tcp(80))},
			want: match(0), classes: true},
	} {
		t.Run(name, func(t *testing.T) {
			subject := policy.PodSelector{Namespace: "n", Pods: parse(t, "app=a0")}
			changes := policy.Changes{Pods: map[string]*policy.Pod{}, Policies: map[string]*policy.Policy{
				"admin": {Name: "admin", Tier: policy.Admin, Subject: subject, Ingress: &policy.Rules{Rules: c.admin}},
				"p":     {Name: "p", Tier: policy.Namespaced, Subject: subject, Ingress: &policy.Rules{Rules: c.rules}},
				// It tells the others apart.
				"q": {Name: "q", Tier: policy.Namespaced, Subject: policy.PodSelector{Namespace: "n", Pods: parse(t, "app=b")}, Egress: &policy.Rules{}},
			}}
			add := func(app string, at netip.Addr) {
				p := &policy.Pod{Namespace: "n", Name: app, Labels: labels.Set{"app": app}, Addresses: []netip.Addr{at}}
				changes.Pods[p.Key()] = p
			}
			addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
			for i := range 20 {
				app := fmt.Sprint("a", i)
				add(app, addr(i))
				peers := pods("", "app="+app)
				changes.Policies["q"].Egress.Rules = append(changes.Policies["q"].Egress.Rules, accept(peers, tcp(uint16(1+i))))
			}
			add("b", addr(20))
			compiler, rules := New(), ruleset.New()
			commit := func() (updates []*ruleset.Update) {
				compiler.Change(changes)
				updates = compiler.Commit()
				for _, u := range updates {
					rules.Apply(u)
				}
				return updates
			}
			compiler.SetLocal([]netip.Addr{addr(0), addr(20)})
			commit()
			id := rules.Pods[addr(0)].Ingress
			got, classes := map[ruleset.Match]struct{}{}, 0
			for m := range rules.Profiles[id].Allow {
				if m.Identity.IsGroup() {
					got[m] = struct{}{}
				} else {
					classes++
				}
			}
			if !maps.Equal(got, c.want) || (classes > 0) != c.classes {
				t.Errorf("%v for groups, want %v, and %d matches for classes", got, c.want, classes)
			}
			// One more class.
			changes.Pods = map[string]*policy.Pod{}
			add("b2", addr(30))
			rule := accept(pods("", "app=b2"), tcp(99))
			changed := *changes.Policies["q"]
			changed.Egress = &policy.Rules{Rules: append([]policy.Rule{rule}, changed.Egress.Rules...)}
			changes.Policies = map[string]*policy.Policy{"q": &changed}
			for _, u := range commit() {
				if !c.classes && len(u.Allow[id])+len(u.Disallow[id]) > 0 {
					t.Errorf("a new class changes %+v, %+v", u.Allow[id], u.Disallow[id])
				}
			}
		})
	}
}
