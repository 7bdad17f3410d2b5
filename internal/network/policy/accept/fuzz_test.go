package accept

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
)

func FuzzNamespaced(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"p"},"spec":{"podSelector":{"matchLabels":{"a":"b"}},"policyTypes":["Ingress","Egress"],"ingress":[{"from":[{"podSelector":{}},{"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["b"]}]}},{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.1.0.0/16"]}}],"ports":[{"port":80,"endPort":90},{"port":"web","protocol":"UDP"}]}],"egress":[{}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p networkingv1.NetworkPolicy
		if json.Unmarshal(data, &p) != nil {
			return
		}
		out, problems := Namespaced(&p)
		checkForm(t, out, problems)
	})
}

func FuzzCluster(f *testing.F) {
	f.Add([]byte(`{"metadata":{"name":"p"},"spec":{"tier":"Admin","priority":1,"subject":{"pods":{"podSelector":{"matchLabels":{"a":"b"}}}},"ingress":[{"action":"Pass","from":[{"namespaces":{}}],"protocols":[{"tcp":{"destinationPort":{"range":{"start":1,"end":2}}}},{"destinationNamedPort":"web"}]}],"egress":[{"name":"n","action":"Deny","to":[{"networks":["::/0"]},{"nodes":{}},{"domainNames":["a.b"]}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var p ClusterNetworkPolicy
		if json.Unmarshal(data, &p) != nil {
			return
		}
		out, problems := Cluster(&p)
		checkForm(t, out, problems)
		p.DeepCopyObject()
	})
}

// checkForm checks the invariants of package policy, and that problems are single lines.
func checkForm(t *testing.T, p policy.Policy, problems []Problem) {
	for _, problem := range problems {
		if text := problem.Field + problem.Text; strings.Contains(text, "\n") || problem.Object != p.Name || problem.Text == "" {
			t.Errorf("problem %q", problem)
		}
	}
	checkPods(t, &p.Subject)
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		rules := p.Of(d)
		if rules == nil {
			continue
		}
		for _, r := range rules.Rules {
			if r.Name == "" || r.Action != policy.Accept && (r.Action != policy.Deny && r.Action != policy.Pass || p.Tier == policy.Namespaced) {
				t.Errorf("rule %+v", r)
			}
			for _, peer := range r.Peers {
				switch set := [3]bool{peer.Pods != nil, peer.Nodes != nil, peer.Networks != nil}; set {
				case [3]bool{true, false, false}:
					checkPods(t, peer.Pods)
				case [3]bool{false, true, false}:
				case [3]bool{false, false, true}:
					checkNetworks(t, peer.Networks)
				default:
					t.Errorf("peer %+v", peer)
				}
			}
			for _, port := range r.Ports {
				if port.First > port.Last || port.Name != "" && port.Last != 0 || port.Name == "" && (port.Last == 0 || port.Protocol == 0) {
					t.Errorf("port %+v", port)
				}
			}
		}
	}
	// It decides without a panic.
	world := policy.World{Policies: []policy.Policy{p}, Namespaces: map[string]labels.Set{"default": nil}, Pods: []policy.Pod{{Namespace: "default", Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}}}
	world.Decide(policy.Flow{From: netip.MustParseAddr("10.0.0.1"), To: netip.MustParseAddr("10.0.0.2"), Protocol: policy.TCP, Port: 80})
}

func checkPods(t *testing.T, s *policy.PodSelector) {
	if s.Pods == nil || (s.Namespace == "") == (s.Namespaces == nil) {
		t.Errorf("selector %+v", s)
	}
}

func checkNetworks(t *testing.T, n *policy.Networks) {
	for _, p := range append([]netip.Prefix{n.Prefix}, n.Except...) {
		if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() && p.Bits() >= 96 || !n.Prefix.Overlaps(p) {
			t.Errorf("networks %+v", n)
		}
	}
}
