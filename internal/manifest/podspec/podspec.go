// Package podspec answers questions about the containers of a pod's specification.
package podspec

import (
	"cmp"
	"iter"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// Containers yields the containers of a pod in the order in which they start, without ephemeral
// ones.
func Containers(spec *corev1.PodSpec) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		_ = each(spec.InitContainers, yield) && each(spec.Containers, yield)
	}
}

// Lasting yields the containers that run as long as the pod: its containers, then its sidecars.
func Lasting(spec *corev1.PodSpec) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		_ = each(spec.Containers, yield) && each(spec.InitContainers, func(c *corev1.Container) bool { return !IsSidecar(c) || yield(c) })
	}
}

// each calls f for the containers of a list until it returns false.
func each(list []corev1.Container, f func(*corev1.Container) bool) bool {
	for i := range list {
		if !f(&list[i]) {
			return false
		}
	}
	return true
}

// IsSidecar reports whether an init container keeps running beside the containers.
func IsSidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// HasSidecar reports whether a pod has a sidecar of that name.
func HasSidecar(spec *corev1.PodSpec, name string) bool {
	return !each(spec.InitContainers, func(c *corev1.Container) bool { return c.Name != name || !IsSidecar(c) })
}

// Port returns the number of the port of that name and protocol, or 0 if no container that lasts
// has it. As in Kubernetes' endpoints, an init container that ends has no ports for others.
func Port(spec *corev1.PodSpec, name string, protocol corev1.Protocol) int32 {
	for c := range Lasting(spec) {
		for _, p := range c.Ports {
			if p.Name == name && Protocol(p.Protocol) == Protocol(protocol) {
				return p.ContainerPort
			}
		}
	}
	return 0
}

// Protocol returns the protocol of a port, which is TCP if it isn't given.
func Protocol(given corev1.Protocol) corev1.Protocol { return cmp.Or(given, corev1.ProtocolTCP) }

// SameHostPort reports whether two ports exclude each other on one node. As for the scheduler, no
// address, 0.0.0.0 and :: mean all addresses.
func SameHostPort(a, b corev1.ContainerPort) bool {
	if a.HostPort == 0 || a.HostPort != b.HostPort || Protocol(a.Protocol) != Protocol(b.Protocol) {
		return false
	}
	x, _ := netip.ParseAddr(a.HostIP)
	y, _ := netip.ParseAddr(b.HostIP)
	everywhere := func(ip netip.Addr) bool { return !ip.IsValid() || ip.IsUnspecified() }
	return everywhere(x) || everywhere(y) || x.Unmap() == y.Unmap()
}
