package accept

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/huskd/husk/internal/network/service"
)

func read[T any](t *testing.T, text string) *T {
	t.Helper()
	out := new(T)
	if err := yaml.UnmarshalStrict([]byte(text), out); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestService(t *testing.T) {
	addr := netip.MustParseAddr
	for text, want := range map[string]service.Service{
		`
metadata: {namespace: default, name: web}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.1
  clusterIPs: [10.96.0.1, "fd96::1"]
  externalIPs: [192.0.2.1]
  externalTrafficPolicy: Local
  internalTrafficPolicy: Local
  healthCheckNodePort: 31000
  sessionAffinity: ClientIP
  loadBalancerSourceRanges: [" 198.51.100.0/24 "]
  ports:
  - {name: http, port: 80, nodePort: 30080, targetPort: web}
  - {name: dns, port: 53, protocol: UDP}
status: {loadBalancer: {ingress: [{ip: 192.0.2.2}, {ip: 192.0.2.3, ipMode: Proxy}, {hostname: lb.example}]}}
`: {
			Namespace: "default", Name: "web", ClusterIPs: []netip.Addr{addr("10.96.0.1"), addr("fd96::1")},
			ExternalIPs: []netip.Addr{addr("192.0.2.1")}, LoadBalancer: true, LoadBalancerIPs: []netip.Addr{addr("192.0.2.2")},
			SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			Ports:        []service.Port{{Name: "http", Protocol: service.TCP, Port: 80, NodePort: 30080}, {Name: "dns", Protocol: service.UDP, Port: 53}},
			Affinity:     3 * time.Hour, InternalLocal: true, ExternalLocal: true, HealthCheckPort: 31000,
		},
		`{metadata: {namespace: a, name: db}, spec: {clusterIP: None, publishNotReadyAddresses: true, ports: [{port: 1}]}}`: {
			Namespace: "a", Name: "db", PublishNotReady: true, Ports: []service.Port{{Protocol: service.TCP, Port: 1}},
		},
		`{metadata: {namespace: a, name: x}, spec: {type: ExternalName, externalName: db.example.}}`: {
			Namespace: "a", Name: "x", ExternalName: "db.example",
		},
	} {
		got, problems := Service(read[corev1.Service](t, text))
		if !reflect.DeepEqual(got, want) || len(problems) > 0 {
			t.Errorf("%s\ngot  %+v\nwant %+v, problems %v", text, got, want, problems)
		}
	}
}

func TestSlice(t *testing.T) {
	got, problems := Slice(read[discoveryv1.EndpointSlice](t, `
metadata: {namespace: default, name: web-1, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080, protocol: TCP}, {name: any}]
endpoints:
- {addresses: [10.88.0.1], nodeName: a, hostname: web-0, targetRef: {kind: Pod, name: web-0}, hints: {forZones: [{name: z}], forNodes: [{name: a}]}}
- {addresses: [10.88.0.2], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.88.0.3], conditions: {ready: false}}
`))
	at := netip.MustParseAddr
	want := service.Slice{
		Namespace: "default", Name: "web-1", Service: "web", Ports: []service.EndpointPort{{Name: "http", Protocol: service.TCP, Port: 8080}},
		Endpoints: []service.Endpoint{
			{Address: at("10.88.0.1"), Hostname: "web-0", Pod: "web-0", Node: "a", Ready: true, Serving: true, ForNodes: []string{"a"}, ForZones: []string{"z"}},
			{Address: at("10.88.0.2"), Serving: true, Terminating: true},
			{Address: at("10.88.0.3")},
		},
	}
	if !reflect.DeepEqual(got, want) || len(problems) > 0 {
		t.Errorf("got  %+v\nwant %+v, problems %v", got, want, problems)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	_, problems := Service(read[corev1.Service](t, `
metadata: {namespace: default, name: web}
spec:
  clusterIP: 10.96.0.256
  externalIPs: [127.0.0.1]
  sessionAffinity: Cookie
  loadBalancerSourceRanges: [everybody]
  ports: [{port: 0}, {port: 1, protocol: ICMP}, {port: 2, nodePort: 99999}]
`))
	_, more := Slice(read[discoveryv1.EndpointSlice](t, `
metadata: {namespace: default, name: web-1}
addressType: IPv4
endpoints: [{addresses: ["fd88::1"]}, {addresses: []}]
`))
	var got []string
	for _, p := range append(problems, more...) {
		got = append(got, p.String())
	}
	want := []string{
		`Service default/web: spec.clusterIP: "10.96.0.256" is not an IP address`,
		`Service default/web: spec.externalIPs[0]: 127.0.0.1 can't be an address of a Service: use one that other hosts can reach`,
		`Service default/web: spec.loadBalancerSourceRanges[0]: "everybody" is not a range of addresses such as 192.0.2.0/24`,
		`Service default/web: spec.ports[0].port: 0 is not a port: use 1 to 65535`,
		`Service default/web: spec.ports[1].protocol: "ICMP" is unknown: use TCP, UDP or SCTP`,
		`Service default/web: spec.ports[2].nodePort: 99999 is not a port: use 1 to 65535`,
		`Service default/web: spec.sessionAffinity: "Cookie" is unknown: use None or ClientIP`,
		`EndpointSlice default/web-1: endpoints[0].addresses[0]: fd88::1 is not of addressType IPv4`,
		`EndpointSlice default/web-1: endpoints[1].addresses: missing: use one address`,
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestNode(t *testing.T) {
	address := func(kind corev1.NodeAddressType, a string) corev1.NodeAddress {
		return corev1.NodeAddress{Type: kind, Address: a}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}
	node.Status.Addresses = []corev1.NodeAddress{
		address(corev1.NodeHostName, "n"), address(corev1.NodeExternalIP, "203.0.113.1"), address(corev1.NodeExternalIP, "2001:db8::1"),
		address(corev1.NodeInternalIP, "192.0.2.1"), address(corev1.NodeInternalIP, "192.0.2.2"),
	}
	want := service.Node{Name: "n", Zone: "z", Addresses: []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}}
	if got := Node(node); !got.Equal(want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
}
