package preflight

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/pod"
)

// PortsFree returns an error of kind unavailable if a process on the node listens on one of the
// hostPorts. (The kernel would send all packets to the pod, and the process would get none.)
func PortsFree(ports []pod.PortMapping) error {
	for _, p := range ports {
		where, taken, err := Listener(p)
		if err != nil {
			return fmt.Errorf("host port %d/%s: check whether it is free: %w", p.HostPort, p.Protocol, err)
		}
		if taken {
			return &pod.PortInUseError{Port: p, By: fmt.Sprintf("a process listens on %v; stop it or use another hostPort", where)}
		}
	}
	return nil
}

// Listener returns where a process of the node listens that would get the packets to a port. A
// trial bind is quick and finds all listeners. It also fails for client connections that use the
// port locally, so the list of sockets has the last word.
func Listener(p pod.PortMapping) (where netip.AddrPort, listens bool, err error) {
	for _, addr := range listenAddresses(p.HostIP) {
		taken, err := taken(p, addr)
		if err != nil {
			return netip.AddrPort{}, false, err
		}
		if !taken {
			continue
		}
		if where, ok := listener(p, addr); ok {
			return where, true, nil
		}
	}
	return netip.AddrPort{}, false, nil
}

func listenAddresses(hostIP netip.Addr) []netip.Addr {
	if hostIP.IsValid() {
		return []netip.Addr{hostIP}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

// taken reports whether binding to a port fails because it is in use. A kernel without SCTP sockets
// has no listeners on SCTP.
func taken(p pod.PortMapping, addr netip.Addr) (bool, error) {
	family, typ, proto := unix.AF_INET, unix.SOCK_STREAM, 0
	if addr.Is6() {
		family = unix.AF_INET6
	}
	switch p.Protocol {
	case pod.UDP:
		typ = unix.SOCK_DGRAM
	case pod.SCTP:
		proto = unix.IPPROTO_SCTP
	}
	fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, proto)
	if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	if typ == unix.SOCK_STREAM {
		// Old connections of a server that has exited must not count.
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
			return false, err
		}
	}
	var sa unix.Sockaddr = &unix.SockaddrInet4{Port: int(p.HostPort), Addr: as4(addr)}
	if addr.Is6() {
		if err := unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 1); err != nil {
			return false, err
		}
		sa = &unix.SockaddrInet6{Port: int(p.HostPort), Addr: addr.As16()}
	}
	switch err := unix.Bind(fd, sa); {
	case errors.Is(err, unix.EADDRINUSE):
		return true, nil
	case errors.Is(err, unix.EADDRNOTAVAIL):
		return false, nil // not an address of this node yet
	case err != nil:
		return false, err
	}
	return false, nil
}

func as4(a netip.Addr) (b [4]byte) {
	if a.Is4() {
		b = a.As4()
	}
	return b
}

// listener returns the address of a socket that listens on the port. If the sockets can't be
// listed, it trusts the trial bind.
func listener(p pod.PortMapping, addr netip.Addr) (netip.AddrPort, bool) {
	families := []uint8{unix.AF_INET6} // [::] usually takes IPv4 too
	if addr.Is4() {
		families = []uint8{unix.AF_INET, unix.AF_INET6}
	}
	for _, family := range families {
		var sockets []*netlink.Socket
		var err error
		waiting := []uint8{netlink.TCP_LISTEN}
		switch p.Protocol {
		case pod.TCP:
			sockets, err = netlink.SocketDiagTCP(family)
		case pod.UDP:
			sockets, err = netlink.SocketDiagUDP(family)
			waiting = []uint8{netlink.TCP_CLOSE} // not connected to a peer
		default:
			return netip.AddrPortFrom(addr, p.HostPort), true
		}
		if err != nil {
			return netip.AddrPortFrom(addr, p.HostPort), true
		}
		for _, s := range sockets {
			at, _ := netip.AddrFromSlice(s.ID.Source) // IPv4 comes mapped
			at = at.Unmap()
			if s.ID.SourcePort == p.HostPort && slices.Contains(waiting, s.State) && meets(at, addr) {
				return netip.AddrPortFrom(at, p.HostPort), true
			}
		}
	}
	return netip.AddrPort{}, false
}

// meets reports whether sockets on the two addresses conflict.
func meets(a, b netip.Addr) bool {
	if a.IsUnspecified() || b.IsUnspecified() {
		return a.Is4() == b.Is4() || a.Is6() && a.IsUnspecified()
	}
	return a == b
}
