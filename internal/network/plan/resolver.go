package plan

import (
	"net/netip"

	"github.com/huskd/husk/internal/pod"
)

// Resolvers returns the addresses, of IPv4 and IPv6, at which an instance may serve DNS to its
// pods. They differ between instances, and never change, so that a pod's resolv.conf stays right.
// The IPv4 address is link-local, and is none that a cloud or another DNS server is known to use,
// such as 169.254.169.254 and 169.254.20.10. A link-local IPv6 address would need a zone.
func Resolvers(i pod.Instance) [2]netip.Addr {
	tag, _ := Tag(i)
	n := uint16(tag)
	six := netip.MustParseAddr("fd68:7573:6b01::").As16()
	six[14], six[15] = byte(n>>8), byte(n)
	return [2]netip.Addr{
		netip.AddrFrom4([4]byte{169, 254, 64 + byte(n>>8)&63, 1 + byte(n)%254}),
		netip.AddrFrom16(six),
	}
}

// ResolverAddress returns the address of lo at which the instance serves DNS.
func ResolverAddress(a netip.Addr) Address {
	return Address{Link: "lo", Prefix: single(a), LastResort: true}
}
