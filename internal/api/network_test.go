package api

import (
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
)

// TestSilentNode: of a node that has stopped answering, the note says for how long, and there is no
// round-trip time.
func TestSilentNode(t *testing.T) {
	now, rtt := time.Now(), time.Millisecond
	for _, c := range []struct {
		way      backend.Way
		why      string
		answered bool
		ago      time.Duration
		wantWhy  string
		wantRTT  time.Duration
	}{
		{backend.Direct, "", true, 2 * time.Second, "", rtt},
		{backend.Direct, "", true, 12 * time.Second, "no answer for 12s", 0},
		{backend.VXLAN, "not direct: x", true, 12 * time.Second, "no answer for 12s; not direct: x", 0},
		{backend.VXLAN, "not direct: x", false, 0, "not direct: x", 0},
		{"", "no way", true, 12 * time.Second, "no way", rtt},
	} {
		p := nodes.Peer{Name: "n", Way: c.way, Why: c.why}
		if c.answered {
			p.Health = heartbeat.Health{Answered: true, Last: now.Add(-c.ago), RTT: rtt, Loss: 1}
		}
		if got := otherNode(p, now, 5*time.Second); got.Why != c.wantWhy || got.RttNs != c.wantRTT.Nanoseconds() {
			t.Errorf("%+v: the note is %q, and the RTT %v", c, got.Why, time.Duration(got.RttNs))
		}
	}
}
