package plan

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strings"

	"github.com/huskd/husk/internal/pod"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address as six hex pairs.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// macOf derives an address from what it is for. That it is set at creation also
// keeps systemd-udevd from giving the link another (MACAddressPolicy).
func macOf(parts ...string) MAC {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	m := MAC(sum[:6])
	m[0] = m[0]&^1 | 2 // not multicast, locally administered
	return m
}

// BridgeMAC is the address of an instance's bridge.
func BridgeMAC(i pod.Instance) MAC { return macOf(string(i), "bridge") }

// linkLocal is the IPv6 address that the kernel would derive from m (RFC 4291,
// appendix A), but for its second of duplicate detection.
func (m MAC) linkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80,
		8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}
