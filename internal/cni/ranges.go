package cni

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
)

// rangesKey is the journal key of the ranges that SetRanges has set.
const rangesKey = "cni-ranges"

// SetRanges sets the pod CIDRs of this node for new attachments. They override those of
// Config, also after a restart, because a kubelet sends them only once.
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
		return fmt.Errorf("record the pod CIDRs of this node: %w", err)
	}
	h.ranges = slices.Clone(ranges)
	return nil
}

// loadRanges returns the recorded ranges, or those of Config.
func (c Config) loadRanges() (ranges []netip.Prefix) {
	data, ok := c.Journal.Get(rangesKey)
	if !ok || json.Unmarshal(data, &ranges) != nil {
		return c.Ranges
	}
	return ranges
}
