package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containerd/errdefs"
)

// family is the blocks of one address family.
type family struct {
	six    bool
	blocks []*pool // in the order in which they are filled
}

func (f *family) String() string {
	if f.six {
		return "IPv6"
	}
	return "IPv4"
}

// family returns the family of addr, nil if leases have no address of it.
func (a *Allocator) family(addr netip.Addr) *family {
	for _, f := range a.families {
		if f.six == addr.Is6() {
			return f
		}
	}
	return nil
}

// pool returns the block that contains addr, nil if there is none.
func (a *Allocator) pool(addr netip.Addr) *pool {
	f := a.family(addr)
	if f == nil {
		return nil
	}
	for _, p := range f.blocks {
		if p.prefix.Contains(addr) {
			return p
		}
	}
	return nil
}

func (a *Allocator) pools() (out []*pool) {
	for _, f := range a.families {
		out = append(out, f.blocks...)
	}
	return out
}

// AddBlock adds a block behind the others of its family. Adding one that is retired ends its
// retirement. Addresses that leases have already stay theirs.
func (a *Allocator) AddBlock(block netip.Prefix) error {
	if err := Check(block); err != nil {
		return err
	}
	f := a.family(block.Addr())
	if f == nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("block %v: pods have no addresses of its family", block))
	}
	for i, p := range f.blocks {
		if p.prefix == block {
			if p.retired {
				p.retired = false
				f.blocks = append(slices.Delete(f.blocks, i, i+1), p)
			}
			return nil
		}
		if p.prefix.Overlaps(block) {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("block %v overlaps block %v of this node", block, p.prefix))
		}
	}
	p := newPool(block)
	for addr := range a.holders {
		if block.Contains(addr) {
			p.hold(addr)
		}
	}
	f.blocks = append(f.blocks, p)
	return nil
}

// RetireBlock ends the allocation of new addresses of a block. The block goes when no lease has an
// address of it and none is in quarantine.
func (a *Allocator) RetireBlock(block netip.Prefix) {
	if p := a.pool(block.Addr()); p != nil && p.prefix == block {
		p.retired = true
		a.dropIfEmpty(p)
	}
}

func (a *Allocator) dropIfEmpty(p *pool) {
	if !p.retired || p.free.count < p.size || len(p.quarantined) > 0 {
		return
	}
	f := a.family(p.prefix.Addr())
	f.blocks = slices.DeleteFunc(f.blocks, func(other *pool) bool { return other == p })
}

// BlockOf returns the block that contains addr.
func (a *Allocator) BlockOf(addr netip.Addr) (netip.Prefix, bool) {
	if p := a.pool(addr); p != nil {
		return p.prefix, true
	}
	return netip.Prefix{}, false
}

// MayBind returns nil if the owner's addresses may still be given to a pod, and otherwise an error
// of kind unavailable. Addresses of no block may: they are of a former configuration.
func (a *Allocator) MayBind(o Owner) error {
	l := a.leases[o]
	if l == nil {
		return nil
	}
	for _, addr := range l.Addresses {
		if p := a.pool(addr); p != nil {
			if err := a.permitted(p); err != nil {
				return err
			}
		}
	}
	return nil
}

func (a *Allocator) permitted(p *pool) error {
	if err := a.may(p.prefix); err != nil {
		return errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("pods get no addresses of %v now: %v", p.prefix, err))
	}
	return nil
}

// choose returns the block to take the next address from: the first that has a free one, or else
// the first with one whose quarantine is over.
func (a *Allocator) choose(f *family, now time.Time) (*pool, error) {
	var due *pool
	var full []*pool
	var refused error
	for _, p := range f.blocks {
		if p.retired {
			continue
		}
		if !p.available(now) {
			full = append(full, p)
			continue
		}
		if err := a.permitted(p); err != nil {
			if refused == nil {
				refused = err
			}
			continue
		}
		if p.free.count > 0 {
			return p, nil
		}
		if due == nil {
			due = p
		}
	}
	switch {
	case due != nil:
		return due, nil
	case refused != nil:
		return nil, refused
	case len(full) > 0:
		return nil, exhausted(full, now)
	default:
		return nil, a.noBlock(f)
	}
}

// noBlock returns the error for a family without a block.
func (a *Allocator) noBlock(f *family) error {
	what := "pod addresses"
	if len(a.pools()) > len(f.blocks) { // there are some of the other family
		what = f.String() + " " + what
	}
	msg := fmt.Sprintf("this node has no block of %s yet", what)
	if err := a.may(netip.Prefix{}); err != nil {
		msg += ": " + err.Error()
	}
	return errdefs.ErrUnavailable.WithMessage(msg)
}

// exhausted returns the error for blocks of one family without an available address.
func exhausted(blocks []*pool, now time.Time) error {
	var sum Usage
	var next time.Time
	for _, p := range blocks {
		u := p.usage()
		sum.Used, sum.Size, sum.Quarantined = sum.Used+u.Used, sum.Size+u.Size, sum.Quarantined+u.Quarantined
		if i, _ := p.oldest(now); u.Quarantined > 0 && (next.IsZero() || p.quarantined[i].Before(next)) {
			next = p.quarantined[i]
		}
	}
	which := fmt.Sprintf("range %v is", blocks[0].prefix)
	if len(blocks) > 1 {
		which = fmt.Sprintf("ranges %v to %v are", blocks[0].prefix, blocks[len(blocks)-1].prefix)
	}
	msg := fmt.Sprintf("%s exhausted: %d of %d addresses in use, %d in quarantine", which, sum.Used, sum.Size, sum.Quarantined)
	if !next.IsZero() {
		msg += fmt.Sprintf(", the next is free in %v", next.Sub(now).Round(time.Second))
	}
	return errdefs.ErrResourceExhausted.WithMessage(msg + ": remove pods or configure a larger pod-subnets")
}
