package nodes

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// subnets contain the blocks of all nodes.
const subnets = "10.201.0.0/16,fd68:7573:6b01::/48"

// cluster are nodes that find each other in a file.
type cluster struct {
	t     *testing.T
	file  string
	nodes []*machine
	more  string // what each node's table has besides
}

// newCluster returns nodes on the segments, one for each, whose huskds don't run yet. families are
// those of pods: "4", "6" or "46".
func newCluster(t *testing.T, backend, families string, on ...*node.Segment) *cluster {
	t.Helper()
	c := &cluster{t: t, file: filepath.Join(t.TempDir(), "nodes.toml")}
	in := slices.DeleteFunc(strings.Split(subnets, ","), func(s string) bool { return !has(families, netip.MustParsePrefix(s)) })
	for _, s := range on {
		m := newMachine(t, s)
		m.blocks = slices.DeleteFunc(m.blocks, func(b netip.Prefix) bool { return !has(families, b) })
		m.flags = node.Flags("--pod-subnets", strings.Join(in, ","), "--network-store", "file", "--nodes-file", c.file, "--network-backend", backend)
		c.nodes = append(c.nodes, m)
	}
	c.write(c.nodes...)
	return c
}

func has(families string, p netip.Prefix) bool {
	return strings.Contains(families, map[bool]string{false: "4", true: "6"}[p.Addr().Is6()])
}

// write replaces the file by one with these nodes.
func (c *cluster) write(of ...*machine) {
	c.t.Helper()
	var b strings.Builder
	for _, m := range of {
		var addresses []netip.Addr
		for _, p := range m.Uplink.Addresses {
			addresses = append(addresses, p.Addr())
		}
		fmt.Fprintf(&b, "[[node]]\nname = %q\naddresses = [%s]\nblocks = [%s]\n%s\n\n", m.Uplink.Name(), quoted(addresses), quoted(m.blocks), c.more)
	}
	if err := os.WriteFile(c.file+".new", []byte(b.String()), 0o600); err != nil {
		c.t.Fatal(err)
	}
	if err := os.Rename(c.file+".new", c.file); err != nil {
		c.t.Fatal(err)
	}
}

func quoted[T fmt.Stringer](list []T) string {
	out := make([]string, len(list))
	for i, v := range list {
		out[i] = fmt.Sprintf("%q", v.String())
	}
	return strings.Join(out, ", ")
}

// start starts all huskds and two pods on each node.
func (c *cluster) start() {
	c.t.Helper()
	start(c.t, c.nodes...)
	for _, m := range c.nodes {
		m.run("a")
		m.run("b")
	}
}

// way returns by which way a node sends packets to another: "" if it doesn't know the other.
func (m *machine) way(to *machine) string {
	m.t.Helper()
	var list []struct{ Name, Way string }
	if err := json.Unmarshal([]byte(m.MustHusk("net", "nodes", "-o", "json")), &list); err != nil {
		m.t.Fatal(err)
	}
	for _, n := range list {
		if n.Name == to.Uplink.Name() {
			return n.Way
		}
	}
	return ""
}

// goes checks by which way each node sends packets to each other.
func (c *cluster) goes(way func(from, to *machine) string) {
	c.t.Helper()
	c.goesWithin(10*time.Second, way)
}

func (c *cluster) goesWithin(limit time.Duration, way func(from, to *machine) string) {
	c.t.Helper()
	for _, from := range c.nodes {
		for _, to := range c.nodes {
			if from == to {
				continue
			}
			node.Eventually(c.t, limit, func() string {
				if got, want := from.way(to), way(from, to); got != want {
					return fmt.Sprintf("%s goes to %s by %q, want %q", from.Uplink.Name(), to.Uplink.Name(), got, want)
				}
				return ""
			})
		}
	}
}

func by(way string) func(_, _ *machine) string { return func(_, _ *machine) string { return way } }

// TestFile runs nodes of a file: on one segment, and on several with a router between them.
func TestFile(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, backend, families string
		media                   []node.Media // of the segments
		on                      []int        // the segment of each node
		way                     func(from, to *machine) string
	}{
		{"host-gw", "host-gw", "46", []node.Media{{}}, []int{0, 0, 0}, by("direct")},
		{"vxlan", "vxlan", "46", []node.Media{{}, {}}, []int{0, 0, 1}, func(from, to *machine) string {
			if from.Uplink.Segment == to.Uplink.Segment {
				return "direct"
			}
			return "vxlan"
		}},
		{"auto over IPv4", "auto", "46", []node.Media{{NoIPv6: true}, {NoIPv6: true, MTU: 9000}}, []int{0, 1, 1}, nil},
		{"auto over IPv6", "auto", "46", []node.Media{{NoIPv4: true}, {NoIPv4: true}}, []int{0, 1}, by("vxlan")},
		{"direct over IPv6", "host-gw", "46", []node.Media{{NoIPv4: true}}, []int{0, 0}, by("direct")},
		{"IPv4", "auto", "4", []node.Media{{}, {}}, []int{0, 0, 1}, nil},
		{"IPv6", "auto", "6", []node.Media{{}, {}}, []int{0, 0, 1}, nil},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			var segments, on []*node.Segment
			for _, m := range c.media {
				segments = append(segments, u.Segment(m))
			}
			for _, i := range c.on {
				on = append(on, segments[i])
			}
			nodes := newCluster(t, c.backend, c.families, on...)
			nodes.start()
			Reach(t, 30*time.Second, nodes.nodes...)
			if c.way != nil {
				nodes.goes(c.way)
			}
			remove(t, nodes.nodes...)
		})
	}
}

// streams sends packets between a pod of the first node and one of each other, in all families.
func (c *cluster) streams() (out []*stream) {
	c.t.Helper()
	first := c.nodes[0].pods[0]
	for _, m := range c.nodes[1:] {
		for _, a := range m.pods[0].addresses {
			out = append(out, first.streamTo(c.t, a, 2*time.Millisecond))
		}
		for _, a := range first.addresses {
			out = append(out, m.pods[0].streamTo(c.t, a, 2*time.Millisecond))
		}
	}
	for _, s := range out {
		s.after(c.t, 100)
	}
	return out
}

// lost ends the streams and fails the test if packets were lost for longer than a gap.
func lost(t *testing.T, when string, gap time.Duration, streams []*stream) {
	t.Helper()
	total := 0
	for _, s := range streams {
		sent, lost, longest := s.end()
		total += sent
		if longest > gap {
			t.Errorf("%s: %d of %d packets lost, for %v at once", when, lost, sent, longest)
		}
	}
	t.Logf("%s: %d packets in %d streams", when, total, len(streams))
}

// routes returns a node's routes to pods of other nodes, as the kernel has them.
func (m *machine) routes() string {
	m.t.Helper()
	return m.Must("sh", "-c", toOthers)
}

// toOthers prints the routes to pods of other nodes. Those to the node's own pods are by links of
// another name.
const toOthers = "{ { ip route show proto 104 type unicast; ip -6 route show proto 104 type unicast; } | grep -v ' dev hk' || true; }"

// TestFileLife follows three nodes through what happens to them: huskd is killed, stopped and
// started, the file has a mistake, what is in the kernel is deleted, a node leaves and comes back,
// gets another address, and reboots.
func TestFileLife(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, way string }{{"host-gw", "direct"}, {"vxlan", "vxlan"}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			on := []*node.Segment{u.Segment(node.Media{})}
			for range 2 {
				next := on[0]
				if c.way == "vxlan" {
					next = u.Segment(node.Media{})
				}
				on = append(on, next)
			}
			nodes := newCluster(t, c.name, "46", on...)
			nodes.start()
			Reach(t, 30*time.Second, nodes.nodes...)
			nodes.goes(by(c.way))
			nodes.huskdEnds()
			nodes.mistakes()
			nodes.deleted()
			nodes.resized()
			nodes.leaves()
			nodes.renumbered()
			nodes.reboots()
			remove(t, nodes.nodes...)
		})
	}
}

// huskdEnds kills and stops all huskds. No packet is lost.
func (c *cluster) huskdEnds() {
	c.t.Helper()
	streams := c.streams()
	for _, end := range []func(*node.Daemon){(*node.Daemon).Kill, (*node.Daemon).Stop} {
		for _, m := range c.nodes {
			end(m.huskd)
		}
		for _, s := range streams {
			s.after(c.t, 200)
		}
		for _, m := range c.nodes {
			m.restart()
		}
		c.goes(func(from, to *machine) string { return from.way(to) })
		for _, s := range streams {
			s.after(c.t, 500)
		}
	}
	lost(c.t, "while huskd was killed, stopped and started", 0, streams)
}

// mistakes breaks the file in several ways. Nothing changes in the kernel.
func (c *cluster) mistakes() {
	c.t.Helper()
	a := c.nodes[0]
	before := a.routes()
	good, err := os.ReadFile(c.file)
	if err != nil {
		c.t.Fatal(err)
	}
	streams := c.streams()
	for _, content := range []string{"", string(good) + "[[node", strings.Replace(string(good), "fd68", "fd69", 1)} {
		if err := os.WriteFile(c.file, []byte(content), 0o600); err != nil {
			c.t.Fatal(err)
		}
		node.Eventually(c.t, 10*time.Second, func() string {
			if r := a.Husk("net", "nodes"); !strings.Contains(r.Stderr, c.file) && !strings.Contains(r.Stderr, "outside the pod subnets") {
				return "husk net nodes doesn't tell of the mistake: " + r.Stderr
			}
			return ""
		})
		if strings.Contains(content, "fd69") {
			continue // only that block is refused
		}
		if after := a.routes(); after != before {
			c.t.Errorf("after a mistake in the file, the routes are\n%s\nwant\n%s", after, before)
		}
	}
	c.write(c.nodes...)
	node.Eventually(c.t, 10*time.Second, func() string {
		if r := a.Husk("net", "nodes"); r.Stderr != "" {
			return "husk net nodes still says: " + r.Stderr
		}
		return ""
	})
	lost(c.t, "while the file had mistakes", time.Hour, streams)
	Reach(c.t, 10*time.Second, c.nodes...)
}

// each returns a command that runs another for each link whose name has a prefix.
func each(prefix, command string) string {
	return "for link in $(ip -o link show | sed -n 's/^[0-9]*: \\(" + prefix + "[^:@]*\\).*/\\1/p'); do " + command + "; done"
}

// deleted deletes what Husk has in the kernel. It is back within a second.
func (c *cluster) deleted() {
	c.t.Helper()
	a := c.nodes[0]
	before := a.routes()
	for what, command := range map[string]string{
		"the routes":               toOthers + " | while read -r block rest; do case $block in *:*) ip -6 route del $block;; *) ip route del $block;; esac; done",
		"the links":                each("hn", "ip link del $link"),
		"all routes":               "ip route flush proto 104; ip -6 route flush proto 104",
		"the pods' links":          each("hk", "ip link del $link"),
		"the addresses of blocks":  "ip addr flush dev lo to 10.201.0.0/16; ip -6 addr flush dev lo to fd68:7573:6b01::/48",
		"the tables of nftables":   "nft flush ruleset",
		"the entries of the links": each("hn", "ip neigh flush nud permanent dev $link; bridge fdb show dev $link | while read -r mac rest; do bridge fdb del $mac dev $link $rest; done"),
	} {
		streams := c.streams()
		a.Must("sh", "-c", command)
		began := time.Now()
		node.Eventually(c.t, 10*time.Second, func() string {
			if now := a.routes(); now != before {
				return fmt.Sprintf("after %s were deleted, the routes are\n%s\nwant\n%s", what, now, before)
			}
			return ""
		})
		c.t.Logf("%s were deleted: healed after %v", what, time.Since(began))
		for _, s := range streams {
			s.after(c.t, 500)
		}
		// A busy machine takes longer than this one's second.
		lost(c.t, what+" were deleted", 5*time.Second, streams)
	}
}

// resized changes the MTU of a node's uplink, down and up. Its pods follow without a restart, and
// packets of the new size pass.
func (c *cluster) resized() {
	c.t.Helper()
	m := c.nodes[1]
	headers := 1500 - m.pods[0].mtu
	for _, mtu := range []int{1400, 1500} {
		m.Uplink.SetMTU(mtu)
		want := mtu - headers
		for _, p := range m.pods {
			node.Eventually(c.t, 20*time.Second, func() string {
				var got int
				err := netns.Do(p.netns, func() error {
					link, err := net.InterfaceByName("eth0")
					if err == nil {
						got = link.MTU
					}
					return err
				})
				if err != nil || got != want {
					return fmt.Sprintf("the MTU of %s is %d, %v; want %d", p.name, got, err, want)
				}
				return ""
			})
			p.mtu = want
		}
		Reach(c.t, 20*time.Second, c.nodes...)
	}
}

// leaves takes the last node out of the file and back.
func (c *cluster) leaves() {
	c.t.Helper()
	rest, last := c.nodes[:len(c.nodes)-1], c.nodes[len(c.nodes)-1]
	c.write(rest...)
	for _, m := range rest {
		node.Eventually(c.t, 10*time.Second, func() string {
			for _, b := range last.blocks {
				if now := m.routes(); strings.Contains(now, b.String()) {
					return "routes to a node that has left:\n" + now
				}
			}
			for _, what := range []string{m.Must("bridge", "fdb", "show"), m.Must("ip", "neigh", "show", "nud", "permanent")} {
				if strings.Contains(what, last.Uplink.Addresses[0].Addr().String()) {
					return "of a node that has left:\n" + what
				}
			}
			return ""
		})
	}
	Unreachable(c.t, rest[0], last)
	Reach(c.t, 10*time.Second, rest...)
	c.write(c.nodes...)
	Reach(c.t, 10*time.Second, c.nodes...)
}

// renumbered gives a node another address. While it has both, no packet is lost.
func (c *cluster) renumbered() {
	c.t.Helper()
	a, b := c.nodes[0], c.nodes[1]
	b.Uplink.Renumber(func() {
		streams := c.streams()
		c.write(c.nodes...)
		for _, address := range b.Uplink.Addresses {
			node.Eventually(c.t, 10*time.Second, func() string {
				var list []struct{ Addresses []string }
				if err := json.Unmarshal([]byte(a.MustHusk("net", "nodes", "-o", "json")), &list); err != nil {
					c.t.Fatal(err)
				}
				if !strings.Contains(fmt.Sprint(list), address.Addr().String()) {
					return fmt.Sprintf("husk net nodes doesn't know %v: %v", address.Addr(), list)
				}
				return ""
			})
		}
		for _, s := range streams {
			s.after(c.t, 200)
		}
		lost(c.t, "while a node had both addresses", 0, streams)
	})
	Reach(c.t, 20*time.Second, c.nodes...)
}

// reboots reboots a node. Its pods start again, with addresses of its blocks.
func (c *cluster) reboots() {
	c.t.Helper()
	b := c.nodes[1]
	b.Reboot()
	b.restart()
	b.runAgain()
	Reach(c.t, 30*time.Second, c.nodes...)
}
