package nlsock

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Complete calls fn, which lists kernel objects, until nothing changed during the listing, a
// limited number of times.
func Complete[T any](fn func() ([]T, error)) (all []T, err error) {
	for range 20 {
		if all, err = fn(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

// Prefix returns n as a prefix, the zero Prefix for nil.
func Prefix(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	addr, _ := netip.AddrFromSlice(n.IP)
	ones, bits := n.Mask.Size()
	if bits == 32 {
		addr = addr.Unmap()
	}
	return netip.PrefixFrom(addr, ones)
}
