package lease

import (
	"net/netip"
	"time"
)

// SetFence plants a bug in how a Keeper computes until when it can rely on its session.
func (k *Keeper) SetFence(fence func(sent, answered, ttl time.Duration) time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Fence = fence
}

// Usable returns all blocks of which pods may get addresses now.
func (k *Keeper) Usable() (out []netip.Prefix) {
	k.mu.Lock()
	saved := k.saved.Blocks // May refuses all others
	k.mu.Unlock()
	for _, b := range saved {
		if k.May(b) == nil {
			out = append(out, b)
		}
	}
	return out
}
