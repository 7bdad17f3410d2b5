package plan

import (
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/pod"
)

// Mappings returns the ports of a that need forwarding, without duplicates: those with a hostPort
// (CRI lists others too). The default protocol is TCP. A HostIP of 0.0.0.0 or :: means all
// addresses of its family, the zero Addr all of both.
func Mappings(a pod.Attachment) []pod.PortMapping {
	var out []pod.PortMapping
	for _, m := range a.Ports {
		if m.HostPort == 0 {
			continue
		}
		if m.Protocol == "" {
			m.Protocol = pod.TCP
		}
		m.HostIP = m.HostIP.Unmap()
		if !slices.Contains(out, m) {
			out = append(out, m)
		}
	}
	return out
}

// UDPPorts returns the hostPorts of a that existing UDP flows may bypass.
func UDPPorts(a pod.Attachment) (out []uint16) {
	for _, m := range Mappings(a) {
		if m.Protocol == pod.UDP {
			out = append(out, m.HostPort)
		}
	}
	return out
}

// allAddresses reports whether a HostIP means more than one address.
func allAddresses(hostIP netip.Addr) bool { return !hostIP.IsValid() || hostIP.IsUnspecified() }

// serves reports whether packets to hostIP can be forwarded to a pod's address.
func serves(hostIP, addr netip.Addr) bool { return !hostIP.IsValid() || hostIP.Is4() == addr.Is4() }

// onLoopback reports whether a has a port that the node itself reaches by a loopback address of
// addr's family.
func onLoopback(a pod.Attachment, addr netip.Addr) bool {
	return slices.ContainsFunc(Mappings(a), func(m pod.PortMapping) bool {
		return serves(m.HostIP, addr) && (allAddresses(m.HostIP) || m.HostIP.IsLoopback())
	})
}

// Clash reports whether two ports exclude each other on one node.
func Clash(a, b pod.PortMapping) bool {
	if a.Protocol != b.Protocol || a.HostPort != b.HostPort {
		return false
	}
	if !a.HostIP.IsValid() || !b.HostIP.IsValid() {
		return true
	}
	return a.HostIP.Is4() == b.HostIP.Is4() && (allAddresses(a.HostIP) || allAddresses(b.HostIP) || a.HostIP == b.HostIP)
}

// ifNameSize is IFNAMSIZ without the zero that ends a name.
const ifNameSize = 15

// Check returns an error of kind invalid argument, naming the field, if a can't be attached.
func Check(a pod.Attachment) error {
	invalid := func(format string, args ...any) error {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(format, args...))
	}
	if !pod.ValidID(a.Sandbox) {
		return invalid("sandbox %q: not an ID of %d hex digits", a.Sandbox, pod.IDLength)
	}
	// dev_valid_name of the kernel.
	if a.IfName == "" || len(a.IfName) > ifNameSize || a.IfName == "." || a.IfName == ".." || strings.ContainsAny(a.IfName, "/: \t\n\v\f\r\x00") {
		return invalid("interface name %q: use 1 to %d bytes without slash, colon or space", a.IfName, ifNameSize)
	}
	if a.IfName == "lo" {
		return invalid("interface name lo is taken by the loopback link: use another")
	}
	if !path.IsAbs(a.Netns) {
		return invalid("network namespace %q: not an absolute path", a.Netns)
	}
	if _, err := ParseMAC(a.MAC); a.MAC != "" && err != nil {
		return invalid("MAC address %v", err)
	}
	for i, m := range Mappings(a) {
		if m.Protocol != pod.TCP && m.Protocol != pod.UDP && m.Protocol != pod.SCTP {
			return invalid("hostPort %d: protocol %q is none of tcp, udp, sctp", m.HostPort, m.Protocol)
		}
		if m.Port == 0 {
			return invalid("hostPort %d/%s: no containerPort to forward to", m.HostPort, m.Protocol)
		}
		if m.HostIP.Zone() != "" {
			return invalid("hostPort %d/%s: hostIP %v: write it without the zone", m.HostPort, m.Protocol, m.HostIP)
		}
		if m.HostIP.IsMulticast() {
			return invalid("hostPort %d/%s: hostIP %v is a multicast address", m.HostPort, m.Protocol, m.HostIP)
		}
		for _, other := range Mappings(a)[:i] {
			if Clash(m, other) {
				return invalid("hostPort %d/%s is listed twice", m.HostPort, m.Protocol)
			}
		}
	}
	return nil
}
