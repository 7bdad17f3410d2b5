package endpoints

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(name, app string, port int32, addresses ...string) Pod {
	p := Pod{
		Pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
				{Name: "http", Protocol: corev1.ProtocolUDP, ContainerPort: 1}, {Name: "http", Protocol: corev1.ProtocolTCP, ContainerPort: port},
			}}}},
		},
		Ready: true, Serving: true,
	}
	for _, a := range addresses {
		p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
	}
	return p
}

func TestSlices(t *testing.T) {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": "web"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol},
			Ports: []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromString("http")}},
		},
	}
	named := pod("c", "web", 8080, "10.0.0.3")
	named.Spec.Hostname, named.Spec.Subdomain = "primary", "web"
	leaving := pod("d", "web", 8080, "10.0.0.4")
	leaving.Ready, leaving.Terminating = false, true
	elsewhere := pod("e", "web", 8080, "10.0.0.5")
	elsewhere.Pod.Namespace = "other"
	portless := pod("f", "web", 8080, "10.0.0.6")
	portless.Spec.InitContainers, portless.Spec.Containers = portless.Spec.Containers, nil // they end before the pod serves
	pods := []Pod{pod("b", "web", 8081, "10.0.0.2"), pod("a", "web", 8080, "10.0.0.1", "fd00::1"), named, leaving, elsewhere, portless, pod("g", "db", 8080, "10.0.0.7")}
	text := func() (out string) {
		for _, slice := range Slices(s, Select(s, pods), "n") {
			out += fmt.Sprintf("%s of %s %v:", slice.Name, slice.Service, slice.Ports)
			for _, e := range slice.Endpoints {
				out += fmt.Sprintf(" %s=%v on %s %q %v %v %v", e.Pod, e.Address, e.Node, e.Hostname, e.Ready, e.Serving, e.Terminating)
			}
			out += "\n"
		}
		return out
	}
	if got, want := text(), `web-ipv4-1 of web [{web TCP 8080}]: a=10.0.0.1 on n "" true true false c=10.0.0.3 on n "primary" true true false d=10.0.0.4 on n "" false true true
web-ipv6-1 of web [{web TCP 8080}]: a=fd00::1 on n "" true true false
web-ipv4-2 of web [{web TCP 8081}]: b=10.0.0.2 on n "" true true false
`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.Spec.PublishNotReadyAddresses, s.Spec.IPFamilies, s.Spec.Ports = true, s.Spec.IPFamilies[:1], nil
	if got, want := text(), `web-ipv4-1 of web []: a=10.0.0.1 on n "" true true false b=10.0.0.2 on n "" true true false c=10.0.0.3 on n "primary" true true false d=10.0.0.4 on n "" true true true f=10.0.0.6 on n "" true true false
`; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	s.Spec.Selector = nil
	if got := text(); got != "" {
		t.Errorf("without a selector: %s", got)
	}
}
