package ipam

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

var epoch = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func prefixes(s ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func allocator(t testing.TB, quarantine time.Duration, ranges ...string) *Allocator {
	t.Helper()
	a, err := New(quarantine, prefixes(ranges...)...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func owner(i int) Owner { return Owner{fmt.Sprintf("sandbox%d", i), "eth0"} }

func reserve(t testing.TB, a *Allocator, i int, now time.Time, want ...netip.Addr) Lease {
	t.Helper()
	l, err := a.Reserve(owner(i), now, want...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func addrs(s ...string) []netip.Addr {
	var out []netip.Addr
	for _, a := range s {
		out = append(out, netip.MustParseAddr(a))
	}
	return out
}

func TestInvalidRanges(t *testing.T) {
	for _, bad := range []struct{ ranges, want string }{
		{"", "no range"},
		{"10.0.0.0/31", "prefix length of 8 to 30"},
		{"10.0.0.0/32", "prefix length of 8 to 30"},
		{"11.0.0.0/7", "host bits"},
		{"8.0.0.0/7", "prefix length of 8 to 30"},
		{"10.0.0.1/24", "write 10.0.0.0/24"},
		{"fd00::/127", "prefix length of 16 to 126"},
		{"::/0", "prefix length of 16 to 126"},
		{"::ffff:10.0.0.0/120", "not a prefix"},
		{"10.0.0.0/24 10.1.0.0/24", "at most one of each family"},
		{"10.0.0.0/24 fd00::/64 fd01::/64", "at most one of each family"},
	} {
		_, err := New(0, prefixes(strings.Fields(bad.ranges)...)...)
		if !errors.Is(err, errdefs.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), bad.want) {
			t.Errorf("%q: got %v, want …%s…", bad.ranges, err, bad.want)
		}
	}
	if _, err := New(0, netip.Prefix{}); err == nil {
		t.Error("the zero prefix is accepted")
	}
	if _, err := New(-1, prefixes("10.0.0.0/24")...); err == nil {
		t.Error("a negative quarantine is accepted")
	}
}

func TestReservedAddresses(t *testing.T) {
	for _, c := range []struct {
		prefix      string
		size        int
		first, last string
	}{
		{"10.0.0.0/30", 1, "10.0.0.2", "10.0.0.2"},
		{"10.0.0.0/29", 5, "10.0.0.2", "10.0.0.6"},
		{"10.88.0.0/16", 65533, "10.88.0.2", "10.88.255.254"},
		{"10.0.0.0/12", 1<<20 - 3, "10.0.0.2", "10.15.255.254"},
		{"10.0.0.0/8", 1<<20 - 2, "10.0.0.2", "10.15.255.255"},
		{"fd00::/126", 2, "fd00::2", "fd00::3"},
		{"fd00:88::/64", 1<<20 - 2, "fd00:88::2", "fd00:88::f:ffff"},
		{"fd00::/16", 1<<20 - 2, "fd00::2", "fd00::f:ffff"},
	} {
		a := allocator(t, 0, c.prefix)
		if u := a.Usage()[0]; u.Size != c.size || u.Free != c.size {
			t.Errorf("%s: %+v, want %d addresses", c.prefix, u, c.size)
		}
		reserve(t, a, -2, epoch, addrs(c.first)...)
		a.Forget(owner(-2))
		reserve(t, a, -2, epoch, addrs(c.last)...)
		a.Forget(owner(-2))
		for _, outside := range []netip.Addr{addrs(c.first)[0].Prev(), addrs(c.last)[0].Next()} {
			if _, err := a.Reserve(owner(-4), epoch, outside); !errors.Is(err, errdefs.ErrInvalidArgument) {
				t.Errorf("%s: got %v: %v", c.prefix, outside, err)
			}
		}
		if c.size > 1<<16 {
			continue
		}
		seen := map[netip.Addr]bool{}
		for i := range c.size {
			seen[reserve(t, a, i, epoch).Addresses[0]] = true
		}
		if len(seen) != c.size || !seen[netip.MustParseAddr(c.first)] || !seen[netip.MustParseAddr(c.last)] {
			t.Errorf("%s: %d different addresses, want %d from %s to %s", c.prefix, len(seen), c.size, c.first, c.last)
		}
		if _, err := a.Reserve(owner(-1), epoch); !errors.Is(err, errdefs.ErrResourceExhausted) {
			t.Errorf("%s: one more: %v", c.prefix, err)
		}
	}
}

func TestSameOwnerGetsTheSameLease(t *testing.T) {
	a := allocator(t, 0, "10.0.0.0/24", "fd00::/64")
	first := reserve(t, a, 1, epoch)
	if len(first.Addresses) != 2 || !first.Addresses[0].Is4() || !first.Addresses[1].Is6() || first.State != Reserved {
		t.Fatalf("got %+v", first)
	}
	bound, ok := a.Bind(owner(1))
	if again := reserve(t, a, 1, epoch); !ok || bound.State != Bound || !slices.Equal(again.Addresses, first.Addresses) || again.State != Bound {
		t.Errorf("again: %+v", again)
	}
	if other, _ := a.Reserve(Owner{"sandbox1", "eth1"}, epoch); slices.Equal(other.Addresses, first.Addresses) {
		t.Error("another interface got the same addresses")
	}
	a.Release(owner(1))
	if _, err := a.Reserve(owner(1), epoch); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("while releasing: %v", err)
	}
}

func TestReleasedAddressesAreQuarantined(t *testing.T) {
	a := allocator(t, time.Minute, "10.0.0.0/29")
	for i := range 5 {
		reserve(t, a, i, epoch)
	}
	a.Release(owner(3))
	if _, err := a.Reserve(owner(9), epoch); err == nil {
		t.Error("an address that is being released was allocated")
	}
	q := a.Quarantine(owner(3), epoch)
	a.Quarantine(owner(1), epoch.Add(10*time.Second))
	if len(q) != 1 || q[0].Addr != netip.MustParseAddr("10.0.0.5") || !q[0].Until.Equal(epoch.Add(time.Minute)) {
		t.Errorf("quarantined: %v", q)
	}
	_, err := a.Reserve(owner(9), epoch.Add(20*time.Second))
	want := "range 10.0.0.0/29 is exhausted: 3 of 5 addresses in use, 2 in quarantine, the next is free in 40s: remove pods or configure a larger pod-subnets"
	if !errors.Is(err, errdefs.ErrResourceExhausted) || err.Error() != want {
		t.Errorf("got %v", err)
	}
	if got := a.Exhausted(epoch.Add(20 * time.Second)); got == nil || got.Error() != want {
		t.Errorf("Exhausted: %v", got)
	}
	if err := a.Exhausted(epoch.Add(time.Minute)); err != nil {
		t.Errorf("when the oldest is due: %v", err)
	}
	if got := reserve(t, a, 9, epoch.Add(time.Hour)).Addresses[0].String(); got != "10.0.0.5" {
		t.Errorf("not the oldest: %s", got)
	}
	if got := reserve(t, a, 10, epoch.Add(time.Hour)).Addresses[0].String(); got != "10.0.0.3" {
		t.Errorf("not the second oldest: %s", got)
	}
}

func TestExpire(t *testing.T) {
	a := allocator(t, time.Minute, "10.0.0.0/24", "fd00::/64")
	for i := range 10 {
		reserve(t, a, i, epoch)
	}
	for i := range 10 {
		a.Quarantine(owner(i), epoch.Add(time.Duration(i)*time.Second))
	}
	if got := a.Expire(epoch.Add(59*time.Second), 100); got != nil {
		t.Errorf("too early: %v", got)
	}
	if got := a.Expire(epoch.Add(64*time.Second), 7); len(got) != 7 {
		t.Errorf("limited: %v", got)
	}
	if got := a.Expire(epoch.Add(64*time.Second), 100); len(got) != 3 {
		t.Errorf("the remaining due addresses: %v", got)
	}
	if u := a.Usage(); u[0].Quarantined != 5 || u[1].Quarantined != 5 || u[0].Used != 0 || u[0].Free != 248 {
		t.Errorf("usage: %+v", u)
	}
}

func TestForgottenAddressesAreFreeAtOnce(t *testing.T) {
	a := allocator(t, time.Minute, "10.0.0.0/30")
	first := reserve(t, a, 1, epoch)
	a.Forget(owner(1))
	a.Forget(owner(1))
	if got := reserve(t, a, 2, epoch); got.Addresses[0] != first.Addresses[0] {
		t.Errorf("got %v", got)
	}
}

func TestAddressesGoRoundTheRange(t *testing.T) {
	a := allocator(t, 0, "10.0.0.0/24")
	last := netip.Addr{}
	for i := range 253 {
		l := reserve(t, a, i, epoch)
		if l.Addresses[0] == last {
			t.Fatalf("%v was reused at once", last)
		}
		last = l.Addresses[0]
		a.Quarantine(owner(i), epoch)
	}
	if got := reserve(t, a, 999, epoch).Addresses[0].String(); got != "10.0.0.2" {
		t.Errorf("after one round: %s", got)
	}
}

func TestRequestedAddresses(t *testing.T) {
	a := allocator(t, time.Minute, "10.0.0.0/24", "fd00::/64")
	got := reserve(t, a, 1, epoch, addrs("fd00::77")...)
	if got.Addresses[1].String() != "fd00::77" || !got.Addresses[0].Is4() {
		t.Errorf("got %v", got)
	}
	reserve(t, a, 2, epoch, addrs("fd00::5", "10.0.0.9")...)
	a.Quarantine(owner(2), epoch)
	reserve(t, a, 2, epoch, addrs("10.0.0.200")...)
	for _, bad := range []struct {
		owner int
		want  string
		kind  error
		text  string
	}{
		{3, "fd00::77", errdefs.ErrAlreadyExists, "in use by sandbox1/eth0"},
		{3, "10.0.1.9", errdefs.ErrInvalidArgument, "in no range"},
		{3, "10.0.0.0", errdefs.ErrInvalidArgument, "can't be assigned to pods"},
		{3, "10.0.0.1", errdefs.ErrInvalidArgument, "can't be assigned to pods"},
		{3, "10.0.0.255", errdefs.ErrInvalidArgument, "can't be assigned to pods"},
		{3, "fd00::1:0:0:1", errdefs.ErrInvalidArgument, "can't be assigned to pods"},
		{3, "fd00::10:0", errdefs.ErrInvalidArgument, "can't be assigned to pods"},
		{3, "10.0.0.9", errdefs.ErrUnavailable, "free again in 1m0s"},
		{1, "fd00::78", errdefs.ErrFailedPrecondition, "detach it first"},
		{3, "10.0.0.7 10.0.0.8", errdefs.ErrInvalidArgument, "same range"},
	} {
		_, err := a.Reserve(owner(bad.owner), epoch, addrs(strings.Fields(bad.want)...)...)
		if !errors.Is(err, bad.kind) || !strings.Contains(fmt.Sprint(err), bad.text) {
			t.Errorf("%s: got %v, want …%s…", bad.want, err, bad.text)
		}
	}
	if _, err := a.Reserve(owner(3), epoch.Add(time.Minute), addrs("10.0.0.9", "fd00::5")...); err != nil {
		t.Errorf("after its quarantine: %v", err)
	}
}

func TestPartialLeaseIsRolledBack(t *testing.T) {
	a := allocator(t, time.Minute, "10.0.0.0/24", "fd00::/126")
	reserve(t, a, 1, epoch)
	reserve(t, a, 2, epoch)
	before := a.Usage()
	if _, err := a.Reserve(owner(3), epoch); !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), "fd00::/126") {
		t.Errorf("got %v", err)
	}
	if after := a.Usage(); !slices.Equal(before, after) {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestRestore(t *testing.T) {
	a := allocator(t, time.Minute, "10.0.0.0/24", "fd00::/64")
	good := Lease{owner(1), Bound, addrs("10.0.0.2", "fd00::2")}
	foreign := Lease{owner(2), Bound, addrs("192.168.7.7")} // of a formerly configured range
	for _, l := range []Lease{good, foreign} {
		if err := a.Restore(l); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []Lease{
		{},
		{owner(1), Bound, addrs("10.0.0.9")},
		{owner(3), Bound, addrs("10.0.0.2")},
		{owner(3), Bound, nil},
		{owner(3), "odd", addrs("10.0.0.9")},
		{owner(3), Bound, addrs("10.0.0.9", "10.0.0.9")},
		{owner(3), Bound, []netip.Addr{{}}},
	} {
		if err := a.Restore(bad); err == nil {
			t.Errorf("restored %+v", bad)
		}
	}
	stale := a.RestoreQuarantine(epoch, []Quarantined{
		{netip.MustParseAddr("10.0.0.4"), epoch.Add(30 * time.Second)},
		{netip.MustParseAddr("10.0.0.2"), epoch.Add(10 * time.Second)},    // leased
		{netip.MustParseAddr("172.16.0.1"), epoch.Add(10 * time.Second)},  // no range
		{netip.MustParseAddr("10.0.0.1"), epoch.Add(10 * time.Second)},    // the gateway
		{netip.MustParseAddr("10.0.0.3"), epoch.Add(100000 * time.Hour)},  // clock set back
		{netip.MustParseAddr("10.0.0.5"), epoch.Add(-100000 * time.Hour)}, // long over
	})
	if want := addrs("10.0.0.1", "10.0.0.2", "172.16.0.1"); len(stale) != 3 || !slices.Contains(stale, want[0]) || !slices.Contains(stale, want[1]) || !slices.Contains(stale, want[2]) {
		t.Errorf("stale: %v", stale)
	}
	if got := a.Expire(epoch.Add(30*time.Second), 10); !slices.Equal(got, addrs("10.0.0.5", "10.0.0.4")) {
		t.Errorf("due: %v", got)
	}
	if got := a.Expire(epoch.Add(time.Minute), 10); !slices.Equal(got, addrs("10.0.0.3")) {
		t.Errorf("due later: %v", got)
	}
	if got := reserve(t, a, 1, epoch); !slices.Equal(got.Addresses, good.Addresses) {
		t.Errorf("of owner 1: %v", got)
	}
	if q := a.Quarantine(owner(2), epoch); len(q) != 0 {
		t.Errorf("an address of no range is in quarantine: %v", q)
	}
	if n := len(a.leases); n != 1 {
		t.Errorf("%d leases", n)
	}
}

func blocksOf(t *testing.T, may func(netip.Prefix) error, blocks ...string) *Allocator {
	t.Helper()
	a, err := NewOfBlocks(time.Minute, prefixes("10.0.0.0/8", "fd00::/16"), may)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range prefixes(blocks...) {
		if err := a.AddBlock(b); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

func TestBlocksAreFilledInTheirOrder(t *testing.T) {
	a := blocksOf(t, nil, "fd00::/64", "10.1.0.0/30", "10.2.0.0/30")
	for i, want := range []string{"10.1.0.2 fd00::2", "10.2.0.2 fd00::3"} {
		if l := reserve(t, a, i, epoch); fmt.Sprintf("%v %v", l.Addresses[0], l.Addresses[1]) != want {
			t.Errorf("got %v, want %s", l.Addresses, want)
		}
	}
	_, err := a.Reserve(owner(2), epoch)
	if want := "ranges 10.1.0.0/30 to 10.2.0.0/30 are exhausted: 2 of 2 addresses in use, 0 in quarantine: remove pods"; !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("got %v, want %s…", err, want)
	}
	if err := a.AddBlock(prefixes("10.3.0.0/24")[0]); err != nil {
		t.Fatal(err)
	}
	if l := reserve(t, a, 2, epoch); l.Addresses[0].String() != "10.3.0.2" {
		t.Errorf("got %v of the new block", l.Addresses)
	}
	if _, err := a.Reserve(owner(3), epoch, addrs("10.3.0.8", "10.1.0.2")...); !errors.Is(err, errdefs.ErrInvalidArgument) {
		t.Errorf("addresses of two blocks: %v", err)
	}
	for bad, want := range map[string]string{"10.3.0.0/25": "overlaps block 10.3.0.0/24", "10.0.0.0/8": "overlaps block", "10.3.1.1/24": "host bits"} {
		if err := a.AddBlock(netip.MustParsePrefix(bad)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want …%s…", bad, err, want)
		}
	}
	four, err := NewOfBlocks(0, prefixes("10.0.0.0/8"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := four.AddBlock(prefixes("fd00::/64")[0]); err == nil || !strings.Contains(err.Error(), "no addresses of its family") {
		t.Errorf("got %v", err)
	}
}

func TestRetiredBlocks(t *testing.T) {
	a := blocksOf(t, nil, "10.1.0.0/24", "10.2.0.0/24", "fd00::/64")
	one, two := prefixes("10.1.0.0/24")[0], prefixes("10.2.0.0/24")[0]
	first := reserve(t, a, 1, epoch)
	a.RetireBlock(one)
	if again := reserve(t, a, 1, epoch); !slices.Equal(again.Addresses, first.Addresses) {
		t.Errorf("the lease has become %v", again.Addresses)
	}
	if l := reserve(t, a, 2, epoch); !two.Contains(l.Addresses[0]) {
		t.Errorf("got %v of a retired block", l.Addresses)
	}
	if _, err := a.Reserve(owner(3), epoch, addrs("10.1.0.9")...); !errors.Is(err, errdefs.ErrUnavailable) {
		t.Errorf("a certain address: %v", err)
	}
	a.Quarantine(owner(1), epoch)
	a.Expire(epoch.Add(time.Minute-1), 100)
	if u := a.Usage(); len(u) != 3 || !u[0].Retired || u[0].Quarantined != 1 {
		t.Errorf("while an address is in quarantine: %+v", u)
	}
	a.Expire(epoch.Add(time.Minute), 100)
	if u := a.Usage(); len(u) != 2 || u[0].Range != two {
		t.Errorf("after the quarantine: %+v", u)
	}
	a.RetireBlock(two)
	if _, err := a.Reserve(owner(4), epoch); !errors.Is(err, errdefs.ErrUnavailable) || err.Error() != "this node has no block of IPv4 pod addresses yet" {
		t.Errorf("got %v", err)
	}
	if err := a.AddBlock(two); err != nil {
		t.Fatal(err)
	}
	if l := reserve(t, a, 4, epoch); l.Addresses[0].String() != "10.2.0.3" {
		t.Errorf("after adding the block again, got %v, want the next address", l.Addresses)
	}
}

// TestLeasesOfFormerBlocks checks that a block which is added around leases leaves them theirs.
func TestLeasesOfFormerBlocks(t *testing.T) {
	a := blocksOf(t, nil)
	if err := a.Restore(Lease{owner(1), Bound, addrs("10.1.0.2")}); err != nil {
		t.Fatal(err)
	}
	for _, b := range prefixes("10.1.0.0/29", "fd00::/64") {
		if err := a.AddBlock(b); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 4 {
		if l := reserve(t, a, 2+i, epoch); l.Addresses[0].String() == "10.1.0.2" {
			t.Error("an address was given out twice")
		}
	}
	if b, ok := a.BlockOf(addrs("10.1.0.2")[0]); !ok || b.String() != "10.1.0.0/29" {
		t.Errorf("got %v, %v", b, ok)
	}
	if _, ok := a.BlockOf(addrs("10.9.0.2")[0]); ok {
		t.Error("an address of no block has one")
	}
}

func TestVetoedBlocks(t *testing.T) {
	reasons := map[netip.Prefix]error{{}: errors.New("no answer of etcd")}
	may := func(b netip.Prefix) error { return reasons[b] }
	a := blocksOf(t, may)
	for _, err := range []error{a.Exhausted(epoch), errorOf(a.Reserve(owner(1), epoch))} {
		if !errors.Is(err, errdefs.ErrUnavailable) || !strings.HasPrefix(err.Error(), "this node has no block of pod addresses yet: no answer of etcd") {
			t.Errorf("without a block: %v", err)
		}
	}
	one, two := prefixes("10.1.0.0/24")[0], prefixes("10.2.0.0/24")[0]
	for _, b := range append(prefixes("fd00::/64"), one, two) {
		if err := a.AddBlock(b); err != nil {
			t.Fatal(err)
		}
	}
	reserve(t, a, 1, epoch)
	reasons[one] = errors.New("its lease ran out")
	if l := reserve(t, a, 2, epoch); !two.Contains(l.Addresses[0]) {
		t.Errorf("got %v", l.Addresses)
	}
	if err := a.MayBind(owner(1)); !errors.Is(err, errdefs.ErrUnavailable) || err.Error() != "pods get no addresses of 10.1.0.0/24 now: its lease ran out" {
		t.Errorf("bind: %v", err)
	}
	if err := errors.Join(a.MayBind(owner(2)), a.MayBind(owner(9)), a.Exhausted(epoch)); err != nil {
		t.Error(err)
	}
	reasons[two] = errors.New("so did this")
	for _, err := range []error{a.Exhausted(epoch), errorOf(a.Reserve(owner(3), epoch)), errorOf(a.Reserve(owner(3), epoch, addrs("10.1.0.9")...))} {
		if !errors.Is(err, errdefs.ErrUnavailable) || !strings.Contains(err.Error(), "10.1.0.0/24 now: its lease ran out") {
			t.Errorf("all vetoed: %v", err)
		}
	}
}

func errorOf(_ Lease, err error) error { return err }

// BenchmarkReserve must not depend on the number of leases.
func BenchmarkReserve(b *testing.B) {
	for _, leases := range []int{0, 1000, 20000, 60000, 65000} {
		b.Run(fmt.Sprint(leases), func(b *testing.B) {
			a := allocator(b, time.Minute, "10.88.0.0/16", "fd00:88::/64")
			for i := range leases {
				reserve(b, a, i, epoch)
			}
			now := epoch
			o := Owner{"benchmark", "eth0"}
			for b.Loop() {
				if _, err := a.Reserve(o, now); err != nil {
					b.Fatal(err)
				}
				now = now.Add(time.Minute)
				a.Quarantine(o, now)
				a.Expire(now.Add(time.Minute), 8)
			}
		})
	}
}

// BenchmarkReserveScattered frees random addresses, so that there are no long runs of free ones.
func BenchmarkReserveScattered(b *testing.B) {
	for _, leases := range []int{0, 20000, 60000} {
		b.Run(fmt.Sprint(leases), func(b *testing.B) {
			a := allocator(b, 0, "10.88.0.0/16")
			r := rand.New(rand.NewPCG(1, 2))
			for i := range 65533 {
				reserve(b, a, i, epoch)
			}
			for _, i := range r.Perm(65533)[:65533-leases] {
				a.Forget(owner(i))
			}
			o := Owner{"benchmark", "eth0"}
			for b.Loop() {
				if _, err := a.Reserve(o, epoch); err != nil {
					b.Fatal(err)
				}
				a.Forget(o)
			}
		})
	}
}
