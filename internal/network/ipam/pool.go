package ipam

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/netip"
	"time"

	"github.com/containerd/errdefs"
)

// maxAddresses is how many addresses of a range are used at most: a bitmap of 128 KiB.
const maxAddresses = 1 << 20

// pool is the state of one range's addresses, by their index: the distance from the first.
type pool struct {
	prefix  netip.Prefix
	retired bool // gives no new addresses
	size    int  // addresses that pods can have
	span    int  // bits of free
	free    bitmap
	cursor  int // where the next search starts

	// quarantined holds the end of each quarantine by index. queue holds the same, oldest first,
	// with stale entries for addresses that were taken by request.
	quarantined map[int]time.Time
	queue       []expiry
}

type expiry struct {
	index int
	until time.Time
}

// Check returns an error of kind invalid argument unless prefix is a subnet that pods can have
// addresses of.
func Check(prefix netip.Prefix) error {
	addr := prefix.Addr()
	if !prefix.IsValid() || addr.Zone() != "" || addr.Is4In6() {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("range %v: not a prefix of IPv4 or IPv6 addresses", prefix))
	}
	if prefix != prefix.Masked() {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("range %v has host bits: write %v", prefix, prefix.Masked()))
	}
	shortest, longest := 8, 30
	if addr.Is6() {
		shortest, longest = 16, 126
	}
	if prefix.Bits() < shortest || prefix.Bits() > longest {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("range %v: use a prefix length of %d to %d", prefix, shortest, longest))
	}
	return nil
}

// newPool returns the pool of a prefix that Check accepts.
func newPool(prefix netip.Prefix) *pool {
	addr := prefix.Addr()
	span := maxAddresses
	if hostBits := addr.BitLen() - prefix.Bits(); hostBits < 20 {
		span = 1 << hostBits
	}
	p := &pool{prefix: prefix, span: span, free: newBitmap(span), quarantined: map[int]time.Time{}}
	for i := 2; i < span; i++ { // 0 is the network, 1 the gateway
		p.free.set(i)
		p.size++
	}
	if last := span - 1; addr.Is4() && span == 1<<(32-prefix.Bits()) {
		p.free.clear(last) // broadcast
		p.size--
	}
	return p
}

// addr returns the address at index.
func (p *pool) addr(index int) netip.Addr {
	if p.prefix.Addr().Is4() {
		b := p.prefix.Addr().As4()
		binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(index))
		return netip.AddrFrom4(b)
	}
	b := p.prefix.Addr().As16()
	low := b[8:]
	binary.BigEndian.PutUint64(low, binary.BigEndian.Uint64(low)+uint64(index))
	return netip.AddrFrom16(b)
}

// index is the inverse of addr. It returns false for an address beyond the span.
func (p *pool) index(addr netip.Addr) (int, bool) {
	var distance uint64
	if addr.Is4() {
		a, b := addr.As4(), p.prefix.Addr().As4()
		distance = uint64(binary.BigEndian.Uint32(a[:]) - binary.BigEndian.Uint32(b[:]))
	} else {
		a, b := addr.As16(), p.prefix.Addr().As16()
		if [8]byte(a[:8]) != [8]byte(b[:8]) {
			return 0, false
		}
		distance = binary.BigEndian.Uint64(a[8:]) - binary.BigEndian.Uint64(b[8:])
	}
	return int(min(distance, math.MaxInt32)), distance < uint64(p.span)
}

func (p *pool) next(now time.Time) (netip.Addr, error) {
	i, ok := p.free.next(p.cursor)
	if !ok {
		i, ok = p.free.next(0)
	}
	if !ok {
		if i, ok = p.oldest(now); !ok {
			return netip.Addr{}, exhausted([]*pool{p}, now)
		}
		p.endQuarantine(i)
	}
	p.free.clear(i)
	p.cursor = i + 1
	return p.addr(i), nil
}

// request takes a certain address, which no lease has.
func (p *pool) request(addr netip.Addr, now time.Time) error {
	i, ok := p.index(addr)
	if until, quarantined := p.quarantined[i]; ok && quarantined {
		if until.After(now) {
			return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("address %v was in use a moment ago: free again in %v", addr, until.Sub(now).Round(time.Second)))
		}
		p.endQuarantine(i)
		return nil
	}
	if !ok || !p.free.has(i) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("address %v of range %v can't be assigned to pods", addr, p.prefix))
	}
	p.free.clear(i)
	return nil
}

// hold marks addr as neither free nor in quarantine.
func (p *pool) hold(addr netip.Addr) {
	if i, ok := p.index(addr); ok {
		p.free.clear(i)
		p.endQuarantine(i)
	}
}

func (p *pool) putBack(addr netip.Addr) {
	if i, ok := p.index(addr); ok && p.assignable(i) {
		p.free.set(i)
	}
}

// quarantine puts a held address into quarantine. It returns false if pods can't have the address.
func (p *pool) quarantine(q Quarantined) bool {
	i, ok := p.index(q.Addr)
	if !ok || !p.assignable(i) {
		return false
	}
	p.quarantined[i] = q.Until
	p.queue = append(p.queue, expiry{i, q.Until})
	return true
}

func (p *pool) assignable(i int) bool {
	broadcast := p.prefix.Addr().Is4() && p.span == 1<<(32-p.prefix.Bits()) && i == p.span-1
	return i >= 2 && !broadcast
}

// oldest returns the address whose quarantine ends first, and whether it has ended.
func (p *pool) oldest(now time.Time) (int, bool) {
	for len(p.queue) > 0 {
		head := p.queue[0]
		until, ok := p.quarantined[head.index]
		if ok && until.Equal(head.until) {
			return head.index, !until.After(now)
		}
		p.queue = p.queue[1:] // stale
	}
	return 0, false
}

func (p *pool) endQuarantine(i int) { delete(p.quarantined, i) }

// expire frees the address whose quarantine ends first, if it has ended.
func (p *pool) expire(now time.Time) (netip.Addr, bool) {
	i, ok := p.oldest(now)
	if !ok {
		return netip.Addr{}, false
	}
	p.endQuarantine(i)
	p.free.set(i)
	return p.addr(i), true
}

func (p *pool) usage() Usage {
	free, quarantined := p.free.count, len(p.quarantined)
	return Usage{p.prefix, p.size, p.size - free - quarantined, quarantined, free, p.retired}
}

func (p *pool) available(now time.Time) bool {
	_, due := p.oldest(now)
	return due || p.free.count > 0
}
