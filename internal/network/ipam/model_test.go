package ipam

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"
)

// model is a second allocator that is too simple to be wrong: it searches lists.
type model struct {
	quarantine time.Duration
	ranges     []modelRange
	leases     map[Owner][]netip.Addr
	releasing  map[Owner]bool
}

type modelRange struct {
	free        []netip.Addr // in the order of the range
	last        netip.Addr   // the last allocated one
	prefix      netip.Prefix
	quarantined []Quarantined
}

func newModel(quarantine time.Duration, ranges ...netip.Prefix) *model {
	m := &model{quarantine: quarantine, leases: map[Owner][]netip.Addr{}, releasing: map[Owner]bool{}}
	for _, p := range ranges {
		r := modelRange{prefix: p, last: p.Addr()}
		for a := p.Addr().Next().Next(); p.Contains(a); a = a.Next() {
			if a.Is6() || p.Contains(a.Next()) {
				r.free = append(r.free, a)
			}
		}
		m.ranges = append(m.ranges, r)
	}
	return m
}

func (r *modelRange) take(now time.Time) (netip.Addr, bool) {
	if len(r.free) > 0 {
		i := slices.IndexFunc(r.free, func(a netip.Addr) bool { return r.last.Less(a) })
		i = max(i, 0)
		a := r.free[i]
		r.free = slices.Delete(r.free, i, i+1)
		r.last = a
		return a, true
	}
	if len(r.quarantined) > 0 && !r.quarantined[0].Until.After(now) {
		a := r.quarantined[0].Addr
		r.quarantined = r.quarantined[1:]
		r.last = a
		return a, true
	}
	return netip.Addr{}, false
}

func (r *modelRange) putBack(a netip.Addr) {
	r.free = append(r.free, a)
	slices.SortFunc(r.free, netip.Addr.Compare)
}

func (m *model) reserve(o Owner, now time.Time) ([]netip.Addr, bool) {
	if l, ok := m.leases[o]; ok {
		return l, !m.releasing[o]
	}
	var out []netip.Addr
	for i := range m.ranges {
		a, ok := m.ranges[i].take(now)
		if !ok {
			for j, taken := range out {
				m.ranges[j].putBack(taken)
			}
			return nil, false
		}
		out = append(out, a)
	}
	m.leases[o] = out
	return out, true
}

func (m *model) end(o Owner, now time.Time, quarantine bool) {
	for i, a := range m.leases[o] {
		if quarantine && m.quarantine > 0 {
			m.ranges[i].quarantined = append(m.ranges[i].quarantined, Quarantined{a, now.Add(m.quarantine)})
		} else {
			m.ranges[i].putBack(a)
		}
	}
	delete(m.leases, o)
	delete(m.releasing, o)
}

func (m *model) expire(now time.Time) {
	for i := range m.ranges {
		r := &m.ranges[i]
		for len(r.quarantined) > 0 && !r.quarantined[0].Until.After(now) {
			r.putBack(r.quarantined[0].Addr)
			r.quarantined = r.quarantined[1:]
		}
	}
}

// FuzzAllocator does the same steps on the allocator and the model, as the bytes say, and sometimes
// restores the allocator from its records.
func FuzzAllocator(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		seed := make([]byte, 400)
		for i := range seed {
			seed[i] = byte(r.Uint32())
		}
		f.Add(seed)
	}
	f.Add(bytes.Repeat([]byte{0, 1, 2, 3}, 100))
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 2000 {
			t.Skip("long enough")
		}
		ranges := prefixes("10.9.0.0/28", "fd00:9::/124")
		if len(steps)%3 == 1 {
			ranges = ranges[:1]
		}
		quarantine := time.Duration(len(steps)%5) * 7 * time.Second
		a, err := New(quarantine, ranges...)
		if err != nil {
			t.Fatal(err)
		}
		m := newModel(quarantine, ranges...)
		now := epoch
		for i := 0; i+1 < len(steps); i += 2 {
			o := Owner{fmt.Sprint("s", steps[i+1]%24), "eth0"}
			switch steps[i] % 8 {
			case 0, 1, 2:
				got, err := a.Reserve(o, now)
				want, ok := m.reserve(o, now)
				if (err == nil) != ok || ok && !slices.Equal(got.Addresses, want) {
					t.Fatalf("step %d: reserve %v: got %v, %v; want %v, %v", i, o, got.Addresses, err, want, ok)
				}
			case 3:
				_, got := a.Release(o)
				if _, want := m.leases[o]; got != want {
					t.Fatalf("step %d: release %v: got %v", i, o, got)
				} else if want {
					m.releasing[o] = true
				}
			case 4:
				a.Quarantine(o, now)
				m.end(o, now, true)
			case 5:
				a.Forget(o)
				m.end(o, now, false)
			case 6:
				now = now.Add(time.Duration(steps[i+1]) * 100 * time.Millisecond)
			case 7:
				if steps[i+1]%4 == 0 {
					a = restored(t, a, now)
					continue
				}
				a.Expire(now, 1000)
				m.expire(now)
			}
			agree(t, i, a, m)
		}
	})
}

// restored returns a copy of a made from its records, as after a restart.
func restored(t *testing.T, a *Allocator, now time.Time) *Allocator {
	t.Helper()
	var ranges []netip.Prefix
	var quarantined []Quarantined
	for _, p := range a.ranges {
		ranges = append(ranges, p.prefix)
		// Keep the order of the queue: the records don't tell which of two equal quarantines goes
		// first, but the model does.
		for _, r := range p.queue {
			if until, ok := p.quarantined[r.index]; ok && until.Equal(r.until) {
				quarantined = append(quarantined, Quarantined{p.addr(r.index), until})
			}
		}
	}
	b, err := New(a.quarantine, ranges...)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range a.leases {
		data, _ := json.Marshal(l)
		var back Lease
		if err := json.Unmarshal(data, &back); err != nil {
			t.Fatal(err)
		}
		if err := b.Restore(back); err != nil {
			t.Fatal(err)
		}
	}
	if stale := b.RestoreQuarantine(now, quarantined); len(stale) > 0 {
		t.Fatalf("stale: %v", stale)
	}
	for i := range a.ranges {
		b.ranges[i].cursor = a.ranges[i].cursor
	}
	return b
}

func agree(t *testing.T, step int, a *Allocator, m *model) {
	t.Helper()
	holders := map[netip.Addr]bool{}
	for o, want := range m.leases {
		if got := a.leases[o]; got == nil || !slices.Equal(got.Addresses, want) {
			t.Fatalf("step %d: lease of %v is %v, want %v", step, o, got, want)
		}
		for _, addr := range want {
			if holders[addr] {
				t.Fatalf("step %d: %v is held twice", step, addr)
			}
			holders[addr] = true
		}
	}
	for i, u := range a.Usage() {
		r := m.ranges[i]
		if u.Free != len(r.free) || u.Quarantined != len(r.quarantined) || u.Used != len(m.leases) || u.Size != u.Free+u.Used+u.Quarantined {
			t.Fatalf("step %d: %+v, want %d free, %d in quarantine, %d used", step, u, len(r.free), len(r.quarantined), len(m.leases))
		}
	}
}

func FuzzBitmap(f *testing.F) {
	f.Add(uint16(70), []byte{1, 2, 3, 200, 9, 8})
	f.Add(uint16(5000), []byte{0, 0, 1, 255, 77, 3, 5, 5, 5})
	f.Fuzz(func(t *testing.T, size uint16, ops []byte) {
		if size == 0 {
			t.Skip("no bits")
		}
		b, m := newBitmap(int(size)), make([]bool, size)
		for i := 0; i+2 < len(ops); i += 3 {
			at := (int(ops[i+1])<<8 | int(ops[i+2])) % int(size)
			if ops[i]%3 == 0 {
				b.clear(at)
				m[at] = false
			} else {
				b.set(at)
				m[at] = true
			}
			got, ok := b.next(at / 2)
			want := slices.Index(m[at/2:], true)
			if ok != (want >= 0) || ok && got != want+at/2 {
				t.Fatalf("next(%d): got %d, %v; want %d", at/2, got, ok, want+at/2)
			}
		}
		if _, ok := b.next(int(size) + 64); ok {
			t.Fatal("found a member beyond the end")
		}
	})
}
