package ipam

import (
	"bytes"
	"encoding/json"
	"errors"
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
	families   [][]*modelRange
	forbidden  map[netip.Prefix]bool // blocks of which no address may be given now
	leases     map[Owner][]netip.Addr
	releasing  map[Owner]bool
}

type modelRange struct {
	free        []netip.Addr // in the order of the range
	last        netip.Addr   // the last allocated one
	prefix      netip.Prefix
	retired     bool
	quarantined []Quarantined
}

// newModel returns a model with one range per family.
func newModel(quarantine time.Duration, ranges ...netip.Prefix) *model {
	m := &model{quarantine: quarantine, forbidden: map[netip.Prefix]bool{}, leases: map[Owner][]netip.Addr{}, releasing: map[Owner]bool{}}
	for _, p := range ranges {
		m.families = append(m.families, nil)
		m.addBlock(len(m.families)-1, p)
	}
	return m
}

func (m *model) addBlock(family int, p netip.Prefix) {
	blocks := m.families[family]
	for i, r := range blocks {
		if r.prefix == p {
			if r.retired {
				r.retired = false
				m.families[family] = append(slices.Delete(blocks, i, i+1), r)
			}
			return
		}
	}
	r := &modelRange{prefix: p, last: p.Addr()}
	for a := p.Addr().Next().Next(); p.Contains(a); a = a.Next() {
		if a.Is6() || p.Contains(a.Next()) {
			r.free = append(r.free, a)
		}
	}
	m.families[family] = append(blocks, r)
}

func (m *model) retireBlock(family int, p netip.Prefix) {
	for _, r := range m.families[family] {
		if r.prefix == p {
			r.retired = true
		}
	}
	m.drop()
}

// used counts the leased addresses of a range.
func (m *model) used(r *modelRange) (n int) {
	for _, l := range m.leases {
		for _, a := range l {
			if r.prefix.Contains(a) {
				n++
			}
		}
	}
	return n
}

// drop removes retired ranges that are empty.
func (m *model) drop() {
	for i, blocks := range m.families {
		m.families[i] = slices.DeleteFunc(blocks, func(r *modelRange) bool { return r.retired && m.used(r) == 0 && len(r.quarantined) == 0 })
	}
}

func (m *model) rangeOf(a netip.Addr) *modelRange {
	for _, blocks := range m.families {
		for _, r := range blocks {
			if r.prefix.Contains(a) {
				return r
			}
		}
	}
	return nil
}

// choose returns the range that the next address of a family is from, nil if none is left.
func (m *model) choose(family int, now time.Time) *modelRange {
	var due *modelRange
	for _, r := range m.families[family] {
		switch {
		case r.retired || m.forbidden[r.prefix]:
		case len(r.free) > 0:
			return r
		case due == nil && len(r.quarantined) > 0 && !r.quarantined[0].Until.After(now):
			due = r
		}
	}
	return due
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
	for i := range m.families {
		r := m.choose(i, now)
		if r == nil {
			for _, taken := range out {
				m.rangeOf(taken).putBack(taken)
			}
			return nil, false
		}
		a, _ := r.take(now)
		out = append(out, a)
	}
	m.leases[o] = out
	return out, true
}

func (m *model) end(o Owner, now time.Time, quarantine bool) {
	for _, a := range m.leases[o] {
		r := m.rangeOf(a)
		if quarantine && m.quarantine > 0 {
			r.quarantined = append(r.quarantined, Quarantined{a, now.Add(m.quarantine)})
		} else {
			r.putBack(a)
		}
	}
	delete(m.leases, o)
	delete(m.releasing, o)
	m.drop()
}

func (m *model) expire(now time.Time) {
	for _, blocks := range m.families {
		for _, r := range blocks {
			for len(r.quarantined) > 0 && !r.quarantined[0].Until.After(now) {
				r.putBack(r.quarantined[0].Addr)
				r.quarantined = r.quarantined[1:]
			}
		}
	}
	m.drop()
}

// mayBind reports whether the owner's addresses may be given to a pod.
func (m *model) mayBind(o Owner) bool {
	return !slices.ContainsFunc(m.leases[o], func(a netip.Addr) bool { return m.forbidden[m.rangeOf(a).prefix] })
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
		blocks := [][]netip.Prefix{prefixes("10.9.0.0/28", "10.9.0.16/28", "10.9.0.64/29"), prefixes("fd00:9::/124", "fd00:9::10/124", "fd00:9::20/125")}
		if len(steps)%3 == 1 {
			ranges = ranges[:1]
		}
		quarantine := time.Duration(len(steps)%5) * 7 * time.Second
		m := newModel(quarantine, ranges...)
		may := func(block netip.Prefix) error {
			if m.forbidden[block] {
				return errors.New("it isn't ours")
			}
			return nil
		}
		a, err := NewOfBlocks(quarantine, ranges, may)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range ranges {
			if err := a.AddBlock(r); err != nil {
				t.Fatal(err)
			}
		}
		now := epoch
		for i := 0; i+1 < len(steps); i += 2 {
			o := Owner{fmt.Sprint("s", steps[i+1]%24), "eth0"}
			family := int(steps[i+1]) % len(ranges)
			block := blocks[family][int(steps[i+1]/2)%len(blocks[family])]
			switch steps[i] % 11 {
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
			case 8:
				if err := a.AddBlock(block); err != nil {
					t.Fatal(err)
				}
				m.addBlock(family, block)
			case 9:
				a.RetireBlock(block)
				m.retireBlock(family, block)
			case 10:
				m.forbidden[block] = !m.forbidden[block]
			}
			if got, want := a.MayBind(o) == nil, m.mayBind(o); got != want {
				t.Fatalf("step %d: bind %v: got %v, want %v", i, o, got, want)
			}
			agree(t, i, a, m)
		}
	})
}

// restored returns a copy of a made from its records, as after a restart.
func restored(t *testing.T, a *Allocator, now time.Time) *Allocator {
	t.Helper()
	var subnets []netip.Prefix
	for _, f := range a.families {
		subnet := "0.0.0.0/8"
		if f.six {
			subnet = "fd00::/16"
		}
		subnets = append(subnets, netip.MustParsePrefix(subnet))
	}
	b, err := NewOfBlocks(a.quarantine, subnets, a.may)
	if err != nil {
		t.Fatal(err)
	}
	var quarantined []Quarantined
	var retired []netip.Prefix
	for _, p := range a.pools() {
		if err := b.AddBlock(p.prefix); err != nil {
			t.Fatal(err)
		}
		if p.retired {
			retired = append(retired, p.prefix)
		}
		// Keep the order of the queue: the records don't tell which of two equal quarantines goes
		// first, but the model does.
		for _, r := range p.queue {
			if until, ok := p.quarantined[r.index]; ok && until.Equal(r.until) {
				quarantined = append(quarantined, Quarantined{p.addr(r.index), until})
			}
		}
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
	for _, p := range retired {
		b.RetireBlock(p)
	}
	for i, p := range a.pools() {
		b.pools()[i].cursor = p.cursor
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
	usage := a.Usage()
	for _, r := range slices.Concat(m.families...) {
		if len(usage) == 0 {
			t.Fatalf("step %d: block %v is gone", step, r.prefix)
		}
		u := usage[0]
		usage = usage[1:]
		if u.Range != r.prefix || u.Retired != r.retired || u.Free != len(r.free) || u.Quarantined != len(r.quarantined) || u.Used != m.used(r) || u.Size != u.Free+u.Used+u.Quarantined {
			t.Fatalf("step %d: %+v, want %v with %d free, %d in quarantine, %d used, retired %v", step, u, r.prefix, len(r.free), len(r.quarantined), m.used(r), r.retired)
		}
	}
	if len(usage) > 0 {
		t.Fatalf("step %d: not dropped: %+v", step, usage)
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
