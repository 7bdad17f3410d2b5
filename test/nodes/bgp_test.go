package nodes

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/test/node"
)

// newSpeakers returns nodes of a file that speak BGP.
func newSpeakers(t *testing.T, nodes int) *cluster {
	t.Helper()
	return newSpeakersOn(t, node.NewUnderlay(t).Segment(node.Media{}), nodes)
}

func newSpeakersOn(t *testing.T, s *node.Segment, nodes int) *cluster {
	t.Helper()
	on := make([]*node.Segment, nodes)
	for i := range on {
		on[i] = s
	}
	c := newCluster(t, "bgp", "46", on...)
	c.more = "as = 64512"
	c.write(c.nodes...)
	for _, m := range c.nodes {
		m.endOrphans()
		m.Binary("husk-bgp")
		m.flags = node.Flags("--pod-subnets", subnets, "--network-store", "file", "--nodes-file", c.file, "--network-backend", "bgp")
	}
	return c
}

// endOrphans makes the kernel give up soon on connections that a program has closed, which keep the
// namespace. The last packet of a connection, which the kernel sends for a socket that is gone, has
// the default TTL. A speaker with GTSM waits for it in vain.
func (m *machine) endOrphans() {
	m.t.Helper()
	netnstest.Set(m.t, m.Net(), "net/ipv4/tcp_orphan_retries", "1")
}

// also adds flags of huskd.
func (m *machine) also(flags ...string) {
	before := m.flags
	m.flags = func(cmd *exec.Cmd) {
		before(cmd)
		node.Flags(flags...)(cmd)
	}
}

func (m *machine) password(value string) {
	m.t.Helper()
	path := filepath.Join(m.Dir, "bgp-password")
	if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
		m.t.Fatal(err)
	}
	m.also("--bgp-password-file", path)
}

// speaker returns the PID of the node's husk-bgp, as the node sees it.
func (m *machine) speaker() string {
	return strings.TrimSpace(m.Run("pidof", "husk-bgp").Stdout)
}

// says waits until `husk net nodes` has a text, or hasn't.
func (m *machine) says(text string, want bool) {
	m.t.Helper()
	node.Eventually(m.t, 90*time.Second, func() string {
		if out := m.Husk("net", "nodes"); strings.Contains(out.Stdout+out.Stderr, text) != want {
			return fmt.Sprintf("%q: want %t:\n%s%s", text, want, out.Stdout, out.Stderr)
		}
		return ""
	})
}

// TestBGPMesh runs three nodes that speak BGP with each other, with a password.
func TestBGPMesh(t *testing.T) {
	t.Parallel()
	c := newSpeakers(t, 3)
	for _, m := range c.nodes {
		m.password("secret")
	}
	c.start()
	Reach(t, 30*time.Second, c.nodes...)
	c.goes(by("bgp"))
	a := c.nodes[0]
	routes, first := a.routes(), a.speaker()

	streams := c.streams()
	a.huskd.Kill()
	a.restart()
	a.says("bgp", true)
	if pid := a.speaker(); pid != first {
		t.Errorf("husk-bgp of PID %q has become %q as huskd was killed", first, pid)
	}
	// The peers keep the routes of a speaker that is killed, and so does the node itself.
	a.Must("kill", "-9", first)
	node.Eventually(t, 30*time.Second, func() string {
		if now := a.speaker(); now == "" || now == first {
			return "husk-bgp isn't started again"
		}
		return ""
	})
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if got := a.routes(); got != routes {
			t.Fatalf("after husk-bgp was killed, the routes are\n%s, want\n%s", got, routes)
		}
	}
	a.says("no session", false)
	lost(t, "huskd and husk-bgp killed", 0, streams)

	t.Logf("husk-bgp of a node of three:\n%s", a.Must("sh", "-c", "grep -E 'VmRSS|RssAnon' /proc/"+a.speaker()+"/status"))

	gone := c.nodes[2]
	c.write(c.nodes[:2]...)
	node.Eventually(t, 30*time.Second, func() string {
		if got := a.routes(); strings.Contains(got, gone.blocks[0].String()) || strings.Contains(got, gone.blocks[1].String()) {
			return "the routes of a node that has left are still there:\n" + got
		}
		return ""
	})
	Reach(t, 30*time.Second, c.nodes[:2]...)
	remove(t, c.nodes...)
}

// TestBGPPassword runs two nodes of which one has another password.
func TestBGPPassword(t *testing.T) {
	t.Parallel()
	c := newSpeakers(t, 2)
	c.nodes[0].password("secret")
	c.nodes[1].password("other")
	c.start()
	a, b := c.nodes[0], c.nodes[1]
	line := fmt.Sprintf("bgp: no session with %v of AS 64512: it doesn't answer: is a speaker there, does it know this node, and has it the same password?", b.Uplink.Addresses[0].Addr())
	a.says(line, true)
	if n := strings.Count(a.huskd.Log(), "bgp: no session"); n != 1 {
		t.Errorf("%d lines in the log:\n%s", n, a.huskd.Log())
	}
	if got := a.routes(); got != "" {
		t.Errorf("routes:\n%s", got)
	}
	remove(t, c.nodes...)
}

// TestBGPRouters runs nodes that speak BGP only with two routers: those of the rack, with nodes of
// one AS or of an AS each, or route reflectors. These also announce connected routes, a default
// route, and a subnet of machines that are no nodes.
func TestBGPRouters(t *testing.T) {
	t.Parallel()
	for software, routing := range routings {
		for _, c := range []struct {
			name  string
			as    uint32
			nodes [2]uint32
		}{
			{"top of rack", 65000, [2]uint32{64512, 64512}},
			{"an AS for each node", 65000, [2]uint32{64512, 4200000001}},
			{"route reflectors", 64512, [2]uint32{64512, 64512}},
		} {
			t.Run(software+"/"+strings.ReplaceAll(c.name, " ", "_"), func(t *testing.T) {
				t.Parallel()
				routers(t, routing, c.as, c.nodes)
			})
		}
	}
}

func routers(t *testing.T, software routing, as uint32, of [2]uint32) {
	c := newSpeakers(t, 2)
	s := c.nodes[0].Uplink.Segment
	a, b := c.nodes[0], c.nodes[1]
	config := routerConfig{as: as, password: "secret", gtsm: as != of[0]}
	gtsm := map[bool]string{true: "/gtsm"}[config.gtsm]
	for i, m := range c.nodes {
		config.addPeers(of[i], m)
		m.password("secret")
		m.also("--bgp-as", fmt.Sprint(of[i]))
	}
	for _, p := range []string{"0.0.0.0/0", "10.201.200.0/24", "10.201.0.0/16", b.Uplink.Addresses[0].Addr().String() + "/32"} {
		config.own = append(config.own, netip.MustParsePrefix(p))
	}
	routers := []*router{newRouter(t, s, software, config), newRouter(t, s, software, config)}
	var peers []string
	var vias []string
	for _, r := range routers {
		peers = append(peers, fmt.Sprintf("%v=%d%s", r.at(), as, gtsm))
		vias = append(vias, "via "+r.at().String())
	}
	for _, m := range c.nodes {
		m.also("--bgp-peers", strings.Join(peers, ","))
	}
	c.start()
	for _, r := range routers {
		for _, m := range c.nodes {
			for _, block := range m.blocks {
				r.knows(block, m, true)
			}
		}
	}
	Reach(t, 30*time.Second, c.nodes...)
	// Both routers announce the subnet with themselves as the next hop.
	node.Eventually(t, 30*time.Second, func() string {
		got := a.Must("ip", "route", "show", "10.201.200.0/24")
		for _, via := range vias {
			if !strings.Contains(got, via) {
				return fmt.Sprintf("routes to 10.201.200.0/24: %s, want %v", got, vias)
			}
		}
		return ""
	})
	t.Logf("routes:\n%s", a.routes())
	for line := range strings.Lines(a.routes()) {
		if !strings.HasPrefix(line, "10.201.") && !strings.HasPrefix(line, "fd68:7573:6b01:") && !strings.HasPrefix(line, "\t") {
			t.Errorf("a route that isn't to pods: %s", line)
		}
	}
	for _, never := range []string{"10.201.0.0/16", a.blocks[0].String() + " via"} {
		if strings.Contains(a.routes(), never) {
			t.Errorf("routes have %s:\n%s", never, a.routes())
		}
	}

	routes, first := a.routes(), a.speaker()
	a.huskd.Kill()
	a.restart()
	if pid := a.speaker(); pid != first {
		t.Errorf("husk-bgp of PID %q has become %q as huskd was killed", first, pid)
	}
	a.Must("kill", "-9", first)
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		for _, r := range routers {
			for _, block := range a.blocks {
				r.knows(block, a, true)
			}
		}
		if got := a.routes(); got != routes {
			t.Fatalf("after husk-bgp was killed, the routes are\n%s, want\n%s", got, routes)
		}
	}
	a.says("no session", false)
	remove(t, c.nodes...)
	for _, block := range a.blocks {
		routers[0].knows(block, a, false)
	}
}

// TestBGPIPv6Only runs nodes without IPv4 addresses, whose pods have them all the same: routes of
// IPv4 have IPv6 next hops (RFC 8950).
func TestBGPIPv6Only(t *testing.T) {
	t.Parallel()
	t.Run("mesh", func(t *testing.T) {
		t.Parallel()
		c := newSpeakersOn(t, node.NewUnderlay(t).Segment(node.Media{NoIPv4: true}), 2)
		c.start()
		Reach(t, 30*time.Second, c.nodes...)
		c.goes(by("bgp"))
		remove(t, c.nodes...)
	})
	for software, routing := range routings {
		for _, as := range []uint32{64512, 65000} {
			t.Run(fmt.Sprintf("%s/%d", software, as), func(t *testing.T) {
				t.Parallel()
				u := node.NewUnderlay(t)
				s := u.Segment(node.Media{NoIPv4: true})
				c := newSpeakersOn(t, s, 2)
				config := routerConfig{as: as}
				config.addPeers(64512, c.nodes...)
				r := newRouter(t, s, routing, config)
				for _, m := range c.nodes {
					// FRR advertises itself as a router of the link, by which nodes get other addresses.
					u.Filter(m.Node, r.Node, "icmpv6 type nd-router-advert")
					m.also("--bgp-peers", fmt.Sprintf("%v=%d", r.at(), as))
				}
				c.start()
				for _, m := range c.nodes {
					for _, block := range m.blocks {
						r.knows(block, m, true)
					}
				}
				Reach(t, 30*time.Second, c.nodes...)
				c.goes(by("bgp"))
				t.Logf("routes:\n%s", c.nodes[0].routes())
				remove(t, c.nodes...)
			})
		}
	}
}

// TestBGPAggregates has nodes with adjacent blocks, which they announce as one prefix, and a router
// that announces one prefix for all of them.
func TestBGPAggregates(t *testing.T) {
	t.Parallel()
	for software, routing := range routings {
		t.Run(software, func(t *testing.T) {
			t.Parallel()
			s := node.NewUnderlay(t).Segment(node.Media{})
			c := newSpeakersOn(t, s, 2)
			for i, m := range c.nodes {
				m.blocks[0] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, byte(16 + 2*i), 0}), 24)
				m.blocks = append(m.blocks, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, byte(17 + 2*i), 0}), 24))
			}
			c.write(c.nodes...)
			config := routerConfig{as: 65000, aggregate: netip.MustParsePrefix("10.201.16.0/20")}
			config.addPeers(64512, c.nodes...)
			r := newRouter(t, s, routing, config)
			for _, m := range c.nodes {
				m.also("--bgp-peers", fmt.Sprintf("%v=65000", r.at()))
			}
			c.start()
			for _, m := range c.nodes {
				r.knows(netip.PrefixFrom(m.blocks[0].Addr(), 23), m, true)
				r.knows(m.blocks[0], m, false)
			}
			Reach(t, 30*time.Second, c.nodes...)
			a, b := c.nodes[0], c.nodes[1]
			for _, block := range []netip.Prefix{b.blocks[0], b.blocks[2]} {
				if want := fmt.Sprintf("%v via %v ", block, r.at()); !strings.Contains(a.routes(), want) {
					t.Errorf("no route %s:\n%s", want, a.routes())
				}
			}
			if strings.Contains(a.routes(), "/20") {
				t.Errorf("the router's prefix has become a route:\n%s", a.routes())
			}
			remove(t, c.nodes...)
		})
	}
}

// TestBGPDeadPath cuts a node off from one of two routers. With BFD, both find that long before the
// session's hold time of 30 seconds.
func TestBGPDeadPath(t *testing.T) {
	t.Parallel()
	for software, routing := range routings {
		t.Run(software, func(t *testing.T) {
			t.Parallel()
			u := node.NewUnderlay(t)
			s := u.Segment(node.Media{})
			c := newSpeakersOn(t, s, 1)
			a := c.nodes[0]
			config := routerConfig{as: 65000, bfd: true, own: []netip.Prefix{netip.MustParsePrefix("10.201.200.0/24")}}
			config.addPeers(64512, a)
			routers := []*router{newRouter(t, s, routing, config), newRouter(t, s, routing, config)}
			forger := newMachine(t, s)
			a.also("--bgp-peers", fmt.Sprintf("%v=65000/bfd,%v=65000/bfd", routers[0].at(), routers[1].at()))
			c.start()
			uses := func(within time.Duration, want bool) {
				t.Helper()
				began := time.Now()
				node.Eventually(t, within, func() string {
					got := a.Must("ip", "route", "show", "10.201.200.0/24")
					if strings.Contains(got, routers[0].at().String()+" ") != want || !strings.Contains(got, routers[1].at().String()+" ") {
						return fmt.Sprintf("by %v: want %t: %s", routers[0].at(), want, got)
					}
					return ""
				})
				t.Logf("by %v: %t after %v", routers[0].at(), want, time.Since(began).Round(time.Millisecond))
				began = time.Now()
				routers[0].knows(a.blocks[0], a, want)
				t.Logf("the router: %v later", time.Since(began).Round(time.Millisecond))
			}
			uses(30*time.Second, true)
			a.says("BFD", false)
			// BFD is up a moment after the session. Only then does it find what happens.
			for _, r := range routers {
				r.bfdUp(a)
			}
			u.Cut(a.Node, routers[0].Node)
			uses(15*time.Second, false)
			// What was forwarded isn't from the router: it would begin a session that the router's own
			// packets don't belong to, and that lasts for days.
			forger.forgeBFD(routers[0].at(), a.Uplink.Addresses[0].Addr())
			u.Heal(a.Node, routers[0].Node)
			uses(30*time.Second, true)
			routers[0].bfdUp(a)
			remove(t, a)
		})
	}
}
