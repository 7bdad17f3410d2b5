package nodes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// staticRoutes gives each of the nodes routes to the blocks of the others.
func staticRoutes(t *testing.T, verb string, of ...*machine) {
	t.Helper()
	for _, m := range of {
		for _, other := range of {
			if m == other {
				continue
			}
			for i, b := range other.blocks {
				m.Must("ip", "route", verb, b.String(), "via", other.Uplink.Addresses[i].Addr().String(), "dev", "up0")
			}
		}
	}
}

// TestStaticRoutes runs nodes that don't know each other, with routes made by hand. It is the test
// of the lab and of Reach, which must also notice the faults that the lab makes.
func TestStaticRoutes(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{})
	nodes := []*machine{newMachine(t, s), newMachine(t, s), newMachine(t, s)}
	for i, m := range nodes {
		m.flags = node.Flags("--pod-subnets", joined(m.blocks), fmt.Sprintf("--masquerade=%v", i == 2))
	}
	start(t, nodes...)
	staticRoutes(t, "add", nodes...)
	for _, m := range nodes {
		m.run("a")
		m.run("b")
	}
	a, b, c := nodes[0], nodes[1], nodes[2]
	Reach(t, 30*time.Second, a, b)
	// A node that knows of no others masquerades what goes to them.
	if got := c.pods[0].wrong(a.pods[0], false); !strings.Contains(got, "the server sees "+c.Uplink.Addresses[0].Addr().String()) {
		t.Errorf("masqueraded: %q", got)
	}

	u.Cut(a.Node, b.Node)
	Unreachable(t, a, b)
	Unreachable(t, b, a)
	u.Heal(a.Node, b.Node)
	Reach(t, 30*time.Second, a, b)
	u.Swallow(a.Node, b.Node, 1400)
	if got := a.pods[0].wrong(b.pods[0], true); !strings.Contains(got, "UDP, 1499 bytes") {
		t.Errorf("longer packets swallowed: %q", got)
	}
	u.Heal(a.Node, b.Node)

	st := a.pods[0].streamTo(t, b.pods[0].address(false), 2*time.Millisecond)
	st.after(t, 100)
	a.huskd.Kill()
	b.huskd.Stop()
	a.restart()
	b.restart()
	if sent, lost, _ := st.end(); lost > 0 || sent == 0 {
		t.Errorf("while huskd restarted: %d of %d packets lost", lost, sent)
	}
	st = a.pods[0].streamTo(t, b.pods[0].address(true), 2*time.Millisecond)
	u.Drop(a.Node, b.Node, 0.3)
	st.after(t, 100)
	if sent, lost, _ := st.end(); lost == 0 || lost == sent {
		t.Errorf("with 30 %% of the packets dropped: %d of %d packets lost", lost, sent)
	}
	u.Heal(a.Node, b.Node)
	staticRoutes(t, "del", nodes...)
	remove(t, nodes...)
}
