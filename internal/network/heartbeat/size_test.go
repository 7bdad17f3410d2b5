package heartbeat

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/backend"
)

// large counts the packets that have been sent since last and were no small ones.
func (n *network) large() (count int) {
	for size, c := range n.sent {
		if size > small {
			count += c
		}
	}
	clear(n.sent)
	return count
}

// load lets many peers answer all probes, and returns how many bytes were sent in each second.
func load(peers int, warm, d time.Duration) (seconds []int) {
	m, now := NewMonitor(), time.Unix(0, 0)
	for i := range peers {
		m.Put(Target{fmt.Sprint(i), ways, backend.Direct, 1450})
	}
	for at := time.Duration(0); at < warm+d; at += tick {
		if at >= warm && (at-warm)%time.Second == 0 {
			seconds = append(seconds, 0)
		}
		m.Expire(now.Add(at))
		for _, p := range m.Due(now.Add(at)) {
			m.Answer(p.Seq, 0, now.Add(at))
			if at >= warm {
				seconds[len(seconds)-1] += p.Size
			}
		}
	}
	return seconds
}

// TestMostProbesAreSmall checks what peers cost that answer, and that the large probes are spread
// over the time.
func TestMostProbesAreSmall(t *testing.T) {
	for peers, most := range map[int]int{1: 200, 100: 20_000, 400: 80_000, 5000: 100_000} {
		seconds := load(peers, 4*LargePeriod(peers), 2*LargePeriod(peers))
		sum := 0
		for _, bytes := range seconds {
			sum += bytes
		}
		if each := sum / len(seconds); each > most {
			t.Errorf("%d peers cost %d bytes a second, want at most %d", peers, each, most)
		}
		if worst := slices.Max(seconds); peers >= 100 && worst > 2*sum/len(seconds) {
			t.Errorf("%d peers cost %d bytes in one second and %d in the average", peers, worst, sum/len(seconds))
		}
	}
}

// BenchmarkBytes is how many bytes a second a node sends to peers that answer.
func BenchmarkBytes(b *testing.B) {
	for _, peers := range []int{10, 100, 1000, 5000} {
		b.Run(fmt.Sprint(peers), func(b *testing.B) {
			sum, n := 0, 0
			for b.Loop() {
				for _, bytes := range load(peers, 5*time.Minute, 5*time.Minute) {
					sum, n = sum+bytes, n+1
				}
			}
			b.ReportMetric(float64(sum)/float64(n), "B/s")
		})
	}
}

// TestBlackHoleOfOneWay: the way in use drops large packets only. Another one replaces it, as long
// as it does.
func TestBlackHoleOfOneWay(t *testing.T) {
	for _, passes := range []int{1390, small} {
		n := newNetwork(t, ways...)
		n.run(time.Minute)
		n.limits[backend.Direct] = passes
		began := n.now
		for n.way == backend.Direct && n.now.Sub(began) < time.Minute {
			n.run(tick)
		}
		if took := n.now.Sub(began); n.way != backend.VXLAN || took > LargePeriod(1)+3*time.Second {
			t.Errorf("the way is %s after %v", n.way, took)
		}
		n.run(time.Hour)
		if len(n.history) != 1 {
			t.Errorf("the ways were %v, although small packets alone go by direct", n.history)
		}
		clear(n.limits)
		n.run(time.Minute)
		if n.way != backend.Direct {
			t.Errorf("once direct carries large packets, the way is %s", n.way)
		}
	}
}

// TestNewWayIsTriedWithLargePackets: what carries small packets only is found at once when it comes
// into use.
func TestNewWayIsTriedWithLargePackets(t *testing.T) {
	n := newNetwork(t, ways...)
	n.limits[backend.Direct] = 1000
	n.run(3 * time.Second)
	if n.way != backend.VXLAN {
		t.Errorf("the way is %s", n.way)
	}
	n.limits[backend.VXLAN] = 1000
	n.run(LargePeriod(1) + 3*time.Second)
	if n.way != backend.WireGuard {
		t.Errorf("the way is %s", n.way)
	}
}

// TestSmallPacketsAreNoLife: a peer that only small packets reach is no peer that answers.
func TestSmallPacketsAreNoLife(t *testing.T) {
	n := newNetwork(t, ways...)
	n.run(time.Minute)
	n.passes = 1000
	n.run(time.Hour)
	if h := n.m.Health()["b"]; h.Loss < 0.5 || n.now.Sub(h.Last) < time.Hour-LargePeriod(1) || h.Limit != 0 {
		t.Errorf("health is %+v", h)
	}
	n.expect()
	n.passes = 1500
	n.run(5 * time.Second)
	if h := n.m.Health()["b"]; n.now.Sub(h.Last) > 2*time.Second {
		t.Errorf("once all packets pass, the health is %+v", h)
	}
}

// TestASilentPeerGetsSmallProbes: what a peer costs that never answers, such as flannel's, and that
// it is known at once when it does.
func TestASilentPeerGetsSmallProbes(t *testing.T) {
	n := newNetwork(t)
	n.run(time.Minute)
	n.large()
	n.run(time.Hour)
	if sent := n.large(); sent > 0 {
		t.Errorf("%d large probes to a silent peer in an hour", sent)
	}
	n.set(ways...)
	n.run(2 * time.Second)
	if h := n.m.Health()["b"]; !h.Answered || n.m.peers["b"].by(backend.Direct).missed > 0 {
		t.Errorf("two seconds later the health is %+v", h)
	}
	n.passes = 1390 // and of one that comes back with a black hole
	n.set()
	n.run(time.Minute)
	n.set(ways...)
	n.run(20 * time.Second)
	if h := n.m.Health()["b"]; h.Limit != 1370 {
		t.Errorf("health is %+v, want a limit of 1370", h)
	}
}
