package nodes

import (
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestChecksums gives two nodes a network card that gets the checksums inside VXLAN packets wrong.
// huskd finds it and switches offloading off, which outlives it, rather than fall back to another
// way.
func TestChecksums(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"vxlan", "auto"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			c := newCluster(t, backend, "46", u.Segment(node.Media{}), u.Segment(node.Media{}), u.Segment(node.Media{}))
			c.start()
			Reach(t, 30*time.Second, c.nodes...)
			a, b := c.nodes[0], c.nodes[1]
			st := a.pods[0].streamTo(t, b.pods[0].address(false), 10*time.Millisecond)
			st.after(t, 20)
			said := func() string {
				for _, m := range []*machine{a, b} {
					if r := m.Husk("net", "nodes"); !strings.Contains(r.Stderr, "the checksum offloading of hn"+string(m.Instance())+"vx is off") {
						return "husk net nodes doesn't say that checksum offloading is off: " + r.Stderr
					}
				}
				return ""
			}
			began := time.Now()
			u.BreakChecksums(a.Node, true)
			u.BreakChecksums(b.Node, true)
			node.Eventually(t, time.Minute, said)
			t.Logf("offloading is off after %v", time.Since(began))
			Reach(t, 20*time.Second, c.nodes...)
			_, lost, gap := st.end()
			t.Logf("%d packets lost, for %v at once", lost, gap)
			if r := a.Husk("doctor"); !strings.Contains(r.Stdout, "checksum offloading") {
				t.Errorf("husk doctor says\n%s", r.Stdout)
			}
			a.huskd.Kill()
			a.restart()
			node.Eventually(t, 10*time.Second, said)
			c.goes(by("vxlan"))
			Reach(t, 20*time.Second, c.nodes...)
			remove(t, c.nodes...)
		})
	}
}
