package accept

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/network/service"
)

func TestComplete(t *testing.T) {
	s := read[corev1.Service](t, `
metadata: {namespace: default, name: web}
spec:
  selector: {app: web}
  clusterIPs: [10.96.0.1, "fd96::1"]
  ports: [{port: 80}]
`)
	if problems := Complete(s); len(problems) > 0 {
		t.Fatal(problems)
	}
	p := s.Spec.Ports[0]
	if s.Spec.Type != corev1.ServiceTypeClusterIP || s.Spec.ClusterIP != "10.96.0.1" || p.Protocol != corev1.ProtocolTCP || p.TargetPort.IntValue() != 80 {
		t.Errorf("%+v", s.Spec)
	}
	for spec, want := range map[string]string{
		"{type: Top, ports: [{port: 80}]}":                                               `spec.type: "Top" is unknown: use ClusterIP, NodePort, LoadBalancer or ExternalName`,
		"{selector: {a: b}}":                                                             "spec.ports: missing: a Service has at least one port, unless clusterIP is None",
		"{clusterIP: None}":                                                              "",
		"{clusterIP: None, type: NodePort, ports: [{port: 80}]}":                         "spec.clusterIP: None is for type ClusterIP: a Service of type NodePort has an address",
		"{ports: [{port: 80}, {port: 81, name: b}]}":                                     "spec.ports[0].name: missing: each of several ports has a name",
		"{ports: [{port: 80, name: a}, {port: 80, name: b}]}":                            "spec.ports[1].port: 80/TCP is there twice",
		"{ports: [{port: 80, name: a}, {port: 80, protocol: UDP, name: b}]}":             "",
		"{ports: [{port: 80, nodePort: 30080}]}":                                         "spec.ports[0].nodePort: a Service of type ClusterIP has no node ports: set type to NodePort",
		"{type: NodePort, ports: [{port: 80, nodePort: 80}]}":                            "spec.ports[0].nodePort: 80 is not within 30000…32767",
		"{ports: [{port: 80, targetPort: 0}]}":                                           "",
		"{ports: [{port: 80, targetPort: 70000}]}":                                       `spec.ports[0].targetPort: "70000" is neither a port nor the name of a port`,
		"{ports: [{port: 80}], clusterIPs: [10.0.0.1, 10.0.0.2]}":                        "spec.clusterIPs: use at most one IPv4 and one IPv6 address",
		"{ports: [{port: 80}], clusterIP: 10.0.0.1, ipFamilies: [IPv6]}":                 "spec.ipFamilies[0]: IPv6 is not that of 10.0.0.1",
		"{ports: [{port: 80}], clusterIP: ten}":                                          `spec.clusterIP: "ten" is not an IP address`,
		"{ports: [{port: 80}], ipFamilyPolicy: Both}":                                    `spec.ipFamilyPolicy: "Both" is unknown: use SingleStack, PreferDualStack or RequireDualStack`,
		"{type: ExternalName}":                                                           "spec.externalName: missing: a Service of type ExternalName needs a name in DNS",
		"{type: ExternalName, externalName: db.example.com}":                             "",
		"{selector: {a: 'b c'}, ports: [{port: 80}]}":                                    `spec.selector.a: "a": "b c" is not a label`,
		"{ports: [{port: 80}], externalTrafficPolicy: Near}":                             `spec.externalTrafficPolicy: "Near" is unknown: use Cluster or Local`,
		"{type: NodePort, ports: [{port: 0}]}":                                           "spec.ports[0].port: 0 is not a port: use 1 to 65535",
		"{type: NodePort, ports: [{port: 1, name: a}, {port: 2, name: a, nodePort: 0}]}": "spec.ports[1].name: a is the name of another port, too",
	} {
		problems := Complete(read[corev1.Service](t, "metadata: {namespace: default, name: web}\nspec: "+spec))
		got := ""
		if len(problems) > 0 {
			got = problems[0].Field + ": " + problems[0].Text
		}
		if got != want || len(problems) > 1 {
			t.Errorf("%s:\ngot  %v\nwant %s", spec, problems, want)
		}
	}
}

func TestEndpoints(t *testing.T) {
	addr := netip.MustParseAddr
	from := `
metadata: {namespace: default, name: db}
subsets:
- addresses: [{ip: 192.0.2.2, hostname: a}, {ip: "2001:db8::1"}, {ip: 127.0.0.1}]
  notReadyAddresses: [{ip: 192.0.2.1}]
  ports: [{port: 5432, name: sql}]
`
	got, problems := Endpoints(read[corev1.Endpoints](t, from)) //nolint:staticcheck // manifests still have it
	ports := []service.EndpointPort{{Name: "sql", Protocol: service.TCP, Port: 5432}}
	want := []service.Slice{
		{Namespace: "default", Name: "db-0-ipv4", Service: "db", Ports: ports, Endpoints: []service.Endpoint{
			{Address: addr("192.0.2.1")}, {Address: addr("192.0.2.2"), Hostname: "a", Ready: true, Serving: true},
		}},
		{Namespace: "default", Name: "db-0-ipv6", Service: "db", Ports: ports, Endpoints: []service.Endpoint{{Address: addr("2001:db8::1"), Ready: true, Serving: true}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("\ngot  %+v\nwant %+v", got, want)
	}
	if text := fmt.Sprint(problems); text != "[Endpoints default/db: subsets[0].addresses[2].ip: 127.0.0.1 can't be an address of a Service: use one that other hosts can reach]" {
		t.Error(text)
	}
}
