package claim

import (
	"net/netip"
	"slices"
	"time"

	"github.com/huskd/husk/internal/network/peer"
)

// own is a block that the node has or wants.
type own struct {
	block netip.Prefix
	// held means that the block is bound to the session, as far as the node knows.
	held bool
	// fresh blocks have never been held, so no pod has an address of them.
	fresh bool
	// retiring blocks are on their way back; nothing may be taken of them.
	retiring bool
	retired  int // told when the view was first without it

	usage peer.Usage // Size is 0 if it isn't known
	empty time.Duration
}

// blocks are those that the node has or wants.
type blocks []own

func (b blocks) index(block netip.Prefix) int {
	return slices.IndexFunc(b, func(o own) bool { return o.block == block })
}

// usages returns how full the blocks of a family are, but one and those that are on their way out.
func (b blocks) usages(pool Pool, six bool, but netip.Prefix) (out []peer.Usage) {
	for _, o := range b {
		if o.block.Addr().Is6() == six && o.block != but && !o.retiring && pool.contains(o.block) {
			out = append(out, o.usage)
		}
	}
	return out
}

// adopt adds the blocks of which pods have addresses, to be bound, unless they are taken.
func (b blocks) adopt(used []netip.Prefix, p Pool, taken []netip.Prefix) blocks {
	for _, block := range used {
		if p.contains(block) && !slices.ContainsFunc(taken, block.Overlaps) {
			b, taken = append(b, own{block: block}), append(taken, block)
		}
	}
	return b
}
