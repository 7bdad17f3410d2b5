package rtnetlink

import (
	"encoding/binary"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/nlsock"
	"github.com/huskd/husk/internal/network/plan"
)

// KernelNeighbour is a neighbour, or a forwarding entry of a link, as the kernel has it.
type KernelNeighbour struct {
	Link  int // index
	State uint16
	Flags uint8
	Addr  netip.Addr // or destination
	MAC   plan.MAC
}

// ParseNeighbour parses a message about a neighbour or forwarding entry, without the netlink
// header. It returns false if there is no address in it.
func ParseNeighbour(data []byte) (n KernelNeighbour, ok bool) {
	const size = 12 // of struct ndmsg
	if len(data) < size {
		return n, false
	}
	n.Link = int(int32(binary.NativeEndian.Uint32(data[4:])))
	n.State, n.Flags = binary.NativeEndian.Uint16(data[8:]), data[10]
	for typ, value := range nlsock.Attributes(data[size:]) {
		switch {
		case typ == netlink.NDA_DST:
			n.Addr, _ = netip.AddrFromSlice(value)
		case typ == netlink.NDA_LLADDR && len(value) == len(n.MAC):
			n.MAC = plan.MAC(value)
		}
	}
	return n, n.Addr.IsValid()
}

// KernelAddress is an address as the kernel has it.
type KernelAddress struct {
	Link   int // index
	Prefix netip.Prefix
	Scope  uint8
	Flags  uint32
}

// ParseAddress parses a message about an address, without the netlink header.
func ParseAddress(data []byte) (a KernelAddress, ok bool) {
	if len(data) < unix.SizeofIfAddrmsg {
		return a, false
	}
	a.Flags, a.Scope = uint32(data[2]), data[3]
	a.Link = int(int32(binary.NativeEndian.Uint32(data[4:])))
	var local, addr netip.Addr
	for typ, value := range nlsock.Attributes(data[unix.SizeofIfAddrmsg:]) {
		switch typ {
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(value)
		case unix.IFA_ADDRESS: // the other end's on links between two
			addr, _ = netip.AddrFromSlice(value)
		case unix.IFA_FLAGS:
			a.Flags = nlsock.Uint32(value)
		}
	}
	if !local.IsValid() {
		local = addr
	}
	a.Prefix = netip.PrefixFrom(local, int(data[1]))
	return a, a.Prefix.IsValid()
}
