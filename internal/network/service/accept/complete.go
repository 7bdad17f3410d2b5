package accept

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/huskd/husk/internal/network/service"
)

// Complete checks a Service of a manifest as an API server would, and sets its defaults. Its
// addresses and node ports may still have to be chosen.
func Complete(s *corev1.Service) []Problem {
	c := &checker{object: "Service " + s.Namespace + "/" + s.Name}
	spec := &s.Spec
	spec.Type = cmp.Or(spec.Type, corev1.ServiceTypeClusterIP)
	if len(validation.IsDNS1123Label(s.Name)) > 0 && s.Name != "" {
		c.wrong("metadata.name", "%q can't be the name of a Service: use at most 63 lower-case letters, digits and -", s.Name)
	}
	for key, value := range spec.Selector {
		if len(validation.IsQualifiedName(key)) > 0 || len(validation.IsValidLabelValue(value)) > 0 {
			c.wrong("spec.selector."+key, "%.64q: %.64q is not a label", key, value)
		}
	}
	switch spec.Type {
	case corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer:
	case corev1.ServiceTypeExternalName:
		if name := spec.ExternalName; name != "" && len(validation.IsDNS1123Subdomain(name)) > 0 {
			c.wrong("spec.externalName", "%.253q is not a name in DNS", name)
		}
	default:
		c.wrong("spec.type", "%.64q is unknown: use ClusterIP, NodePort, LoadBalancer or ExternalName", spec.Type)
	}
	c.completeAddresses(spec)
	c.completePorts(spec)
	_, problems := Service(s)
	return append(c.problems, problems...)
}

// completeAddresses checks what concerns addresses.
func (c *checker) completeAddresses(spec *corev1.ServiceSpec) {
	if len(spec.ClusterIPs) > 0 && spec.ClusterIP == "" {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	given := spec.ClusterIPs
	if len(given) == 0 && spec.ClusterIP != "" {
		given = []string{spec.ClusterIP}
	}
	var six []bool
	for _, text := range given {
		if addr, err := netip.ParseAddr(text); err == nil {
			six = append(six, addr.Is6())
		}
	}
	switch {
	case len(spec.ClusterIPs) > 0 && spec.ClusterIPs[0] != spec.ClusterIP:
		c.wrong("spec.clusterIPs", "the first is not clusterIP, %s: leave one of both fields out", spec.ClusterIP)
	case len(given) > 2 || len(six) == 2 && six[0] == six[1]:
		c.wrong("spec.clusterIPs", "use at most one IPv4 and one IPv6 address")
	case Headless(spec) && spec.Type != corev1.ServiceTypeClusterIP && spec.Type != corev1.ServiceTypeExternalName:
		c.wrong("spec.clusterIP", "None is for type ClusterIP: a Service of type %s has an address", spec.Type)
	}
	for i, f := range spec.IPFamilies {
		if f != corev1.IPv4Protocol && f != corev1.IPv6Protocol || slices.Contains(spec.IPFamilies[:i], f) {
			c.wrong(fmt.Sprintf("spec.ipFamilies[%d]", i), "%.64q: use IPv4 and IPv6, each at most once", f)
		} else if i < len(six) && six[i] != (f == corev1.IPv6Protocol) {
			c.wrong(fmt.Sprintf("spec.ipFamilies[%d]", i), "%s is not that of %s", f, given[i])
		}
	}
	if p := deref(spec.IPFamilyPolicy); p != "" && p != corev1.IPFamilyPolicySingleStack && p != corev1.IPFamilyPolicyPreferDualStack && p != corev1.IPFamilyPolicyRequireDualStack {
		c.wrong("spec.ipFamilyPolicy", "%.64q is unknown: use SingleStack, PreferDualStack or RequireDualStack", p)
	}
	if p := deref(spec.InternalTrafficPolicy); p != "" && p != corev1.ServiceInternalTrafficPolicyCluster && p != corev1.ServiceInternalTrafficPolicyLocal {
		c.wrong("spec.internalTrafficPolicy", "%.64q is unknown: use Cluster or Local", p)
	}
	if p := spec.ExternalTrafficPolicy; p != "" && p != corev1.ServiceExternalTrafficPolicyCluster && p != corev1.ServiceExternalTrafficPolicyLocal {
		c.wrong("spec.externalTrafficPolicy", "%.64q is unknown: use Cluster or Local", p)
	}
}

// Headless reports whether a Service shall have no address.
func Headless(spec *corev1.ServiceSpec) bool { return spec.ClusterIP == corev1.ClusterIPNone }

// The ports of nodes that Services get.
const (
	FirstNodePort = 30000
	LastNodePort  = 32767
)

func (c *checker) completePorts(spec *corev1.ServiceSpec) {
	if len(spec.Ports) == 0 && !Headless(spec) && spec.Type != corev1.ServiceTypeExternalName {
		c.wrong("spec.ports", "missing: a Service has at least one port, unless clusterIP is None")
	}
	type numbered struct {
		protocol corev1.Protocol
		port     int32
	}
	names, ports, nodePorts := map[string]bool{}, map[numbered]bool{}, map[numbered]bool{}
	for i := range spec.Ports {
		p := &spec.Ports[i]
		at := fmt.Sprintf("spec.ports[%d]", i)
		p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
		if p.TargetPort == (intstr.IntOrString{}) || p.TargetPort == intstr.FromString("") {
			p.TargetPort = intstr.FromInt32(p.Port)
		}
		switch {
		case p.Name == "" && len(spec.Ports) > 1:
			c.wrong(at+".name", "missing: each of several ports has a name")
		case p.Name != "" && len(validation.IsDNS1123Label(p.Name)) > 0:
			c.wrong(at+".name", "%.64q is not valid: use at most 63 lower-case letters, digits and -", p.Name)
		case p.Name != "" && names[p.Name]:
			c.wrong(at+".name", "%s is the name of another port, too", p.Name)
		case ports[numbered{p.Protocol, p.Port}]:
			c.wrong(at+".port", "%d/%s is there twice", p.Port, p.Protocol)
		}
		if t := p.TargetPort; t.Type == intstr.String && len(validation.IsValidPortName(t.StrVal)) > 0 ||
			t.Type == intstr.Int && t.IntVal != p.Port && len(validation.IsValidPortNum(int(t.IntVal))) > 0 {
			c.wrong(at+".targetPort", "%.64q is neither a port nor the name of a port", t.String())
		}
		switch n := p.NodePort; {
		case n == 0:
		case spec.Type != corev1.ServiceTypeNodePort && spec.Type != corev1.ServiceTypeLoadBalancer:
			c.wrong(at+".nodePort", "a Service of type %s has no node ports: set type to NodePort", spec.Type)
		case n < FirstNodePort || n > LastNodePort:
			c.wrong(at+".nodePort", "%d is not within %d…%d", n, FirstNodePort, LastNodePort)
		case nodePorts[numbered{p.Protocol, n}]:
			c.wrong(at+".nodePort", "%d/%s is there twice", n, p.Protocol)
		}
		names[p.Name], ports[numbered{p.Protocol, p.Port}], nodePorts[numbered{p.Protocol, p.NodePort}] = true, true, true
	}
}

// Endpoints reads an Endpoints object, as one slice for each of its subsets and address families.
func Endpoints(from *corev1.Endpoints) (out []service.Slice, problems []Problem) { //nolint:staticcheck // manifests still have it
	c := &checker{object: "Endpoints " + from.Namespace + "/" + from.Name}
	for i := range from.Subsets {
		subset := &from.Subsets[i]
		var ports []service.EndpointPort
		for j, p := range subset.Ports {
			at := fmt.Sprintf("subsets[%d].ports[%d]", i, j)
			number, ok := c.port(at+".port", p.Port)
			protocol, known := c.protocol(at+".protocol", p.Protocol)
			if ok && known {
				ports = append(ports, service.EndpointPort{Name: p.Name, Protocol: protocol, Port: number})
			}
		}
		families := map[bool][]service.Endpoint{}
		for field, addresses := range map[string][]corev1.EndpointAddress{"addresses": subset.Addresses, "notReadyAddresses": subset.NotReadyAddresses} {
			for j := range addresses {
				a := &addresses[j]
				addr, ok := c.addr(fmt.Sprintf("subsets[%d].%s[%d].ip", i, field, j), a.IP)
				if !ok {
					continue
				}
				ready := field == "addresses"
				e := service.Endpoint{Address: addr, Hostname: a.Hostname, Node: deref(a.NodeName), Ready: ready, Serving: ready}
				if a.TargetRef != nil && a.TargetRef.Kind == "Pod" {
					e.Pod = a.TargetRef.Name
				}
				families[addr.Is6()] = append(families[addr.Is6()], e)
			}
		}
		for six, endpoints := range families {
			slices.SortFunc(endpoints, func(a, b service.Endpoint) int { return a.Address.Compare(b.Address) })
			out = append(out, service.Slice{
				Namespace: from.Namespace, Name: fmt.Sprintf("%s-%d-%s", from.Name, i, FamilyName(six)), Service: from.Name,
				Ports: ports, Endpoints: endpoints,
			})
		}
	}
	slices.SortFunc(out, func(a, b service.Slice) int { return cmp.Compare(a.Name, b.Name) })
	return out, c.problems
}

// FamilyName returns ipv4 or ipv6.
func FamilyName(six bool) string {
	if six {
		return "ipv6"
	}
	return "ipv4"
}
