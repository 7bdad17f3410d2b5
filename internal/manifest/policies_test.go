package manifest

import (
	"strings"
	"testing"
)

const policyFile = `apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  ingress:
  - ports: [{port: 80}, {port: http, protocol: TCP}, {port: 1, endPort: 9}]
    from: [{podSelector: {}}, {ipBlock: {cidr: 10.0.0.0/8}}]
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: tenants}
spec:
  tier: Admin
  priority: 10
  subject: {namespaces: {}}
  egress:
  - action: Deny
    to: [{networks: [192.0.2.0/24]}]
status: {conditions: []}
`

func TestPolicies(t *testing.T) {
	o := origin("p.yaml")
	if _, err := Parse([]byte(policyFile), o); err == nil || !strings.Contains(err.Error(), "p.yaml:1: document 1: kind: network policies are not enforced on this node") {
		t.Errorf("where policies have no effect: %v", err)
	}
	o.Policies = true
	f, err := Parse([]byte(policyFile), o)
	if err != nil || len(f.Policies) != 2 {
		t.Fatalf("%+v, %v", f, err)
	}
	if got := f.Policies[0]; got.Name != "NetworkPolicy default/web" || len(got.Ingress.Rules[0].Ports) != 3 || len(got.Ingress.Rules[0].Peers) != 2 {
		t.Errorf("%+v", got)
	}
	if got := f.Policies[1]; got.Name != "ClusterNetworkPolicy tenants" || got.Priority != 10 || len(got.Egress.Rules) != 1 {
		t.Errorf("%+v", got)
	}
}

func TestBadPolicies(t *testing.T) {
	o := origin("p.yaml")
	o.Policies = true
	for name, c := range map[string]struct{ from, to, want string }{
		"unknown field":      {"  ingress:", "  ingres:", "p.yaml:6: NetworkPolicy default/web: spec.ingres: unknown field"},
		"a mistake":          {"endPort: 9", "endPort: 70000", "p.yaml:7: NetworkPolicy default/web: spec.ingress[0].ports[2].endPort: 70000 is not a port: use 1 to 65535"},
		"the wrong type":     {"port: 80}", "port: [80]}", "p.yaml:7: NetworkPolicy default/web: spec.ingress[0].ports[0].port: [80] is not a number or a name"},
		"no name":            {"{name: web}", "{}", "p.yaml:3: document 1: metadata.name: missing"},
		"in a namespace":     {"metadata: {name: tenants}", "metadata: {name: tenants, namespace: x}", "p.yaml:12: ClusterNetworkPolicy tenants: metadata.namespace: a ClusterNetworkPolicy is in no namespace: remove it"},
		"a cluster's":        {"tier: Admin", "tier: Top", `p.yaml:14: ClusterNetworkPolicy tenants: spec.tier: "Top" is unknown: use Admin or Baseline`},
		"a cluster's field":  {"    to: [{networks", "    protocol: x\n    to: [{networks", "p.yaml:19: ClusterNetworkPolicy tenants: spec.egress[0].protocol: unknown field"},
		"an earlier version": {"v1alpha2", "v1alpha1", "p.yaml:11: document 2: kind: ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha1 is not supported"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(strings.Replace(policyFile, c.from, c.to, 1)), o)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %s", err, c.want)
			}
		})
	}
}
