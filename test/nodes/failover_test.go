package nodes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestFailover breaks the ways between two nodes, and expects that packets take others by
// themselves, and the first one again when it works.
func TestFailover(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{})
	c := newCluster(t, "auto", "46", s, s, s)
	c.start()
	Reach(t, 30*time.Second, c.nodes...)
	c.goes(by("direct"))
	a, b := c.nodes[0], c.nodes[1]
	becomes := func(way string) {
		t.Helper()
		began := time.Now()
		for _, pair := range [][2]*machine{{a, b}, {b, a}} {
			node.Eventually(t, 2*time.Minute, func() string {
				if got := pair[0].way(pair[1]); got != way {
					return fmt.Sprintf("%s goes to %s by %q, want %q", pair[0].Uplink.Name(), pair[1].Uplink.Name(), got, way)
				}
				return ""
			})
		}
		t.Logf("%s after %v", way, time.Since(began))
		// The others aren't concerned.
		if got := a.way(c.nodes[2]); got != "direct" {
			t.Errorf("n1 goes to n3 by %q", got)
		}
	}
	st := a.pods[0].streamTo(t, b.pods[0].address(false), 10*time.Millisecond)
	st.after(t, 20)
	// The source check of a cloud: only the nodes' own addresses may leave them.
	u.Filter(a.Node, b.Node, "ip saddr 10.201.0.0/16", "ip6 saddr fd68:7573:6b01::/48")
	becomes("vxlan")
	Reach(t, 20*time.Second, c.nodes...)
	_, lost, gap := st.end()
	t.Logf("the first way is dead: %d packets lost, for %v at once", lost, gap)
	u.Heal(a.Node, b.Node)
	becomes("direct")
	Reach(t, 20*time.Second, c.nodes...)

	// Without any way, nothing changes: the peer is down.
	u.Cut(a.Node, b.Node)
	Unreachable(t, a, b)
	u.Heal(a.Node, b.Node)
	Reach(t, 20*time.Second, c.nodes...)
	becomes("direct")
	remove(t, c.nodes...)
}

// TestFailbackWithStrictReversePath runs nodes whose administrators demand that packets come by the
// link to which the node would send. A way that has failed isn't used again, as the probes by it
// are dropped, until they follow the doctor's advice.
func TestFailbackWithStrictReversePath(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{NoIPv6: true})
	c := newCluster(t, "auto", "4", s, s)
	c.start()
	a, b := c.nodes[0], c.nodes[1]
	for _, m := range c.nodes {
		m.Must("sysctl", "-w", "net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.up0.rp_filter=1")
	}
	Reach(t, 30*time.Second, c.nodes...)
	c.goes(by("direct"))
	u.Filter(a.Node, b.Node, "ip saddr 10.201.0.0/16")
	node.Eventually(t, time.Minute, func() string {
		if way := a.way(b) + " " + b.way(a); way != "vxlan vxlan" {
			return "the ways are " + way
		}
		return ""
	})
	node.Eventually(t, 10*time.Second, func() string {
		if events := a.MustHusk("events"); !strings.Contains(events, "NodePathChanged") || !strings.Contains(events, "node n2 is now reached by vxlan instead of direct") {
			return "husk events:\n" + events
		}
		return ""
	})
	Reach(t, 20*time.Second, c.nodes...)
	u.Heal(a.Node, b.Node)
	for healed := time.Now(); time.Since(healed) < 15*time.Second; time.Sleep(time.Second) { // longer than a way must answer to be used again
		if way := a.way(b) + " " + b.way(a); way != "vxlan vxlan" {
			t.Fatalf("the ways are %s: strict reverse path filtering lets the probes pass, so the warning of husk doctor is wrong", way)
		}
	}
	const remedy = "sysctl -w net.ipv4.conf.up0.rp_filter=2"
	for _, m := range c.nodes {
		if out := m.Husk("doctor").Stdout; !strings.Contains(out, remedy) {
			t.Errorf("husk doctor doesn't say what to do:\n%s", out)
		}
		m.Must("sh", "-c", remedy)
	}
	c.goesWithin(time.Minute, by("direct"))
	Reach(t, 20*time.Second, c.nodes...)
	for _, m := range c.nodes {
		m.Must("sysctl", "-w", "net.ipv4.conf.all.rp_filter=2")
	}
	remove(t, c.nodes...)
}

// TestReorder lets packets overtake each other between nodes. TCP and the heartbeat go on.
func TestReorder(t *testing.T) {
	t.Parallel()
	for _, way := range []string{"vxlan", "wireguard"} {
		t.Run(way, func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			c := &cluster{t: t, nodes: []*machine{newMachine(t, u.Segment(node.Media{})), newMachine(t, u.Segment(node.Media{}))}}
			store := startEtcd(t, c.nodes[0])
			for _, m := range c.nodes {
				m.Binary("husk-wireguard")
				m.flags = node.Flags("--pod-subnets", subnets, "--network-store", "etcd", "--etcd-endpoints", store.url(), "--etcd-insecure",
					"--node-name", m.Uplink.Name(), "--network-backend", way)
			}
			start(t, c.nodes...)
			for _, m := range c.nodes {
				m.run("a")
			}
			Reach(t, 30*time.Second, c.nodes...)
			for _, m := range c.nodes {
				u.Reorder(m.Node, 0.2)
			}
			streams := c.streams()
			Reach(t, 20*time.Second, c.nodes...)
			for _, s := range streams {
				s.after(t, 500)
			}
			gap := time.Duration(0)
			if way == "wireguard" {
				gap = time.Second // on a busy machine, its process may not read its packets in time
			}
			lost(t, "while packets overtook each other", gap, streams)
			c.goes(by(way))
			store.stop()
			remove(t, c.nodes...)
		})
	}
}
