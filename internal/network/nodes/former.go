package nodes

import (
	"net/netip"
	"slices"
	"time"
)

const (
	// formerTime is how long packets are taken from an address that a node had: it may go on sending
	// from there until its operator, its links and its record agree.
	formerTime = 10 * time.Minute
	// formerSelfTime is how long they are taken at an address that this node had, as others send
	// there until they have read its record. It is shorter, because the pods of other nodes are kept
	// from this one's addresses only while those remember them.
	formerSelfTime = formerTime / 2
)

// former remembers addresses for a time after they have left a list.
type former struct {
	current []netip.Addr // sorted
	until   map[netip.Addr]time.Time
}

// with returns a list, which is sorted, and behind it the addresses that left it less than keep
// ago.
func (f *former) with(now time.Time, list []netip.Addr, keep time.Duration) []netip.Addr {
	if f.until == nil {
		f.until = map[netip.Addr]time.Time{}
	}
	i := 0
	for _, a := range f.current {
		for i < len(list) && list[i].Less(a) {
			i++
		}
		if i == len(list) || list[i] != a {
			f.until[a] = now.Add(keep)
		}
	}
	f.current = list
	out := slices.Clone(list)
	for a, end := range f.until {
		_, again := slices.BinarySearchFunc(list, a, netip.Addr.Compare)
		switch {
		case again || !now.Before(end):
			delete(f.until, a)
		default:
			out = append(out, a)
		}
	}
	return out
}

// due reports whether the time of an address has ended.
func (f *former) due(now time.Time) bool {
	for _, end := range f.until {
		if !now.Before(end) {
			return true
		}
	}
	return false
}
