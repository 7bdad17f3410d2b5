package ipam

import (
	"fmt"
	"net/netip"

	"github.com/containerd/errdefs"
)

// NewRange returns the range of a subnet from first to last. If first is the zero Addr, the range
// starts after the gateway, the subnet's first address. If last is, it ends before the broadcast
// address.
func NewRange(subnet netip.Prefix, first, last netip.Addr) (Range, error) {
	invalid := func(format string, args ...any) (Range, error) {
		return Range{}, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf(format, args...))
	}
	if err := Check(subnet); err != nil {
		return Range{}, err
	}
	p := subnet
	lowest, highest := p.Addr().Next().Next(), lastOf(p)
	if p.Addr().Is4() {
		highest = highest.Prev()
	}
	r := Range{p, first, last}
	if !first.IsValid() {
		r.First = lowest
	}
	if !last.IsValid() {
		r.Last = highest
	}
	for _, a := range []netip.Addr{r.First, r.Last} {
		if a.Compare(lowest) < 0 || a.Compare(highest) > 0 || a.Is4() != p.Addr().Is4() {
			return invalid("address %v: of subnet %v, pods can have %v to %v", a, p, lowest, highest)
		}
	}
	if r.First.Compare(r.Last) > 0 {
		return invalid("range of subnet %v ends at %v, before its start %v", p, r.Last, r.First)
	}
	return r, nil
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
