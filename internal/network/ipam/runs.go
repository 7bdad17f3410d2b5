package ipam

import "net/netip"

// Runs are the addresses that can't be given out, as stretches without a gap
// between them, kept sorted by somebody: on disk, a question then costs the
// same however many there are. No two runs touch.
type Runs interface {
	// Floor returns the last run that begins at or before a.
	Floor(a netip.Addr) (first, last netip.Addr, ok bool)
	// Put records the run that begins at first, in place of one that did.
	Put(first, last netip.Addr) error
	Delete(first netip.Addr) error
}

// Taken says whether a is in a run.
func Taken(s Runs, a netip.Addr) bool {
	_, last, ok := s.Floor(a)
	return ok && a.Compare(last) <= 0
}

// Take puts a, which isn't taken, into the runs. If it fails half way, the runs
// are to be thrown away.
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

// Free takes a out of the runs. If it fails half way, the runs are to be thrown
// away.
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

// FirstFree returns the first address from from to to, both included, that is
// in no run.
func FirstFree(s Runs, from, to netip.Addr) (netip.Addr, bool) {
	if _, last, ok := s.Floor(from); ok && from.Compare(last) <= 0 {
		from = last.Next()
	}
	return from, from.IsValid() && from.Compare(to) <= 0
}

// Range is a stretch of a subnet that pods get addresses from.
type Range struct {
	Subnet      netip.Prefix
	First, Last netip.Addr
}

// Ranges are of one family. An attachment gets one address of all of them.
type Ranges []Range

// Contains says whether a is of one of the ranges, and of which.
func (p Ranges) Contains(a netip.Addr) (Range, bool) {
	for _, r := range p {
		if r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0 {
			return r, true
		}
	}
	return Range{}, false
}

// Next returns the next address after cursor, the one that was given out last,
// that is in no run. It goes round, so that an address comes back as late as
// possible. The zero Addr is the cursor of ranges of which none was.
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
