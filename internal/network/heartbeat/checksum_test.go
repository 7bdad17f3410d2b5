package heartbeat

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/backend"
)

// card is a network card that gets the checksums of VXLAN packets wrong.
type card struct {
	n *network
	// offloads is the VXLAN link's setting, which the controller switches off to try a cure.
	offloads bool
	// hopeless means that packets which the link has summed are lost too.
	hopeless bool
}

func (c *card) run(d time.Duration) {
	for end := c.n.now.Add(d); c.n.now.Before(end); {
		c.n.run(50 * time.Millisecond)
		if h := c.n.m.Health()["b"]; h.Checksums == ChecksumsSuspect {
			c.offloads = false
		}
	}
}

func newCard(t *testing.T) *card {
	c := &card{n: newNetwork(t, backend.VXLAN, backend.WireGuard)}
	c.run(time.Minute)
	if c.n.way != backend.VXLAN {
		t.Fatalf("the way is %s", c.n.way)
	}
	c.offloads = true
	c.n.loses = func(p Probe) bool { return p.Way == backend.VXLAN && !p.Summed && (c.offloads || c.hopeless) }
	return c
}

func TestChecksumsAreCured(t *testing.T) {
	c := newCard(t)
	began := c.n.now
	for c.offloads && c.n.now.Sub(began) < time.Minute {
		c.run(50 * time.Millisecond)
	}
	if took := c.n.now.Sub(began); took > 3*time.Second {
		t.Errorf("the cure was tried after %v, want 3s", took)
	}
	c.run(cureTime)
	if h := c.n.m.Health()["b"]; h.Checksums != ChecksumsCured || c.n.way != backend.VXLAN {
		t.Errorf("the way is %s, the health %+v", c.n.way, h)
	}
	if !c.n.m.Impaired()["b"].Impaired() {
		t.Error("the peer isn't listed as impaired")
	}
	c.n.set(backend.WireGuard) // VXLAN fails for another reason
	c.run(5 * time.Second)
	if c.n.way != backend.WireGuard {
		t.Errorf("once VXLAN doesn't work at all, the way is %s", c.n.way)
	}
}

// TestChecksumsWereNotTheReason: offloading is switched off and nothing changes, so another way is
// used.
func TestChecksumsWereNotTheReason(t *testing.T) {
	c := newCard(t)
	c.hopeless = true
	c.run(3*time.Second + cureTime)
	if h := c.n.m.Health()["b"]; c.offloads || h.Checksums != ChecksumsFine || c.n.way != backend.WireGuard {
		t.Errorf("offloading %v, the way is %s, the health %+v", c.offloads, c.n.way, h)
	}
	c.offloads = true
	c.run(calm / 2)
	if !c.offloads {
		t.Error("the same was tried again")
	}
}

// TestLossIsNoChecksum: packets are lost whatever their checksum is.
func TestLossIsNoChecksum(t *testing.T) {
	c := newCard(t)
	random := rand.New(rand.NewPCG(1, 2))
	c.n.loses = func(Probe) bool { return random.IntN(100) < 10 }
	for range 120 {
		c.run(time.Minute)
		if h := c.n.m.Health()["b"]; h.Checksums == ChecksumsCured {
			t.Fatalf("with a loss of 10%%, checksums were found wrong after %v", c.n.now.Sub(time.Unix(0, 0)))
		}
	}
	c.n.loses = func(p Probe) bool { return p.Way == backend.VXLAN }
	c.offloads = true
	if c.run(time.Minute); !c.offloads {
		t.Error("without any answer by VXLAN, checksums were suspected")
	}
}
