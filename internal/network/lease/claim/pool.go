package claim

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/peer"
)

// Lengths of blocks by default.
const (
	DefaultLength4 = 24
	DefaultLength6 = 64
)

// maxOrder limits the blocks of a subnet to 2^maxOrder.
const maxOrder = 60

// Pool is what blocks are taken of.
type Pool struct {
	// Subnets are the cluster's pod subnets.
	Subnets []netip.Prefix
	// Length4 and Length6 are the prefix lengths of blocks; 0 means the defaults.
	Length4, Length6 int
}

func (p Pool) length(six bool) int {
	if six {
		return cmp.Or(p.Length6, DefaultLength6)
	}
	return cmp.Or(p.Length4, DefaultLength4)
}

// Check returns an error if blocks can't be taken of the pool.
func (p Pool) Check() error {
	if len(p.Subnets) == 0 {
		return fmt.Errorf("no pod subnets")
	}
	for i, s := range p.Subnets {
		length := p.length(s.Addr().Is6())
		switch {
		case !s.IsValid() || s != s.Masked() || s.Addr().Is4In6():
			return fmt.Errorf("pod subnet %v is not a subnet", s)
		case slices.ContainsFunc(p.Subnets[:i], s.Overlaps):
			return fmt.Errorf("pod subnet %v overlaps another one: %v", s, p.Subnets)
		case length < s.Bits():
			return fmt.Errorf("pod subnet %v is smaller than a block, whose length is %d: set a longer block length or a shorter subnet", s, length)
		case length > s.Addr().BitLen()-2:
			return fmt.Errorf("block length %d leaves no addresses for pods: at most %d", length, s.Addr().BitLen()-2)
		case length-s.Bits() > maxOrder:
			return fmt.Errorf("pod subnet %v has too many blocks of length %d: at most 2^%d", s, length, maxOrder)
		}
	}
	return nil
}

// contains reports whether a block is inside the pool.
func (p Pool) contains(b netip.Prefix) bool {
	return slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Bits() <= b.Bits() && s.Contains(b.Addr()) })
}

// families returns which families the pool has: false for IPv4 and true for IPv6.
func (p Pool) families() (out []bool) {
	for _, six := range []bool{false, true} {
		if slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Addr().Is6() == six }) {
			out = append(out, six)
		}
	}
	return out
}

// span is a range of a subnet's blocks, by their numbers, without last.
type span struct{ first, last uint64 }

// Next returns the block of a family that a node should claim next: the first that overlaps none of
// taken, counted from where the node's name points to. So nodes that start at the same time seldom
// want the same block, and a node's blocks are next to each other. It returns false if no block is
// free.
func (p Pool) Next(six bool, node string, taken []netip.Prefix) (netip.Prefix, bool) {
	subnets := slices.DeleteFunc(slices.Clone(p.Subnets), func(s netip.Prefix) bool { return s.Addr().Is6() != six })
	length := p.length(six)
	total := uint64(0)
	for _, s := range subnets {
		total += 1 << (length - s.Bits())
	}
	if total == 0 {
		return netip.Prefix{}, false
	}
	hash := fnv.New64a()
	hash.Write([]byte(node))
	guess := hash.Sum64() % total
	// Look from the guess to the end, and then from the beginning up to it.
	for _, s := range []span{{guess, total}, {0, guess}} {
		for _, subnet := range subnets {
			blocks := uint64(1) << (length - subnet.Bits())
			within := span{min(s.first, blocks), min(s.last, blocks)}
			if n, ok := firstFree(within, spans(subnet, length, taken)); ok {
				return blockAt(subnet, length, n), true
			}
			s.first, s.last = s.first-within.first, s.last-within.last
		}
	}
	return netip.Prefix{}, false
}

// firstFree returns the first number in s that is in none of taken, which are in the order of their
// beginnings.
func firstFree(s span, taken []span) (uint64, bool) {
	n := s.first
	for _, t := range taken {
		if t.first > n {
			break
		}
		n = max(n, t.last)
	}
	return n, n < s.last
}

// spans returns which blocks of a subnet overlap prefixes, in the order of their beginnings.
func spans(subnet netip.Prefix, length int, prefixes []netip.Prefix) (out []span) {
	for _, p := range prefixes {
		switch {
		case !p.Overlaps(subnet):
		case p.Bits() <= subnet.Bits():
			out = append(out, span{0, 1 << (length - subnet.Bits())})
		default:
			first := blockNumber(subnet, length, p.Addr())
			out = append(out, span{first, first + 1<<max(0, length-p.Bits())})
		}
	}
	slices.SortFunc(out, func(a, b span) int { return cmp.Compare(a.first, b.first) })
	return out
}

// blockNumber returns in which block of a subnet an address is.
func blockNumber(subnet netip.Prefix, length int, a netip.Addr) uint64 {
	hi, lo := words(a)
	shift := a.BitLen() - length
	n := lo >> shift // 0 if shift is 64 or more, as Go defines it
	if shift < 64 {
		n |= hi << (64 - shift)
	} else {
		n = hi >> (shift - 64)
	}
	return n & (1<<(length-subnet.Bits()) - 1)
}

// blockAt returns the nth block of a subnet.
func blockAt(subnet netip.Prefix, length int, n uint64) netip.Prefix {
	hi, lo := words(subnet.Addr())
	shift := subnet.Addr().BitLen() - length
	lo |= n << shift
	if shift < 64 {
		hi |= n >> (64 - shift)
	} else {
		hi |= n << (shift - 64)
	}
	if subnet.Addr().Is4() {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(lo)))), length)
	}
	b := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, hi), lo)
	return netip.PrefixFrom(netip.AddrFrom16([16]byte(b)), length)
}

func words(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		b := a.As4()
		return 0, uint64(binary.BigEndian.Uint32(b[:]))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// Size returns how many blocks of a family the pool has.
func (p Pool) Size(six bool) (n uint64) {
	for _, s := range p.Subnets {
		if s.Addr().Is6() == six {
			n += 1 << (p.length(six) - s.Bits())
		}
	}
	return n
}

// full reports whether at least 80 % of the addresses of some blocks are in use.
func full(blocks []peer.Usage) bool {
	size, used := 0.0, 0.0
	for _, b := range blocks {
		size, used = size+float64(b.Size), used+float64(b.Used)
	}
	return size > 0 && used >= 0.8*size
}
