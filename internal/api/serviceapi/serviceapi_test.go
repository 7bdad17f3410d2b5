package serviceapi

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
)

// TestType: the type is that of the manifest, also if a load balancer has given no address.
func TestType(t *testing.T) {
	for want, spec := range map[string]corev1.ServiceSpec{
		"ClusterIP":    {ClusterIP: "10.96.0.2"},
		"Headless":     {ClusterIP: corev1.ClusterIPNone},
		"NodePort":     {ClusterIP: "10.96.0.2", Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}},
		"LoadBalancer": {ClusterIP: "10.96.0.2", Type: corev1.ServiceTypeLoadBalancer, Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}},
		"ExternalName": {ExternalName: "example.com", Type: corev1.ServiceTypeExternalName},
	} {
		of, problems := accept.Service(&corev1.Service{Spec: spec})
		if len(problems) > 0 {
			t.Errorf("%s: %v", want, problems)
		}
		if got := serviceMessage(&of, nil, service.Node{}).Type; got != want {
			t.Errorf("%s is listed as %s", want, got)
		}
	}
}
