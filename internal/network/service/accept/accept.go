// Package accept reads Services and EndpointSlices as the API defines them, and names each mistake.
// An address or port with a mistake is left out, and the rest of the object counts. It is pure.
package accept

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/huskd/husk/internal/network/service"
)

// Problem is a mistake in an object.
type Problem struct {
	Object string // such as "Service default/web"
	Field  string // such as "spec.ports[0].protocol"
	Text   string // what is wrong, and what to do
}

// String returns the problem as one line.
func (p Problem) String() string { return p.Object + ": " + p.Field + ": " + p.Text }

// maxProblems bounds the problems of an object that are returned.
const maxProblems = 20

type checker struct {
	object   string
	problems []Problem
}

func (c *checker) wrong(field, format string, args ...any) {
	if len(c.problems) < maxProblems {
		c.problems = append(c.problems, Problem{c.object, field, fmt.Sprintf(format, args...)})
	}
}

// addr reads an address of any form that is unambiguous.
func (c *checker) addr(field, text string) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(text)
	addr = addr.Unmap()
	switch {
	case err != nil || addr.Zone() != "":
		c.wrong(field, "%.64q is not an IP address", text)
	case addr.IsUnspecified() || addr.IsMulticast() || addr.IsLoopback():
		c.wrong(field, "%v can't be an address of a Service: use one that other hosts can reach", addr)
	default:
		return addr, true
	}
	return netip.Addr{}, false
}

func (c *checker) port(field string, n int32) (uint16, bool) {
	if n < 1 || n > 65535 {
		c.wrong(field, "%d is not a port: use 1 to 65535", n)
		return 0, false
	}
	return uint16(n), true
}

var protocols = map[corev1.Protocol]service.Protocol{
	"": service.TCP, corev1.ProtocolTCP: service.TCP, corev1.ProtocolUDP: service.UDP, corev1.ProtocolSCTP: service.SCTP,
}

// Protocol reads the protocol of a port, and reports whether it is known.
func Protocol(p corev1.Protocol) (service.Protocol, bool) {
	out, ok := protocols[p]
	return out, ok
}

func (c *checker) protocol(field string, p corev1.Protocol) (service.Protocol, bool) {
	out, ok := Protocol(p)
	if !ok {
		c.wrong(field, "%.64q is unknown: use TCP, UDP or SCTP", p)
	}
	return out, ok
}

const (
	// defaultAffinity is the API's default of clientIP.timeoutSeconds, and maxAffinity its maximum.
	defaultAffinity = 3 * time.Hour
	maxAffinity     = 24 * time.Hour
)

// OtherProxy reports whether another proxy than the cluster's takes care of a Service, by the label
// service.kubernetes.io/service-proxy-name.
func OtherProxy(from *corev1.Service) bool {
	_, other := from.Labels["service.kubernetes.io/service-proxy-name"]
	return other
}

// ForDNS reports whether an EndpointSlice is for DNS only, by the label
// service.kubernetes.io/headless. Those that Kubernetes makes for headless Services have it.
func ForDNS(from *discoveryv1.EndpointSlice) bool {
	_, headless := from.Labels[corev1.IsHeadlessService]
	return headless
}

// Service reads a Service. One without cluster IPs is headless or has an ExternalName.
func Service(from *corev1.Service) (service.Service, []Problem) {
	c := &checker{object: "Service " + from.Namespace + "/" + from.Name}
	spec := &from.Spec
	out := service.Service{Namespace: from.Namespace, Name: from.Name, PublishNotReady: spec.PublishNotReadyAddresses}
	if spec.Type == corev1.ServiceTypeExternalName {
		out.ExternalName = strings.TrimSuffix(spec.ExternalName, ".")
		if out.ExternalName == "" {
			c.wrong("spec.externalName", "missing: a Service of type ExternalName needs a name in DNS")
		}
		return out, c.problems
	}
	out.LoadBalancer = spec.Type == corev1.ServiceTypeLoadBalancer
	c.addresses(&out, from)
	c.ports(&out, spec.Ports)
	out.InternalLocal = spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	out.ExternalLocal = spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if out.ExternalLocal && out.LoadBalancer && spec.HealthCheckNodePort != 0 {
		out.HealthCheckPort, _ = c.port("spec.healthCheckNodePort", spec.HealthCheckNodePort)
	}
	switch spec.SessionAffinity {
	case "", corev1.ServiceAffinityNone:
	case corev1.ServiceAffinityClientIP:
		out.Affinity = defaultAffinity
		if a := spec.SessionAffinityConfig; a != nil && a.ClientIP != nil && a.ClientIP.TimeoutSeconds != nil {
			out.Affinity = time.Duration(*a.ClientIP.TimeoutSeconds) * time.Second
		}
		if out.Affinity <= 0 || out.Affinity > maxAffinity {
			c.wrong("spec.sessionAffinityConfig.clientIP.timeoutSeconds", "must be 1 to %d", int(maxAffinity.Seconds()))
			out.Affinity = defaultAffinity
		}
	default:
		c.wrong("spec.sessionAffinity", "%.64q is unknown: use None or ClientIP", spec.SessionAffinity)
	}
	return out, c.problems
}

func (c *checker) addresses(out *service.Service, from *corev1.Service) {
	spec := &from.Spec
	ips, field := spec.ClusterIPs, "spec.clusterIPs[%d]"
	if len(ips) == 0 && spec.ClusterIP != "" {
		ips, field = []string{spec.ClusterIP}, "spec.clusterIP"
	}
	for i, text := range ips {
		if text == corev1.ClusterIPNone || text == "" {
			continue
		}
		if addr, ok := c.addr(indexed(field, i), text); ok {
			out.ClusterIPs = append(out.ClusterIPs, addr)
		}
	}
	for i, text := range spec.ExternalIPs {
		if addr, ok := c.addr(indexed("spec.externalIPs[%d]", i), text); ok {
			out.ExternalIPs = append(out.ExternalIPs, addr)
		}
	}
	for i, in := range from.Status.LoadBalancer.Ingress {
		if in.IP == "" || in.IPMode != nil && *in.IPMode != corev1.LoadBalancerIPModeVIP {
			continue
		}
		if addr, ok := c.addr(indexed("status.loadBalancer.ingress[%d].ip", i), in.IP); ok {
			out.LoadBalancerIPs = append(out.LoadBalancerIPs, addr)
		}
	}
	for i, text := range spec.LoadBalancerSourceRanges {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(text))
		if err != nil {
			// Without this range, fewer may connect. With no range at all, everybody might.
			c.wrong(indexed("spec.loadBalancerSourceRanges[%d]", i), "%.64q is not a range of addresses such as 192.0.2.0/24", text)
			for _, never := range []string{"0.0.0.0/32", "::/128"} {
				out.SourceRanges = append(out.SourceRanges, netip.MustParsePrefix(never))
			}
			continue
		}
		out.SourceRanges = append(out.SourceRanges, prefix.Masked())
	}
}

func indexed(field string, i int) string {
	if strings.Contains(field, "%") {
		return fmt.Sprintf(field, i)
	}
	return field
}

func (c *checker) ports(out *service.Service, ports []corev1.ServicePort) {
	for i, p := range ports {
		at := fmt.Sprintf("spec.ports[%d]", i)
		number, ok := c.port(at+".port", p.Port)
		protocol, known := c.protocol(at+".protocol", p.Protocol)
		if !ok || !known {
			continue
		}
		port := service.Port{Name: p.Name, Protocol: protocol, Port: number}
		if p.NodePort != 0 {
			port.NodePort, _ = c.port(at+".nodePort", p.NodePort)
		}
		out.Ports = append(out.Ports, port)
	}
}

// Slice reads an EndpointSlice. It has no endpoints if their addresses are names.
func Slice(from *discoveryv1.EndpointSlice) (service.Slice, []Problem) {
	c := &checker{object: "EndpointSlice " + from.Namespace + "/" + from.Name}
	out := service.Slice{Namespace: from.Namespace, Name: from.Name, Service: from.Labels[discoveryv1.LabelServiceName]}
	if from.AddressType != discoveryv1.AddressTypeIPv4 && from.AddressType != discoveryv1.AddressTypeIPv6 {
		return out, nil
	}
	for i, p := range from.Ports {
		at := fmt.Sprintf("ports[%d]", i)
		if p.Port == nil { // every port, which no Service has
			continue
		}
		number, ok := c.port(at+".port", *p.Port)
		protocol, known := c.protocol(at+".protocol", deref(p.Protocol))
		if ok && known {
			out.Ports = append(out.Ports, service.EndpointPort{Name: deref(p.Name), Protocol: protocol, Port: number})
		}
	}
	for i := range from.Endpoints {
		e := &from.Endpoints[i]
		if len(e.Addresses) == 0 {
			c.wrong(fmt.Sprintf("endpoints[%d].addresses", i), "missing: use one address")
			continue
		}
		// Others are for proxies that know more about them, says the API.
		addr, ok := c.addr(fmt.Sprintf("endpoints[%d].addresses[0]", i), e.Addresses[0])
		if ok && addr.Is6() != (from.AddressType == discoveryv1.AddressTypeIPv6) {
			c.wrong(fmt.Sprintf("endpoints[%d].addresses[0]", i), "%v is not of addressType %s", addr, from.AddressType)
			ok = false
		}
		if ok {
			out.Endpoints = append(out.Endpoints, endpoint(e, addr))
		}
	}
	return out, c.problems
}

func endpoint(from *discoveryv1.Endpoint, addr netip.Addr) service.Endpoint {
	// The API says how conditions that aren't known count.
	ready := from.Conditions.Ready == nil || *from.Conditions.Ready
	out := service.Endpoint{
		Address: addr, Hostname: deref(from.Hostname), Node: deref(from.NodeName),
		Ready: ready, Serving: ready, Terminating: deref(from.Conditions.Terminating),
	}
	if from.Conditions.Serving != nil {
		out.Serving = *from.Conditions.Serving
	}
	if from.TargetRef != nil && from.TargetRef.Kind == "Pod" {
		out.Pod = from.TargetRef.Name
	}
	if from.Hints != nil {
		for _, n := range from.Hints.ForNodes {
			out.ForNodes = append(out.ForNodes, n.Name)
		}
		for _, z := range from.Hints.ForZones {
			out.ForZones = append(out.ForZones, z.Name)
		}
	}
	return out
}

func deref[T any](p *T) (out T) {
	if p != nil {
		out = *p
	}
	return out
}

// Node reads what of a node decides where connections lead. Its primary addresses are the first of
// each family, of the internal ones before the external ones.
func Node(from *corev1.Node) service.Node {
	out := service.Node{Name: from.Name, Zone: from.Labels[corev1.LabelTopologyZone]}
	has := map[bool]bool{} // by whether it is IPv6
	for _, kind := range []corev1.NodeAddressType{corev1.NodeInternalIP, corev1.NodeExternalIP} {
		for _, listed := range from.Status.Addresses {
			a, err := netip.ParseAddr(listed.Address)
			if err == nil && listed.Type == kind && !has[a.Is6()] {
				has[a.Is6()] = true
				out.Addresses = append(out.Addresses, a)
			}
		}
	}
	return out
}
