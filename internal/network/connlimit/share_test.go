package connlimit

import (
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/conntrack"
)

func TestLevel(t *testing.T) {
	a, b, c := owner{Pod: "a"}, owner{Pod: "b"}, owner{Pod: "c"}
	for _, tc := range []struct {
		held  map[owner]int
		total int
		want  int
	}{
		{nil, 100, math.MaxInt},
		{map[owner]int{a: 100}, 100, math.MaxInt},
		{map[owner]int{a: 101}, 100, 100},
		{map[owner]int{a: 60, b: 60}, 100, 50},
		{map[owner]int{a: 10, b: 95}, 100, 90},
		{map[owner]int{a: 10, b: 60, c: 80}, 100, 45},
		{map[owner]int{a: 0, b: 0, c: 200}, 100, 100},
	} {
		if got := level(tc.held, tc.total); got != tc.want {
			t.Errorf("level of %v in %d is %d, want %d", tc.held, tc.total, got, tc.want)
		}
	}
	for range 1000 {
		held := map[owner]int{}
		for i := range rand.IntN(10) {
			held[owner{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}] = rand.IntN(100)
		}
		total, sum, bounded := 1+rand.IntN(500), 0, 0
		l := level(held, total)
		for n := range maps.Values(held) {
			sum += n
			bounded += min(n, l)
		}
		if bounded > total || l != math.MaxInt && (sum <= total || bounded+len(held) < total) {
			t.Errorf("level of %v in %d is %d: %d are left of %d", held, total, l, bounded, sum)
		}
	}
}

// TestJudge follows a pod that takes too much, and another that takes little.
func TestJudge(t *testing.T) {
	s := shares{map[owner]*refusal{}}
	bad, good := owner{Pod: "default/bad"}, owner{Pod: "default/good"}
	now := time.Unix(0, 0)
	for i, step := range []struct {
		after              time.Duration
		bad, good, entries int // of 1000: pods may have 500
		refused, admitted  int // how many
		surplus            int
		stays              bool
	}{
		{0, 400, 100, 600, 0, 0, 0, false},                      // all fits
		{time.Second, 450, 100, 700, 1, 0, 0, true},             // bad has more than 400
		{time.Second, 450, 100, 700, 0, 0, 0, true},             // it is told once
		{time.Second, 450, 100, 900, 0, 0, 50, true},            // the table is full
		{time.Second, 400, 100, 600, 0, 0, 0, true},             // it is too early
		{cutTime, 300, 100, 500, 0, 0, 0, true},                 // above three quarters
		{time.Second, 270, 100, 500, 0, 1, 0, false},            // below
		{time.Second, 600, 0, 700, 1, 0, 0, true},               // again; the good one has no connection
		{refuseTime, 0, 0, 100, 0, 1, 0, false},                 // it is gone
		{time.Second, 10, 490, 950, 0, 0, 0, false},             // others than pods fill the table
		{time.Second, 10, 10, 1000, 0, 0, 0, false},             // likewise
		{time.Second, 1 << 20, 1 << 10, 1 << 20, 2, 0, 0, true}, // more than there is
	} {
		now = now.Add(step.after)
		v := s.judge(now, map[owner]int{bad: step.bad, good: step.good}, step.entries, 1000)
		if len(v.refused) != step.refused || len(v.admitted) != step.admitted || step.surplus > 0 && v.surplus[bad] != step.surplus || step.stays != (s.refused[bad] != nil) {
			t.Errorf("step %d: %+v, %+v", i, v, s.refused[bad])
		}
		if step.refused < 2 && s.refused[good] != nil {
			t.Errorf("step %d: the good one is refused", i)
		}
	}
}

// TestCounting checks how often entries are counted.
func TestCounting(t *testing.T) {
	at := time.Unix(0, 0)
	c := counting{last: at, took: 300 * time.Millisecond, entries: 600, lasting: 100}
	for _, tc := range []struct {
		after   time.Duration
		entries int
		want    bool
	}{
		{3 * time.Second, 650, false},
		{15 * time.Second, 650, true},
		{3 * time.Second, 899, false},
		{3 * time.Second, 900, true}, // nearly full
	} {
		if got := c.due(at.Add(tc.after), sizeOf(tc.entries)); got != tc.want {
			t.Errorf("after %v with %d entries: %v", tc.after, tc.entries, got)
		}
	}
	c.lasting = 400
	if !c.due(at.Add(3*time.Second), sizeOf(701)) {
		t.Error("pods may hold too much now")
	}
}

func sizeOf(entries int) conntrack.Size { return conntrack.Size{Entries: entries, Max: 1000} }
