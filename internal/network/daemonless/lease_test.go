package daemonless

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func rangeOf(t testing.TB, subnet string) ipam.Ranges {
	t.Helper()
	r, err := ipam.NewRange(netip.MustParsePrefix(subnet), netip.Addr{}, netip.Addr{})
	must(t, err)
	return ipam.Ranges{r}
}

// newNetwork returns a network of which tests use only the database, unless they set Netns.
func newNetwork(t testing.TB, subnets ...string) *Network {
	t.Helper()
	cfg := Config{Dir: t.TempDir(), Quarantine: time.Minute}
	for _, s := range subnets {
		cfg.Ranges = append(cfg.Ranges, rangeOf(t, s))
	}
	n, err := New(cfg)
	must(t, err)
	return n
}

// change runs fn in a read-write transaction.
func (n *Network) change(fn func(*tx) error) error {
	l, err := n.lock(context.Background(), networkShared)
	if err != nil {
		return err
	}
	defer l.release()
	return l.update(fn)
}

// look runs fn in a read-only transaction.
func (n *Network) look(fn func(*tx) error) error {
	l, err := n.lock(context.Background(), networkShared)
	if err != nil {
		return err
	}
	defer l.release()
	return l.view(fn)
}

func fresh(name string, ports ...pod.PortMapping) *record {
	return &record{Attachment: pod.Attachment{
		Sandbox: SandboxOf(name, "eth0"), Pod: pod.Ref{Name: name}, Netns: "/run/netns/" + name, IfName: "eth0", Ports: ports,
	}}
}

// holding is what a model knows of an address: its holder, or the end of its quarantine.
type holding struct {
	sandbox string
	until   time.Time
}

// contents reads the whole database and checks that its buckets agree.
func contents(t testing.TB, n *Network) (leases map[string][]netip.Addr, held map[netip.Addr]holding) {
	t.Helper()
	leases, held = map[string][]netip.Addr{}, map[netip.Addr]holding{}
	must(t, n.look(func(b *tx) error {
		must(t, b.each(func(r *record) error {
			leases[r.Attachment.Sandbox] = r.addrs()
			for _, a := range r.addrs() {
				if other, twice := held[a]; twice {
					t.Fatalf("%v is in two leases, of %s and %s", a, other.sandbox, r.Attachment.Sandbox)
				}
				held[a] = holding{sandbox: r.Attachment.Sandbox}
			}
			return nil
		}))
		must(t, b.quarantined.ForEach(func(k, _ []byte) error {
			until, a := parseQuarantine(k)
			if _, twice := held[a]; twice {
				t.Fatalf("%v is in quarantine and in use", a)
			}
			held[a] = holding{until: until}
			return nil
		}))
		n := 0
		must(t, b.addresses.ForEach(func(k, v []byte) error {
			n++
			h, ok := held[keyAddress(k)]
			if !ok || h.sandbox != "" && h.sandbox != string(v) || h.sandbox == "" && !isQuarantined(v) {
				t.Fatalf("%v is recorded as held by %q, want %+v", keyAddress(k), v, h)
			}
			return nil
		}))
		if n != len(held) {
			t.Fatalf("%d addresses are recorded, %d are held", n, len(held))
		}
		inRuns := 0
		must(t, b.runs.ForEach(func(k, v []byte) error {
			for a := keyAddress(k); a.Compare(keyAddress(v)) <= 0; a = a.Next() {
				inRuns++
				if _, ok := held[a]; !ok {
					t.Fatalf("%v is lost: it is neither held nor free", a)
				}
			}
			return nil
		}))
		if inRuns != len(held) {
			t.Fatalf("%d addresses are in runs, %d are held", inRuns, len(held))
		}
		return nil
	}))
	return leases, held
}

// FuzzLeases runs random steps of random owners, over changing ranges and with crashes in the
// middle of transactions, and compares the database with a model after each step.
func FuzzLeases(f *testing.F) {
	f.Add([]byte{0, 1, 2, 64, 65, 0, 1, 128, 192, 0})
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 64, 66, 68, 128, 0, 2, 200, 1, 16, 17})
	f.Fuzz(func(t *testing.T, steps []byte) {
		if len(steps) > 80 {
			return
		}
		n := newNetwork(t, "10.9.0.0/28", "fd09::/124")
		sets := n.cfg.Ranges
		clock := time.Unix(1000, 0)
		leases, held := map[string][]netip.Addr{}, map[netip.Addr]holding{}
		crash := errors.New("crash")
		for i, step := range steps {
			r := fresh(fmt.Sprint("pod", step%32))
			id := r.Attachment.Sandbox
			crashes := i%7 == 6 // the transaction is rolled back
			switch step / 64 {
			case 0, 1: // attach, or detach if attached
				_, attached := leases[id]
				err := n.change(func(b *tx) error {
					var err error
					if attached {
						r = b.find(id)
						until := clock.Add(time.Minute)
						if step >= 96 {
							until = time.Time{} // rolled back: never used
						}
						err = b.end(r, until)
					} else {
						err = b.reserve(r, sets, clock)
					}
					if err == nil && crashes {
						err = crash
					}
					return err
				})
				switch {
				case errors.Is(err, crash):
				case err != nil && !errdefs.IsResourceExhausted(err):
					t.Fatal(err)
				case err != nil: // rolled back
					must(t, n.change(func(b *tx) error {
						if b.exhausted(sets, clock) == nil {
							t.Fatal("refused, but not exhausted: ", err)
						}
						return nil
					}))
				case attached:
					for _, a := range leases[id] {
						delete(held, a)
						if step < 96 {
							held[a] = holding{until: clock.Add(time.Minute)}
						}
					}
					delete(leases, id)
				default:
					for _, a := range r.addrs() {
						if h, ok := held[a]; ok && (h.sandbox != "" || h.until.After(clock)) {
							t.Fatalf("%v was allocated to %s but is held by %+v", a, id, h)
						}
						held[a] = holding{sandbox: id}
					}
					leases[id] = r.addrs()
				}
			case 2: // time passes
				clock = clock.Add(time.Duration(step%64) * time.Second)
			case 3: // the ranges change
				sets = []ipam.Ranges{rangeOf(t, fmt.Sprintf("10.9.%d.0/%d", step%2, 27+step%3)), rangeOf(t, "fd09::/124")}
			}
			gotLeases, gotHeld := contents(t, n)
			if fmt.Sprint(gotLeases) != fmt.Sprint(leases) {
				t.Fatalf("step %d: leases %v, want %v", i, gotLeases, leases)
			}
			for a, h := range gotHeld {
				if want, ok := held[a]; !ok || want.sandbox != h.sandbox || !want.until.Equal(h.until) {
					t.Fatalf("step %d: %v is held by %+v, want %+v", i, a, h, want)
				}
			}
			for a, h := range held {
				if _, ok := gotHeld[a]; ok {
					continue
				}
				if h.sandbox != "" || h.until.After(clock) {
					t.Fatalf("step %d: %v is free, want %+v", i, a, h)
				}
				delete(held, a) // its quarantine was over
			}
		}
	})
}

// TestCrashAtEveryWrite restores the database as it would be if the process had died after any of a
// transaction's writes, or within one. It must hold all of the transaction or nothing.
func TestCrashAtEveryWrite(t *testing.T) {
	n := newNetwork(t, "10.9.0.0/24", "fd09::/64")
	path := n.database()
	random := rand.New(rand.NewPCG(3, 4))
	var attached []string
	crashes := 0
	for i := range 60 {
		leasesBefore, _ := contents(t, n)
		before, err := os.ReadFile(path)
		must(t, err)
		err = n.change(func(b *tx) error {
			if len(attached) > 10 && random.IntN(2) == 0 {
				r := b.find(attached[0])
				attached = attached[1:]
				return b.end(r, bootTime().Add(time.Minute))
			}
			r := fresh(fmt.Sprint("pod", i))
			attached = append(attached, r.Attachment.Sandbox)
			return b.reserve(r, n.cfg.Ranges, bootTime())
		})
		must(t, err)
		after, err := os.ReadFile(path)
		must(t, err)
		leasesAfter, _ := contents(t, n)
		for _, partial := range partials(before, after, random) {
			must(t, os.WriteFile(path, partial.file, 0o600))
			got, _ := contents(t, n)
			want := leasesBefore
			if partial.whole {
				want = leasesAfter
			}
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("after %s: leases %v, want %v", partial.name, got, want)
			}
			crashes++
		}
		must(t, os.WriteFile(path, after, 0o600))
	}
	t.Logf("%d crashes", crashes)
}

type partial struct {
	name  string
	file  []byte
	whole bool
}

// partials returns the states of a file between two contents. Pages are written in any order,
// except for the meta pages 0 and 1, which bbolt writes last.
func partials(before, after []byte, random *rand.Rand) (out []partial) {
	size := os.Getpagesize()
	state := make([]byte, len(after))
	copy(state, before)
	var changed, meta []int
	for p := range len(after) / size {
		from, to := p*size, (p+1)*size
		if to <= len(before) && bytes.Equal(before[from:to], after[from:to]) {
			continue
		}
		if p < 2 {
			meta = append(meta, p)
		} else {
			changed = append(changed, p)
		}
	}
	random.Shuffle(len(changed), func(i, j int) { changed[i], changed[j] = changed[j], changed[i] })
	for _, p := range append(changed, meta...) {
		from, to := p*size, (p+1)*size
		if p >= 2 {
			torn := bytes.Clone(state)
			copy(torn[from:from+size/2], after[from:])
			out = append(out, partial{fmt.Sprintf("half of page %d", p), torn, false})
		}
		copy(state[from:to], after[from:to])
		out = append(out, partial{fmt.Sprintf("page %d", p), bytes.Clone(state), p < 2})
	}
	return out
}

// TestConcurrentCallers uses goroutines with their own open files, which lock each other out as
// processes do.
func TestConcurrentCallers(t *testing.T) {
	n := newNetwork(t, "10.9.0.0/25", "fd09::/64")
	var mu sync.Mutex
	holders := map[netip.Addr]string{}
	var g sync.WaitGroup
	for w := range 8 {
		g.Go(func() {
			for i := range 20 {
				r := fresh(fmt.Sprintf("pod-%d-%d", w, i))
				if err := n.change(func(b *tx) error { return b.reserve(r, n.cfg.Ranges, bootTime()) }); err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, a := range r.addrs() {
					if other, taken := holders[a]; taken {
						t.Errorf("%v was allocated to both %s and %s", a, other, r.Attachment.Pod.Name)
					}
					holders[a] = r.Attachment.Pod.Name
				}
				mu.Unlock()
				if i%2 == 0 {
					continue
				}
				mu.Lock()
				for _, a := range r.addrs() {
					delete(holders, a)
				}
				mu.Unlock()
				if err := n.change(func(b *tx) error { return b.end(r, time.Time{}) }); err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	leases, held := contents(t, n)
	if len(leases) != 80 || len(held) != 160 {
		t.Errorf("%d leases with %d addresses, want 80 with 160", len(leases), len(held))
	}
}

func TestReserveRefuses(t *testing.T) {
	n := newNetwork(t, "10.9.0.0/29")
	port := func(p uint16, ip string) pod.PortMapping {
		m := pod.PortMapping{Protocol: pod.TCP, HostPort: p, Port: 80}
		if ip != "" {
			m.HostIP = netip.MustParseAddr(ip)
		}
		return m
	}
	reserve := func(r *record, at time.Time) error {
		return n.change(func(b *tx) error { return b.reserve(r, n.cfg.Ranges, at) })
	}
	start := time.Unix(5000, 0)
	first := fresh("first", port(80, ""), port(81, "192.0.2.1"))
	first.Attachment.IPs = []netip.Addr{netip.MustParseAddr("10.9.0.5")}
	must(t, reserve(first, start))
	for name, c := range map[string]struct {
		r    *record
		is   func(error) bool
		says string
	}{
		"port":         {fresh("a", port(80, "192.0.2.7")), errdefs.IsUnavailable, "host port 80/tcp is in use on this node: pod /first has it"},
		"port of all":  {fresh("a", port(81, "")), errdefs.IsUnavailable, "81/tcp"},
		"address":      {asking("a", "10.9.0.5"), errdefs.IsAlreadyExists, "address 10.9.0.5 is in use: pod /first has it"},
		"elsewhere":    {asking("a", "10.8.0.5"), errdefs.IsInvalidArgument, "in no range"},
		"the gateway":  {asking("a", "10.9.0.1"), errdefs.IsInvalidArgument, "in no range"},
		"two":          {asking("a", "10.9.0.3", "10.9.0.4"), errdefs.IsInvalidArgument, "same range"},
		"other family": {asking("a", "fd00::2"), errdefs.IsInvalidArgument, "in no range"},
	} {
		if err := reserve(c.r, start); err == nil || !c.is(err) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: got %v, want %q", name, err, c.says)
		}
	}
	must(t, reserve(fresh("other port", port(81, "192.0.2.2")), start))
	for i := range 3 {
		must(t, reserve(fresh(fmt.Sprint("more", i)), start))
	}
	if err := reserve(fresh("too many"), start); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "no address is left in 10.9.0.0/29: remove") {
		t.Errorf("got %v", err)
	}
	must(t, n.change(func(b *tx) error { return b.end(first, start.Add(time.Minute)) }))
	if err := reserve(fresh("too soon"), start.Add(20*time.Second)); !errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), "1 in quarantine, the next is free in 40s") {
		t.Errorf("got %v", err)
	}
	if err := reserve(asking("too soon", "10.9.0.5"), start.Add(20*time.Second)); !errdefs.IsUnavailable(err) {
		t.Errorf("got %v", err)
	}
	must(t, reserve(asking("in time", "10.9.0.5"), start.Add(time.Minute)))
}

func asking(name string, ips ...string) *record {
	r := fresh(name)
	for _, ip := range ips {
		r.Attachment.IPs = append(r.Attachment.IPs, netip.MustParseAddr(ip))
	}
	return r
}

// TestAnotherBoot checks that the state of an earlier boot is void, even if it is damaged.
func TestAnotherBoot(t *testing.T) {
	n := newNetwork(t, "10.9.0.0/24")
	must(t, n.change(func(b *tx) error { return b.reserve(fresh("a"), n.cfg.Ranges, bootTime()) }))
	must(t, os.Truncate(n.database(), 5000))
	n.cfg.Boot = "another"
	if made, err := n.exists(); made || err != nil {
		t.Errorf("exists: %v, %v", made, err)
	}
	must(t, n.change(func(b *tx) error { return b.reserve(fresh("b"), n.cfg.Ranges, bootTime()) }))
	if leases, _ := contents(t, n); len(leases) != 1 {
		t.Errorf("leases %v", leases)
	}
	files, err := filepath.Glob(filepath.Join(n.cfg.Dir, "leases-*"))
	if len(files) != 1 || err != nil {
		t.Errorf("databases %v, %v", files, err)
	}
}

func TestDamagedDatabase(t *testing.T) {
	n := newNetwork(t, "10.9.0.0/24")
	must(t, n.change(func(b *tx) error { return b.reserve(fresh("a"), n.cfg.Ranges, bootTime()) }))
	must(t, os.WriteFile(n.database(), bytes.Repeat([]byte("garbage "), 4096), 0o600))
	err := n.change(func(*tx) error { return nil })
	if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), n.database()+" is unusable") {
		t.Errorf("got %v", err)
	}
}

func TestLockGivesUp(t *testing.T) {
	n := newNetwork(t, "10.9.0.0/24")
	l, err := n.lock(t.Context(), scope(SandboxOf("a", "eth0")))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := n.lock(ctx, scope(SandboxOf("a", "eth0"))); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the same sandbox: %v", err)
	}
	if _, err := n.lock(ctx, networkExclusive); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the whole: %v", err)
	}
	other, err := n.lock(t.Context(), scope(SandboxOf("b", "eth0")))
	must(t, err)
	other.release()
	l.release()
	again, err := n.lock(t.Context(), networkExclusive)
	must(t, err)
	again.release()
}

// BenchmarkLease measures the database's part of a call, for different numbers of leases.
func BenchmarkLease(b *testing.B) {
	for _, filled := range []int{0, 1000, 60_000} {
		b.Run(fmt.Sprint(filled), func(b *testing.B) {
			n := newNetwork(b, "10.0.0.0/15")
			fill(b, n, filled)
			i := 0
			for b.Loop() {
				r := fresh(fmt.Sprint("bench", i))
				i++
				must(b, n.change(func(t *tx) error { return t.reserve(r, n.cfg.Ranges, bootTime()) }))
				must(b, n.change(func(t *tx) error { return t.release(r) }))
				must(b, n.change(func(t *tx) error { return t.end(r, time.Time{}) }))
			}
		})
	}
}

// fill adds leases to the database, without anything in the kernel.
func fill(t testing.TB, n *Network, count int) {
	t.Helper()
	const batch = 20 // so that few pages of the database are free, as in practice
	for from := 0; from < count; from += batch {
		must(t, n.change(func(b *tx) error {
			for i := from; i < min(from+batch, count); i++ {
				r := fresh(fmt.Sprint("filler", i))
				r.Node = plan.Node{Instance: n.instance, Mode: plan.PTP, MTU: 1500}
				if err := b.reserve(r, n.cfg.Ranges, bootTime()); err != nil {
					return err
				}
			}
			return nil
		}))
	}
}

// TestUnreadableLease checks that a damaged record affects no other sandbox, and can be removed.
func TestUnreadableLease(t *testing.T) {
	for _, damage := range []string{"{", "null", "{}", "[]", `{"attachment":{"sandbox":"other"}}`} {
		n := newNetwork(t, "10.9.0.0/24", "fd09::/64")
		n.cfg.Log = slog.New(slog.DiscardHandler)
		port := pod.PortMapping{Protocol: pod.TCP, HostIP: netip.MustParseAddr("192.0.2.1"), HostPort: 80, Port: 8080}
		bad, good := fresh("bad", port), fresh("good")
		must(t, n.change(func(b *tx) error {
			return errors.Join(b.reserve(bad, n.cfg.Ranges, bootTime()), b.reserve(good, n.cfg.Ranges, bootTime()),
				b.leases.Put([]byte(bad.Attachment.Sandbox), []byte(damage)))
		}))
		must(t, n.look(func(b *tx) error {
			r := b.find(bad.Attachment.Sandbox)
			if !r.reconstructed || !slices.Equal(r.addrs(), bad.addrs()) || !slices.Equal(r.Attachment.Ports, bad.Attachment.Ports) {
				t.Errorf("%s: reconstructed %+v", damage, r)
			}
			if r.plan().Veth.Host != n.instance.HostLink(bad.Attachment.Sandbox) {
				t.Errorf("%s: link %s", damage, r.plan().Veth.Host)
			}
			return nil
		}))
		must(t, n.change(func(b *tx) error { return b.reserve(fresh("next"), n.cfg.Ranges, bootTime()) }))
		for words, r := range map[string]*record{
			"is in use: sandbox " + pod.Short(bad.Attachment.Sandbox): asking("a", bad.Addresses[0].Addr().String()),
			"host port 80/tcp is in use":                              fresh("b", pod.PortMapping{Protocol: pod.TCP, HostPort: 80, Port: 1}),
		} {
			if err := n.change(func(b *tx) error { return b.reserve(r, n.cfg.Ranges, bootTime()) }); err == nil || !strings.Contains(err.Error(), words) {
				t.Errorf("%s: %v, want %s", damage, err, words)
			}
		}
		must(t, n.change(func(b *tx) error { return b.release(b.find(bad.Attachment.Sandbox)) }))
		must(t, n.change(func(b *tx) error { return b.end(b.find(bad.Attachment.Sandbox), time.Time{}) }))
		leases, _ := contents(t, n)
		if len(leases) != 2 {
			t.Errorf("%s: %d leases are left, want 2", damage, len(leases))
		}
		must(t, n.change(func(b *tx) error { return b.reserve(fresh("b", port), n.cfg.Ranges, bootTime()) }))
	}
}
