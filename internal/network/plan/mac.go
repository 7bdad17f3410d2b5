package plan

import (
	"crypto/sha256"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/huskd/husk/internal/pod"
)

// MAC is an Ethernet address.
type MAC [6]byte

// String returns the address as six hex pairs.
func (m MAC) String() string {
	return fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5])
}

// DerivedMAC derives an address from what it is for. Setting it at creation also keeps
// systemd-udevd from assigning another (MACAddressPolicy).
func DerivedMAC(parts ...string) MAC {
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	m := MAC(sum[:6])
	m[0] = m[0]&^1 | 2 // not multicast, locally administered
	return m
}

// podMAC returns the address of the pod's end: the requested one, or a derived one.
func podMAC(i pod.Instance, a pod.Attachment) MAC {
	if m, err := ParseMAC(a.MAC); err == nil {
		return m
	}
	return DerivedMAC(string(i), a.Sandbox, a.IfName, "pod")
}

// ParseMAC parses six hex pairs as the address of one interface.
func ParseMAC(s string) (m MAC, err error) {
	parts := strings.Split(s, ":")
	if len(parts) != len(m) {
		return m, fmt.Errorf("%q is not six hex pairs", s)
	}
	for i, part := range parts {
		n, err := strconv.ParseUint(part, 16, 8)
		if err != nil || len(part) != 2 {
			return m, fmt.Errorf("%q is not six hex pairs", s)
		}
		m[i] = byte(n)
	}
	if m[0]&1 != 0 || m == (MAC{}) {
		return m, fmt.Errorf("%q is not the address of one interface", s)
	}
	return m, nil
}

// BridgeMAC returns the address of an instance's bridge.
func BridgeMAC(i pod.Instance) MAC { return DerivedMAC(string(i), "bridge") }

// LinkLocal returns the IPv6 address that the kernel would derive from m (RFC 4291, appendix A),
// but only after a second of duplicate detection.
func (m MAC) LinkLocal() netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80,
		8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}
