package kinds

import "testing"

func TestLookup(t *testing.T) {
	t.Parallel()
	for object, want := range map[[2]string]bool{
		{"v1", "ServiceAccount"}:                           true,
		{"v1", "ServiceAcount"}:                            false,
		{"v1", "Pod"}:                                      false,
		{"rbac.authorization.k8s.io/v1", "Role"}:           true,
		{"policy/v1", "PodDisruptionBudget"}:               true,
		{"policy/v1beta1", "PodSecurityPolicy"}:            false,
		{"apps/v1", "Deployment"}:                          false,
		{"networking.k8s.io/v1", "Ingress"}:                true,
		{"networking.k8s.io/v1", "NetworkPolicy"}:          false,
		{"monitoring.example.com/v1", "ServiceMonitor"}:    true,
		{"misspelt/v1", "Deployment"}:                      false,
		{"gateway.networking.k8s.io/v1beta1", "HTTPRoute"}: true,
	} {
		if why, ok := Lookup(object[0], object[1]); ok != want || ok != (why != "") {
			t.Errorf("%v: %q %v, want %v", object, why, ok, want)
		}
	}
}
