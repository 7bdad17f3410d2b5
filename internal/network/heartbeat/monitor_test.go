package heartbeat

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/huskd/husk/internal/network/backend"
)

// network is a virtual network in which each way to the peers works or not. It follows the
// monitor's findings as the controller would: the first way that isn't broken is used.
type network struct {
	t       *testing.T
	m       *Monitor
	now     time.Time
	works   map[backend.Way]bool
	passes  int                 // the largest packets that pass
	limits  map[backend.Way]int // likewise of one way
	sent    map[int]int         // how many packets of each size
	rtt     time.Duration
	way     backend.Way
	history []string // "12s vxlan"
	flights []flight
	loses   func(Probe) bool // further packets
}

type flight struct {
	arrives time.Time
	seq     uint32
}

var ways = []backend.Way{backend.Direct, backend.VXLAN, backend.WireGuard}

func newNetwork(t *testing.T, working ...backend.Way) *network {
	n := &network{t: t, m: NewMonitor(), now: time.Unix(0, 0), works: map[backend.Way]bool{}, passes: 1500, rtt: time.Millisecond, way: backend.Direct, loses: func(Probe) bool { return false }, limits: map[backend.Way]int{}, sent: map[int]int{}}
	n.set(working...)
	n.m.Watch([]Target{{"b", ways, n.way, 1450}})
	return n
}

func (n *network) set(working ...backend.Way) {
	for _, w := range ways {
		n.works[w] = slices.Contains(working, w)
	}
}

// run lets the time pass.
func (n *network) run(d time.Duration) {
	for end := n.now.Add(d); n.now.Before(end); n.now = n.now.Add(tick) {
		changed := n.m.Expire(n.now)
		for _, f := range n.flights {
			if !f.arrives.After(n.now) {
				changed = n.m.Answer(f.seq, 0, n.now) || changed
			}
		}
		n.flights = slices.DeleteFunc(n.flights, func(f flight) bool { return !f.arrives.After(n.now) })
		for _, p := range n.m.Due(n.now) {
			n.sent[p.Size]++
			if limit := n.limits[p.Way]; n.works[p.Way] && p.Size <= n.passes && (limit == 0 || p.Size <= limit) && !n.loses(p) {
				n.flights = append(n.flights, flight{n.now.Add(n.rtt), p.Seq})
			}
		}
		if changed {
			n.follow()
		}
	}
}

func (n *network) follow() {
	broken := n.m.Health()["b"].Broken
	way := ways[0]
	for _, w := range ways {
		if !slices.Contains(broken, w) {
			way = w
			break
		}
	}
	if way != n.way {
		n.way = way
		n.history = append(n.history, fmt.Sprintf("%v %s", n.now.Sub(time.Unix(0, 0)).Round(time.Second), way))
	}
	n.m.Watch([]Target{{"b", ways, way, 1450}})
}

func (n *network) expect(want ...string) {
	n.t.Helper()
	if diff := cmp.Diff(want, n.history); diff != "" {
		n.t.Error(diff)
	}
}

func TestNothingBreaksWhileAllWorks(t *testing.T) {
	n := newNetwork(t, ways...)
	n.run(time.Hour)
	n.expect()
	if h := n.m.Health()["b"]; !h.Answered || h.Loss != 0 || h.RTT < time.Millisecond || h.RTT > 100*time.Millisecond {
		t.Errorf("health is %+v", h)
	}
}

func TestFailsOverWithinThreeSeconds(t *testing.T) {
	n := newNetwork(t, ways...)
	n.run(time.Minute)
	began := n.now
	n.set(backend.VXLAN, backend.WireGuard)
	for n.way == backend.Direct && n.now.Sub(began) < 10*time.Second {
		n.run(50 * time.Millisecond)
	}
	if took := n.now.Sub(began); n.way != backend.VXLAN || took > 3*time.Second {
		t.Errorf("the way is %s after %v, want vxlan within 3s", n.way, took)
	}
	n.set(backend.WireGuard)
	n.run(4 * time.Second)
	if n.way != backend.WireGuard {
		t.Errorf("the way is %s once only wireguard works", n.way)
	}
}

func TestComesBackWhenTheWayHolds(t *testing.T) {
	n := newNetwork(t, ways...)
	n.run(time.Minute)
	n.set(backend.VXLAN)
	n.run(time.Minute)
	n.set(ways...)
	n.run(time.Minute)
	n.expect("1m1s vxlan", "2m10s direct")
}

// TestFlappingIsDamped: a way that works every other 15 seconds is used less and less.
func TestFlappingIsDamped(t *testing.T) {
	n := newNetwork(t, ways...)
	for range 120 {
		n.set(ways...)
		n.run(15 * time.Second)
		n.set(backend.VXLAN)
		n.run(15 * time.Second)
	}
	if len(n.history) > 8 {
		t.Errorf("in an hour the way changed %d times: %v", len(n.history), n.history)
	}
}

func TestADeadPeerBreaksNoWay(t *testing.T) {
	n := newNetwork(t, ways...)
	n.run(time.Minute)
	n.set()
	n.run(time.Minute)
	n.expect()
	if h := n.m.Health()["b"]; h.Loss != 1 || n.now.Sub(h.Last) < 59*time.Second {
		t.Errorf("health of a dead peer is %+v", h)
	}
	n.set(ways...)
	n.run(time.Minute)
	n.expect()
}

func TestASilentPeer(t *testing.T) {
	n := newNetwork(t)
	n.run(time.Minute)
	n.expect()
	if h := n.m.Health()["b"]; h.Answered || len(h.Broken) > 0 {
		t.Errorf("health of a peer that never answers is %+v", h)
	}
}

// TestBlackHole: packets larger than 1390 bytes vanish on every way. Smaller ones are found to
// pass, and larger ones are used again once they do.
func TestBlackHole(t *testing.T) {
	n := newNetwork(t, ways...)
	n.run(time.Minute)
	n.passes = 1390
	n.run(LargePeriod(1) + 6*time.Second)
	if h := n.m.Health()["b"]; h.Limit != 1370 {
		t.Errorf("health is %+v, want a limit of 1370", h)
	}
	n.run(10 * time.Minute)
	if h := n.m.Health()["b"]; h.Limit != 1370 || h.Loss > 0.2 {
		t.Errorf("after minutes the health is %+v, want a limit of 1370 and no loss", h)
	}
	n.passes = 1500
	n.run(20 * time.Second)
	if h := n.m.Health()["b"]; h.Limit != 0 {
		t.Errorf("health is %+v, want no limit", h)
	}
	n.expect()
}

func TestRandomLossIsNoFailure(t *testing.T) {
	n := newNetwork(t, ways...)
	for i := range 600 { // every third second is lost
		if i%3 == 0 {
			n.set()
		} else {
			n.set(ways...)
		}
		n.run(time.Second)
	}
	n.expect()
}

// TestOneOfMany breaks a way to one of many peers.
func TestOneOfMany(t *testing.T) {
	for peers, limit := range map[int]time.Duration{maxRate: 3 * time.Second, 5000: 5000*time.Second/maxRate + 2*time.Second} {
		t.Run(fmt.Sprint(peers), func(t *testing.T) {
			m, now := NewMonitor(), time.Unix(0, 0)
			for i := range peers {
				m.Put(Target{fmt.Sprint(i), ways, backend.Direct, 1450})
			}
			broken := ""
			run := func(d time.Duration) (sent int) {
				for end := now.Add(d); now.Before(end) && len(m.Impaired()) == 0; now = now.Add(tick) {
					m.Expire(now)
					for _, p := range m.Due(now) {
						sent++
						if p.Peer != broken || p.Way != backend.Direct {
							m.Answer(p.Seq, 0, now)
						}
					}
				}
				return sent
			}
			run(time.Minute)
			if sent := run(10 * time.Second); sent > 10*maxRate || sent < 10*maxRate*9/10 {
				t.Errorf("%d probes in 10 seconds", sent)
			}
			for broken = range m.peers {
				break
			}
			began := now
			run(time.Minute)
			if got := m.Impaired()[broken]; len(got.Broken) == 0 || now.Sub(began) > limit {
				t.Errorf("%v after %v, want it within %v", got.Broken, now.Sub(began), limit)
			}
		})
	}
}

func TestRateIsBounded(t *testing.T) {
	m := NewMonitor()
	var targets []Target
	for i := range 5000 {
		targets = append(targets, Target{fmt.Sprint(i), ways, backend.Direct, 1450})
	}
	m.Watch(targets)
	now, sent := time.Unix(0, 0), 0
	for range 600 { // a minute, of which the first round goes out at once
		now = now.Add(100 * time.Millisecond)
		for _, p := range m.Due(now) {
			sent++
			m.Answer(p.Seq, 0, now)
		}
	}
	if sent > 5000+60*maxRate {
		t.Errorf("%d probes in a minute", sent)
	}
}

// TestProberWatch changes the peers of a prober many times. It probes those of the last call, and
// keeps what it knows of the ones that stay.
func TestProberWatch(t *testing.T) {
	p := &Prober{monitor: NewMonitor(), peers: map[string]Peer{}}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 300 {
		var peers []Peer
		for i := range 10 {
			if random.IntN(3) > 0 {
				peers = append(peers, Peer{Name: fmt.Sprint("n", i), Way: backend.VXLAN, MTU: 1450 + random.IntN(2), Paths: []backend.Path{{Way: backend.Direct}, {Way: backend.VXLAN}}[random.IntN(2):]})
			}
		}
		before := map[string]*watched{}
		for name, w := range p.monitor.peers {
			before[name] = w
		}
		p.Watch(netip.Addr{}, peers)
		if len(p.peers) != len(peers) || len(p.monitor.peers) != len(peers) {
			t.Fatalf("step %d: %d peers and %d watched, want %d", step, len(p.peers), len(p.monitor.peers), len(peers))
		}
		for _, want := range peers {
			w := p.monitor.peers[want.Name]
			if got := p.peers[want.Name]; !got.equal(&want) || !slices.Equal(w.target.Ways, want.target().Ways) || w.target.MTU != want.MTU || len(w.ways) != len(want.Paths) {
				t.Fatalf("step %d: got %+v and %+v, want %+v", step, got, w, want)
			}
			if before[want.Name] != nil && before[want.Name] != w {
				t.Fatalf("step %d: what was known of %s is lost", step, want.Name)
			}
		}
	}
}
