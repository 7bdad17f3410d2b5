package accept

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest/podspec"
	"github.com/huskd/husk/internal/network/policy"
)

// Pod returns what policies need of a pod, or nil if it has no part in them: it has finished, or
// has the address of its node.
func Pod(p *corev1.Pod) *policy.Pod {
	if p.Spec.HostNetwork || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return nil
	}
	out := &policy.Pod{Namespace: namespaceOf(p.Namespace), Name: p.Name, Labels: p.Labels, Started: p.CreationTimestamp.Time}
	if p.Status.StartTime != nil {
		out.Started = p.Status.StartTime.Time
	}
	for _, ip := range p.Status.PodIPs {
		out.Addresses = appendAddress(out.Addresses, ip.IP)
	}
	if len(p.Status.PodIPs) == 0 {
		out.Addresses = appendAddress(out.Addresses, p.Status.PodIP)
	}
	for c := range podspec.Lasting(&p.Spec) {
		out.Ports = appendPorts(out.Ports, c.Ports)
	}
	return out
}

// Node returns what policies need of a node. To the pods of other nodes, a node sends from the
// first address of its pods' subnet.
func Node(n *corev1.Node) *policy.Node {
	out := &policy.Node{Name: n.Name, Labels: n.Labels}
	for _, a := range n.Status.Addresses {
		out.Addresses = appendAddress(out.Addresses, a.Address)
	}
	for _, cidr := range n.Spec.PodCIDRs {
		if subnet, err := netip.ParsePrefix(cidr); err == nil {
			out.Addresses = append(out.Addresses, subnet.Masked().Addr().Next())
		}
	}
	return out
}

// appendAddress appends an address, and leaves out names.
func appendAddress(to []netip.Addr, text string) []netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return to
	}
	return append(to, addr.Unmap().WithZone(""))
}

func appendPorts(to []policy.NamedPort, ports []corev1.ContainerPort) []policy.NamedPort {
	for _, p := range ports {
		protocol, ok := protocols[podspec.Protocol(p.Protocol)]
		if ok && p.Name != "" && p.ContainerPort > 0 && p.ContainerPort <= 65535 {
			to = append(to, policy.NamedPort{Name: p.Name, Protocol: protocol, Port: uint16(p.ContainerPort)})
		}
	}
	return to
}
