package compile

import (
	"fmt"
	"net/netip"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// TestHugePolicies checks that what the kernel is told grows with a policy, not with its square.
// A tenant of a cluster writes policies, and every node with a pod of theirs reads them.
func TestHugePolicies(t *testing.T) {
	const n = 3000
	subject := policy.PodSelector{Namespace: "n", Pods: labels.Everything()}
	local := netip.MustParseAddr("10.0.0.1")
	var networks []policy.Peer
	var odd, even, names []policy.Port
	for i := range n {
		networks = append(networks, policy.Peer{Networks: &policy.Networks{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{20, byte(i >> 8), byte(i), 0}), 28)}})
		odd = append(odd, policy.Port{Protocol: policy.TCP, First: uint16(4*i + 1), Last: uint16(4*i + 1)})
		even = append(even, policy.Port{Protocol: policy.TCP, First: uint16(4*i + 3), Last: uint16(4*i + 3)})
		names = append(names, policy.Port{Protocol: policy.TCP, Name: fmt.Sprint("port-", i)})
	}
	var holes policy.Networks // all but n parts
	holes.Prefix = netip.MustParsePrefix("0.0.0.0/0")
	for _, p := range networks {
		holes.Except = append(holes.Except, p.Networks.Prefix)
	}
	overlapping := []policy.Peer{{Networks: &holes}}
	for _, p := range networks[:n/2] {
		overlapping = append(overlapping, policy.Peer{Networks: &policy.Networks{Prefix: holes.Prefix, Except: []netip.Prefix{p.Networks.Prefix}}})
	}
	accept := func(peers []policy.Peer, ports ...policy.Port) policy.Rule {
		return policy.Rule{Name: "r", Action: policy.Accept, Peers: peers, Ports: ports}
	}
	for name, rules := range map[string][]policy.Rule{
		"networks and ports":      {accept(networks, odd...)},
		"ports in two rules":      {accept(networks, odd...), accept(networks[:n/2], even...)},
		"networks that overlap":   {accept(overlapping, odd[:10]...)},
		"names of ports":          {accept(networks, names...)},
		"everyone, and two rules": {accept(nil, odd...), accept(networks, even...)},
	} {
		p := &policy.Policy{Name: "NetworkPolicy n/huge", Tier: policy.Namespaced, Subject: subject, Ingress: &policy.Rules{Rules: rules}, Egress: &policy.Rules{Rules: rules}}
		c := New()
		c.Change(policy.Changes{
			Policies: map[string]*policy.Policy{p.Name: p}, Namespaces: map[string]labels.Set{"n": {}},
			Pods: map[string]*policy.Pod{"n/p": {Namespace: "n", Name: "p", Addresses: []netip.Addr{local}}},
		})
		c.SetLocal([]netip.Addr{local})
		r := ruleset.New()
		commit := func() (elements int) {
			for _, u := range c.Commit() {
				for _, added := range u.AddProfiles {
					elements += len(added.Allow)
				}
				for _, allowed := range u.Allow {
					elements += len(allowed)
				}
				r.Apply(u)
			}
			return elements
		}
		if got := commit(); got > 20*n {
			t.Errorf("%s: %d elements of %d networks and ports", name, got, n)
		}
		// A change that is small is one of few elements.
		changed := *p
		changed.Ingress = &policy.Rules{Rules: append([]policy.Rule{accept(nil, policy.Port{Protocol: policy.TCP, First: 60000, Last: 60000})}, rules...)}
		c.Change(policy.Changes{Policies: map[string]*policy.Policy{p.Name: &changed}})
		if got := commit(); got > 10 {
			t.Errorf("%s: %d elements for one more port", name, got)
		}
	}
}
