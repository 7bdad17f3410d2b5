// Package flannel translates between nodes and flannel's format of them: the network's
// configuration and the leases in etcd, and the annotations of Nodes in Kubernetes. It is pure.
//
// flannel's documentation describes the format in Documentation/configuration.md, backends.md,
// reservations.md and kubernetes.md; what these leave out is as flanneld 0.28 reads and writes it.
package flannel

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/peer"
)

// DefaultPrefix is the prefix of flannel's keys in etcd, and ConfigKey the configuration's key
// below the prefix.
const (
	DefaultPrefix = "/coreos.com/network"
	ConfigKey     = "/config"
)

const defaultVNI = 1

// Backend is flannel's name of the way between its nodes.
type Backend string

// The backends that Husk has, too.
const (
	VXLAN     Backend = "vxlan"
	HostGW    Backend = "host-gw"
	WireGuard Backend = "wireguard"
	IPIP      Backend = "ipip"
)

// Range are the subnets of one family that a network gives to its nodes.
type Range struct {
	Network  netip.Prefix
	Length   int        // of a node's subnet
	Min, Max netip.Addr // the first and last subnet
}

// Network is the configuration of a flannel network.
type Network struct {
	// Ranges has one range for each family, IPv4 first.
	Ranges  []Range
	Backend Backend
	// DirectRouting means that nodes on the same link send to each other without a tunnel.
	DirectRouting bool
	VNI           uint32 // of VXLAN
	Port          uint16 // of VXLAN or WireGuard
	// separate means that WireGuard has a link for each family.
	separate bool
}

// configuration is the JSON of a network.
type configuration struct {
	EnableIPv4                   *bool
	EnableIPv6                   bool
	Network, IPv6Network         string
	SubnetMin, SubnetMax         string
	IPv6SubnetMin, IPv6SubnetMax string
	SubnetLen, IPv6SubnetLen     int
	Backend                      struct {
		Type          string
		DirectRouting bool
		VNI           *uint32
		Port          uint16
		GBP           bool
		ListenPort    uint16
		PSK           string
		Mode          string
	}
}

// maxValue is the size of the largest value that is read.
const maxValue = 16 << 10

// ParseNetwork reads the configuration of a network. An error says what in it Husk can't do.
func ParseNetwork(data []byte) (Network, error) {
	var c configuration
	if len(data) > maxValue {
		return Network{}, fmt.Errorf("flannel's configuration has %d bytes: at most %d", len(data), maxValue)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return Network{}, fmt.Errorf("flannel's configuration: %w", err)
	}
	n, err := c.network()
	if err != nil {
		return Network{}, fmt.Errorf("flannel's configuration: %w", err)
	}
	return n, nil
}

func (c configuration) network() (n Network, err error) {
	n.Backend, n.DirectRouting = Backend(c.Backend.Type), c.Backend.DirectRouting
	switch n.Backend {
	case VXLAN:
		n.VNI, n.Port = defaultVNI, peer.VXLANPort
		if c.Backend.VNI != nil {
			n.VNI = *c.Backend.VNI
		}
		if c.Backend.Port != 0 {
			n.Port = c.Backend.Port
		}
		if n.VNI == 0 || n.VNI >= 1<<24 {
			return n, fmt.Errorf("VNI %d is not 1 to %d", n.VNI, 1<<24-1)
		}
		if c.Backend.GBP {
			return n, errors.New("Husk has no VXLAN with group based policy: set Backend.GBP to false")
		}
	case WireGuard:
		n.Port, n.separate = peer.WireGuardPort, c.Backend.Mode == "" || c.Backend.Mode == "separate"
		if c.Backend.ListenPort != 0 {
			n.Port = c.Backend.ListenPort
		}
		switch {
		case c.Backend.PSK != "":
			return n, errors.New("Husk has no preshared key for WireGuard: remove Backend.PSK")
		case n.separate && c.EnableIPv6:
			return n, errors.New("Husk has one WireGuard link for both families: set Backend.Mode to auto")
		}
	case HostGW, IPIP:
	case "":
		return n, errors.New("without a Backend.Type it is udp, which Husk doesn't have: set it to vxlan")
	default:
		return n, fmt.Errorf("Husk has no backend %.30q: set Backend.Type to vxlan, host-gw, wireguard or ipip", n.Backend)
	}
	if c.EnableIPv4 == nil || *c.EnableIPv4 {
		r, err := newRange(c.Network, c.SubnetLen, c.SubnetMin, c.SubnetMax, 24)
		if err != nil {
			return n, fmt.Errorf("Network: %w", err)
		}
		n.Ranges = append(n.Ranges, r)
	}
	if c.EnableIPv6 {
		r, err := newRange(c.IPv6Network, c.IPv6SubnetLen, c.IPv6SubnetMin, c.IPv6SubnetMax, 64)
		if err != nil {
			return n, fmt.Errorf("IPv6Network: %w", err)
		}
		n.Ranges = append(n.Ranges, r)
	}
	if len(n.Ranges) == 0 {
		return n, errors.New("neither IPv4 nor IPv6 is enabled")
	}
	return n, nil
}

// maxBits is the binary logarithm of how many subnets a network may have.
const maxBits = 32

// newRange returns the range of a family. Without lengths and limits it is as flanneld chooses: a
// node's subnet has the usual length if there are four of them, and the first of all isn't used.
func newRange(network string, length int, first, last string, usual int) (r Range, err error) {
	if r.Network, err = netip.ParsePrefix(network); err != nil || r.Network.Addr().Is4In6() || r.Network.Addr().Is6() != (usual == 64) {
		return r, fmt.Errorf("%.50q is not a subnet of IPv%d", network, map[int]int{24: 4, 64: 6}[usual])
	}
	r.Network = r.Network.Masked()
	if r.Length = length; length == 0 {
		r.Length = max(usual, r.Network.Bits()+2)
	}
	if r.Length < r.Network.Bits()+2 || r.Length > r.Network.Addr().BitLen()-2 {
		return r, fmt.Errorf("%v has no four subnets of length %d", r.Network, r.Length)
	}
	if r.Length > r.Network.Bits()+maxBits {
		return r, fmt.Errorf("%v has more than 2^%d subnets of length %d", r.Network, maxBits, r.Length)
	}
	r.Min, r.Max = r.subnet(1), r.subnet(r.span()-1)
	for _, limit := range []struct {
		text string
		is   *netip.Addr
	}{{first, &r.Min}, {last, &r.Max}} {
		if limit.text == "" {
			continue
		}
		if *limit.is, err = netip.ParseAddr(limit.text); err != nil || !r.aligned(*limit.is) {
			return r, fmt.Errorf("%.50q is not the address of a subnet of length %d in %v", limit.text, r.Length, r.Network)
		}
	}
	if r.Max.Less(r.Min) {
		return r, fmt.Errorf("the last subnet %v comes before the first, %v", r.Max, r.Min)
	}
	return r, nil
}

// span returns how many subnets the network has.
func (r Range) span() uint64 { return 1 << (r.Length - r.Network.Bits()) }

// subnet returns the address of the nth subnet of the network.
func (r Range) subnet(n uint64) netip.Addr {
	a := r.Network.Addr().As16()
	high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	shift := r.Network.Addr().BitLen() - r.Length
	if shift < 64 {
		low |= n << shift
		high |= n >> (64 - shift)
	} else {
		high |= n << (shift - 64)
	}
	binary.BigEndian.PutUint64(a[:8], high)
	binary.BigEndian.PutUint64(a[8:], low)
	if r.Network.Addr().Is4() {
		return netip.AddrFrom16(a).Unmap()
	}
	return netip.AddrFrom16(a)
}

// number returns which subnet of the network an address is of.
func (r Range) number(addr netip.Addr) uint64 {
	a := addr.As16()
	high, low := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	shift := r.Network.Addr().BitLen() - r.Length
	n := high >> max(0, shift-64)
	if shift < 64 {
		n = low>>shift | high<<(64-shift)
	}
	return n & (r.span() - 1)
}

func (r Range) aligned(a netip.Addr) bool {
	return a.Zone() == "" && r.Network.Contains(a) && netip.PrefixFrom(a, r.Length).Masked().Addr() == a
}

// Size returns how many subnets there are for nodes.
func (r Range) Size() uint64 { return r.number(r.Max) - r.number(r.Min) + 1 }

// Subnet returns the nth of the subnets for nodes.
func (r Range) Subnet(n uint64) netip.Prefix {
	return netip.PrefixFrom(r.subnet(r.number(r.Min)+n), r.Length)
}

// Holds reports whether a block is one of the subnets for nodes.
func (r Range) Holds(b netip.Prefix) bool {
	return b.Bits() == r.Length && r.aligned(b.Addr()) && !b.Addr().Less(r.Min) && !r.Max.Less(b.Addr())
}

// Subnets returns the pod subnets of the whole network.
func (n Network) Subnets() (out []netip.Prefix) {
	for _, r := range n.Ranges {
		out = append(out, r.Network)
	}
	return out
}

// Holds returns an error unless the block is the subnet of a node, as flanneld claims them in etcd.
func (n Network) Holds(b netip.Prefix) error {
	if slices.ContainsFunc(n.Ranges, func(r Range) bool { return r.Holds(b) }) {
		return nil
	}
	return fmt.Errorf("%v is not a node's subnet of flannel's network %v", b, n.Subnets())
}

// Outside returns the subnets of the network that no node may have.
func (n Network) Outside() (out []netip.Prefix) {
	for _, r := range n.Ranges {
		out = r.outside(out, r.Network)
	}
	return out
}

// outside appends what of p isn't between the first and the last subnet.
func (r Range) outside(out []netip.Prefix, p netip.Prefix) []netip.Prefix {
	first, last := r.number(p.Addr()), r.number(p.Addr())+1<<(r.Length-p.Bits())-1
	switch least, most := r.number(r.Min), r.number(r.Max); {
	case last < least || first > most:
		return append(out, p)
	case first >= least && last <= most:
		return out
	}
	upper := netip.PrefixFrom(r.subnet(first+(last-first+1)/2), p.Bits()+1)
	return r.outside(r.outside(out, netip.PrefixFrom(p.Addr(), p.Bits()+1)), upper)
}
