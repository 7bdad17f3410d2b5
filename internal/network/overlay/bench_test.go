package overlay

import (
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/network/backend"
)

// BenchmarkPeers programs 5,000 peers with blocks of both families, and then changes one at a time.
func BenchmarkPeers(b *testing.B) {
	l := newLab(b, layout{1, false, "46"})
	n := l.nodes[0]
	heap := func() float64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc) / 1e6
	}
	const peers = 5000
	before := heap()
	p := many(n, peers)
	cpu := func() time.Duration {
		var u unix.Rusage
		_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	var firstCPU, first, verify, again, teardown, change time.Duration
	measure := func(d *time.Duration, fn func()) {
		began := time.Now()
		fn()
		*d += time.Since(began)
	}
	apply := func(p backend.Plan) {
		if _, err := n.Apply(p); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		spent := cpu()
		measure(&first, func() { apply(p) })
		firstCPU += cpu() - spent
		measure(&again, func() { apply(p) })
		measure(&verify, func() {
			if diffs, err := n.Verify(p); err != nil || len(diffs) > 0 {
				b.Fatal(len(diffs), err)
			}
		})
		b.ReportMetric(heap()-before, "MB-heap")
		for i := range 100 {
			changed := p
			changed.Peers = append([]*backend.Peer(nil), p.Peers...)
			one := *p.Peers[i*47]
			changed.Peers[i*47] = &one
			one.Forwards = append([]backend.Forward(nil), one.Forwards...)
			one.Forwards[0].To = netip.AddrFrom4([4]byte{172, 31, 0, byte(i)})
			measure(&change, func() { apply(changed) })
		}
		measure(&teardown, func() { apply(backend.Plan{}) })
	}
	for name, d := range map[string]time.Duration{"first": first, "first-CPU": firstCPU, "compare": again, "verify": verify, "one-change": change / 100, "teardown": teardown} {
		b.ReportMetric(float64(d.Microseconds())/1000/float64(b.N), "ms-"+name)
	}
	runtime.KeepAlive(p)
}
