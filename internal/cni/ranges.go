package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// rangesKey is where the journal has what SetRanges was told.
const rangesKey = "cni-ranges"

// SetRanges says which addresses the cluster has for this node's pods. They go
// before those of Config, for the attachments to come, and after a restart too:
// a kubelet says it once.
func (h *Host) SetRanges(ranges []netip.Prefix) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if slices.Equal(h.ranges, ranges) {
		return nil
	}
	data, err := json.Marshal(ranges)
	if err == nil {
		err = h.cfg.Journal.Put(rangesKey, data)
	}
	if err != nil {
		return fmt.Errorf("addresses of this node's pods: %w", err)
	}
	h.ranges = slices.Clone(ranges)
	return nil
}

// loadRanges returns what was told before, or those of Config.
func (c Config) loadRanges() (ranges []netip.Prefix) {
	data, ok := c.Journal.Get(rangesKey)
	if !ok || json.Unmarshal(data, &ranges) != nil {
		return c.Ranges
	}
	return ranges
}
