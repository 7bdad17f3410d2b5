package lease

import "time"

// SetFence plants a bug in how a Keeper computes until when it can rely on its session.
func (k *Keeper) SetFence(fence func(sent, answered, ttl time.Duration) time.Duration) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.state.Fence = fence
}
