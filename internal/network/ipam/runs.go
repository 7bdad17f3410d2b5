package ipam

import "net/netip"

// Runs are the unavailable addresses as sorted, contiguous stretches. Kept on disk, a lookup costs
// the same however many addresses there are.
//
// Invariant: no two runs overlap or touch.
type Runs interface {
	// Floor returns the last run that starts at or before a.
	Floor(a netip.Addr) (first, last netip.Addr, ok bool)
	// Put records the run that starts at first, replacing one with the same start.
	Put(first, last netip.Addr) error
	Delete(first netip.Addr) error
}

// Taken reports whether a is in a run.
func Taken(s Runs, a netip.Addr) bool {
	_, last, ok := s.Floor(a)
	return ok && a.Compare(last) <= 0
}

// Take adds a, which isn't taken, to the runs. If it fails, the caller must discard the runs, which
// may be half changed.
func Take(s Runs, a netip.Addr) error {
	first, last := a, a
	if f, l, ok := s.Floor(a); ok && l.Next() == a {
		first = f
	}
	if next := a.Next(); next.IsValid() {
		if f, l, ok := s.Floor(next); ok && f == next {
			last = l
			if err := s.Delete(f); err != nil {
				return err
			}
		}
	}
	return s.Put(first, last)
}

// Free removes a from the runs. If it fails, the caller must discard the runs, which may be half
// changed.
func Free(s Runs, a netip.Addr) error {
	first, last, ok := s.Floor(a)
	if !ok || a.Compare(last) > 0 {
		return nil
	}
	if err := s.Delete(first); err != nil {
		return err
	}
	if first != a {
		if err := s.Put(first, a.Prev()); err != nil {
			return err
		}
	}
	if last != a {
		return s.Put(a.Next(), last)
	}
	return nil
}

// FirstFree returns the first address from from to to, inclusive, that is in no run.
func FirstFree(s Runs, from, to netip.Addr) (netip.Addr, bool) {
	if _, last, ok := s.Floor(from); ok && from.Compare(last) <= 0 {
		from = last.Next()
	}
	return from, from.IsValid() && from.Compare(to) <= 0
}

// Range is the part of a subnet that pods get addresses from.
type Range struct {
	Subnet      netip.Prefix
	First, Last netip.Addr
}

// Ranges are ranges of one family, of which an attachment gets a single address.
type Ranges []Range

// Contains returns the range that contains a, if one does.
func (p Ranges) Contains(a netip.Addr) (Range, bool) {
	for _, r := range p {
		if r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0 {
			return r, true
		}
	}
	return Range{}, false
}

// Next returns the next address after cursor, the last allocated one, that is in no run. It goes
// round the ranges, so that an address is reused as late as possible. The cursor is the zero Addr
// if none was allocated yet.
func (p Ranges) Next(s Runs, cursor netip.Addr) (netip.Addr, bool) {
	start := 0
	for i, r := range p {
		if r.First.Compare(cursor) <= 0 && cursor.Compare(r.Last) <= 0 {
			start = i
		}
	}
	for i := range len(p) + 1 {
		r := p[(start+i)%len(p)]
		from, to := r.First, r.Last
		_, inside := Ranges{r}.Contains(cursor)
		if i == 0 && inside {
			from = cursor.Next()
		}
		if a, ok := FirstFree(s, from, to); ok {
			return a, true
		}
	}
	return netip.Addr{}, false
}
