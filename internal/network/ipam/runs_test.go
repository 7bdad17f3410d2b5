package ipam

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
)

// sorted implements Runs in memory.
type sorted []struct{ first, last netip.Addr }

func (s *sorted) at(a netip.Addr) (int, bool) {
	return slices.BinarySearchFunc(*s, a, func(r struct{ first, last netip.Addr }, a netip.Addr) int { return r.first.Compare(a) })
}

func (s *sorted) Floor(a netip.Addr) (first, last netip.Addr, ok bool) {
	i, exact := s.at(a)
	if !exact {
		i--
	}
	if i < 0 {
		return first, last, false
	}
	return (*s)[i].first, (*s)[i].last, true
}

func (s *sorted) Put(first, last netip.Addr) error {
	i, exact := s.at(first)
	if exact {
		(*s)[i].last = last
		return nil
	}
	*s = slices.Insert(*s, i, struct{ first, last netip.Addr }{first, last})
	return nil
}

func (s *sorted) Delete(first netip.Addr) error {
	if i, exact := s.at(first); exact {
		*s = slices.Delete(*s, i, i+1)
	}
	return nil
}

// checkRuns compares the runs with the set of taken addresses.
func checkRuns(t *testing.T, s sorted, taken map[netip.Addr]bool, all []netip.Addr) {
	t.Helper()
	for i, r := range s {
		if r.first.Compare(r.last) > 0 {
			t.Fatalf("run %v-%v is backwards", r.first, r.last)
		}
		if i > 0 && s[i-1].last.Next().Compare(r.first) >= 0 {
			t.Fatalf("runs %v-%v and %v-%v touch", s[i-1].first, s[i-1].last, r.first, r.last)
		}
	}
	for _, a := range all {
		if Taken(&s, a) != taken[a] {
			t.Fatalf("%v: taken %v, want %v", a, Taken(&s, a), taken[a])
		}
	}
}

// addressesFrom returns n addresses from first on.
func addressesFrom(first string, n int) (out []netip.Addr) {
	for a := netip.MustParseAddr(first); len(out) < n; a = a.Next() {
		out = append(out, a)
	}
	return out
}

// FuzzRuns checks that after any Take and Free the runs are exactly the taken addresses, and the
// next free address is the one that a linear search finds.
func FuzzRuns(f *testing.F) {
	f.Add([]byte{0, 2, 1, 1, 129, 0, 3})
	f.Add([]byte{5, 6, 4, 133, 134, 132})
	f.Fuzz(func(t *testing.T, ops []byte) {
		all := addressesFrom("10.0.0.250", 64) // across a carry
		var s sorted
		taken := map[netip.Addr]bool{}
		for _, op := range ops {
			a := all[op%64]
			switch {
			case op >= 128:
				_ = Free(&s, a)
				delete(taken, a)
			case !taken[a]:
				_ = Take(&s, a)
				taken[a] = true
			}
			checkRuns(t, s, taken, all)
			from := all[op%64]
			got, ok := FirstFree(&s, from, all[63])
			i := slices.IndexFunc(all[op%64:], func(a netip.Addr) bool { return !taken[a] })
			if ok != (i >= 0) || ok && got != all[int(op%64)+i] {
				t.Fatalf("first free from %v: %v, %v", from, got, ok)
			}
		}
	})
}

// TestNextGoesRound checks that over several ranges every address is allocated once before any is
// reused, and that the address freed last comes last.
func TestNextGoesRound(t *testing.T) {
	for name, ranges := range map[string]Ranges{
		"one":   {mustRange(t, "10.1.0.0/28", "", "")},
		"parts": {mustRange(t, "10.1.0.0/28", "10.1.0.3", "10.1.0.6"), mustRange(t, "10.1.0.0/28", "10.1.0.9", "10.1.0.9"), mustRange(t, "10.0.0.0/29", "", "")},
		"six":   {mustRange(t, "fd00::/124", "", "")},
	} {
		t.Run(name, func(t *testing.T) {
			var s sorted
			var order []netip.Addr
			var cursor netip.Addr
			for {
				a, ok := ranges.Next(&s, cursor)
				if !ok {
					break
				}
				if slices.Contains(order, a) {
					t.Fatalf("%v was allocated twice", a)
				}
				if _, ok := ranges.Contains(a); !ok {
					t.Fatalf("%v is in no range", a)
				}
				_ = Take(&s, a)
				order, cursor = append(order, a), a
			}
			want := 0
			for _, r := range ranges {
				for a := r.First; a.Compare(r.Last) <= 0; a = a.Next() {
					want++
				}
			}
			if len(order) != want {
				t.Fatalf("%d of %d addresses were allocated", len(order), want)
			}
			r := rand.New(rand.NewPCG(1, 2))
			for range 500 {
				freed := order[r.IntN(len(order))]
				_ = Free(&s, freed)
				got, ok := ranges.Next(&s, cursor)
				if !ok || got != freed {
					t.Fatalf("freed %v, got %v, %v", freed, got, ok)
				}
				_ = Take(&s, got)
				cursor = got
			}
		})
	}
}

func mustRange(t *testing.T, subnet, first, last string) Range {
	t.Helper()
	parse := func(s string) (a netip.Addr) {
		if s != "" {
			a = netip.MustParseAddr(s)
		}
		return a
	}
	r, err := NewRange(netip.MustParsePrefix(subnet), parse(first), parse(last))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestNewRange(t *testing.T) {
	for _, c := range []struct{ subnet, first, last, want string }{
		{"10.1.0.0/24", "", "", "10.1.0.2-10.1.0.254"},
		{"10.1.0.0/30", "", "", "10.1.0.2-10.1.0.2"},
		{"fd00::/64", "", "", "fd00::2-fd00::ffff:ffff:ffff:ffff"},
		{"10.1.0.0/24", "10.1.0.10", "", "10.1.0.10-10.1.0.254"},
		{"10.1.0.0/24", "10.1.0.10", "10.1.0.20", "10.1.0.10-10.1.0.20"},
		{"10.1.0.0/24", "10.1.0.1", "", ""},   // the gateway
		{"10.1.0.0/24", "", "10.1.0.255", ""}, // broadcast
		{"10.1.0.0/24", "10.2.0.2", "", ""},
		{"10.1.0.0/24", "fd00::2", "", ""},
		{"10.1.0.0/24", "10.1.0.20", "10.1.0.10", ""},
		{"10.1.0.1/24", "", "", ""},
		{"10.1.0.0/31", "", "", ""},
		{"0.0.0.0/0", "", "", ""},
		{"fd00::/127", "", "", ""},
		{"::ffff:10.0.0.0/104", "", "", ""},
	} {
		parse := func(s string) (a netip.Addr) {
			if s != "" {
				a = netip.MustParseAddr(s)
			}
			return a
		}
		r, err := NewRange(netip.MustParsePrefix(c.subnet), parse(c.first), parse(c.last))
		if got := r.First.String() + "-" + r.Last.String(); (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%v %s-%s: got %s, %v", c.subnet, c.first, c.last, got, err)
		}
	}
}
