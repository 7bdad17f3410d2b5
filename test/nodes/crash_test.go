package nodes

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestBGPRouterDies kills the programs of two routers with BFD, of which one has graceful restart,
// and takes the node's link down. Each time, the routes by them must go long before the hold time
// of 30 seconds and the restart time of 120. FRR's program for BFD says that the path is down when
// only that for BGP has died. The routes must come back when the routers do.
func TestBGPRouterDies(t *testing.T) {
	t.Parallel()
	for software, routing := range routings {
		for _, six := range []bool{false, true} {
			t.Run(software+"/"+map[bool]string{false: "IPv4", true: "IPv6"}[six], func(t *testing.T) {
				t.Parallel()
				routersDie(t, routing, six)
			})
		}
	}
}

func routersDie(t *testing.T, software routing, six bool) {
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{NoIPv4: six})
	c := newSpeakersOn(t, s, 1)
	a := c.nodes[0]
	subnets := []netip.Prefix{netip.MustParsePrefix("10.201.200.0/24"), netip.MustParsePrefix("10.201.201.0/24")}
	var routers []*router
	var peers []string
	for i, subnet := range subnets {
		config := routerConfig{as: 65000, bfd: true, abrupt: i == 1, own: []netip.Prefix{subnet}}
		config.addPeers(64512, a)
		r := newRouter(t, s, software, config)
		u.Filter(a.Node, r.Node, "icmpv6 type nd-router-advert")
		routers = append(routers, r)
		peers = append(peers, fmt.Sprintf("%v=65000/bfd", r.at()))
	}
	a.also("--bgp-peers", strings.Join(peers, ","))
	c.start()
	has := func(what string, within time.Duration, want bool) {
		t.Helper()
		began := time.Now()
		for i, r := range routers {
			node.Eventually(t, within, func() string {
				if got := a.Must("ip", "route", "show", subnets[i].String()); strings.Contains(got, r.at().String()) != want {
					return fmt.Sprintf("%s: a route to %v by %v: %q, want one: %t\n%s", what, subnets[i], r.at(), got, want, a.Husk("net", "nodes").Stdout)
				}
				return ""
			})
			t.Logf("%s, graceful restart %t: route %t after %v", what, i == 0, want, time.Since(began).Round(10*time.Millisecond))
		}
		if !want {
			return
		}
		for _, r := range routers {
			r.knows(a.blocks[0], a, true)
			r.bfdUp(a)
		}
		t.Logf("%s: both routers have the node's route and BFD after %v", what, time.Since(began).Round(10*time.Millisecond))
		a.says("bgp:", false)
	}
	each := func(do func(r *router)) {
		for _, r := range routers {
			do(r)
		}
	}
	has("start", 30*time.Second, true)

	for _, away := range []time.Duration{time.Second, 30 * time.Second} {
		what := fmt.Sprintf("%s away for %v", software.speaker(), away)
		killed := time.Now()
		each(func(r *router) { r.kill(software.speaker()) })
		if away > 10*time.Second {
			has(what, away/2, false)
			a.says("it refuses connections", true)
			t.Log(a.Husk("net", "nodes").Stderr)
		}
		time.Sleep(time.Until(killed.Add(away)))
		each(func(r *router) { software.again(r.machine, software.speaker()) })
		has(what, time.Minute, true)
	}
	if software.detector() != software.speaker() {
		each(func(r *router) { r.kill(software.detector()) })
		has("no "+software.detector(), 15*time.Second, false)
		each(func(r *router) { software.again(r.machine, software.detector()) })
		has(software.detector()+" is back", time.Minute, true)
	}
	each(func(r *router) { u.Cut(a.Node, r.Node) })
	has("path cut", 15*time.Second, false)
	each(func(r *router) {
		u.Heal(a.Node, r.Node)
		u.Filter(a.Node, r.Node, "icmpv6 type nd-router-advert")
	})
	has("path healed", time.Minute, true)
	u.Isolate(a.Node)
	has("link down", 15*time.Second, false)
	u.Join(a.Node)
	has("link up", time.Minute, true)
	remove(t, a)
}

// TestBGPRouterEndsBFD has a router end BFD on purpose, which says nothing about the path: the
// session of BGP and its routes stay. When the router allows BFD again, BFD counts again.
func TestBGPRouterEndsBFD(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{})
	c := newSpeakersOn(t, s, 1)
	a := c.nodes[0]
	subnet := netip.MustParsePrefix("10.201.200.0/24")
	config := routerConfig{as: 65000, bfd: true, own: []netip.Prefix{subnet}}
	config.addPeers(64512, a)
	r := newRouter(t, s, frr{}, config)
	a.also("--bgp-peers", fmt.Sprintf("%v=65000/bfd", r.at()))
	c.start()
	route := func() bool {
		return strings.Contains(a.Must("ip", "route", "show", subnet.String()), r.at().String())
	}
	goes := func(what string, want bool) {
		t.Helper()
		node.Eventually(t, time.Minute, func() string {
			if route() != want {
				return fmt.Sprintf("%s: there is a route: %t\n%s", what, !want, a.Husk("net", "nodes").Stdout)
			}
			return ""
		})
	}
	goes("start", true)
	r.bfdUp(a)
	frr{}.stopBFD(r.machine, true)
	node.Eventually(t, 2*time.Minute, func() string {
		if !route() {
			t.Fatalf("the route has gone although BFD was ended on purpose:\n%s", a.Husk("net", "nodes").Stderr)
		}
		if out := a.Husk("net", "nodes"); !strings.Contains(out.Stdout+out.Stderr, "it doesn't answer BFD") {
			return "husk net nodes doesn't say that there is no BFD: " + out.Stderr
		}
		return ""
	})
	frr{}.stopBFD(r.machine, false)
	r.bfdUp(a)
	a.says("it doesn't answer BFD", false)
	if !route() {
		t.Error("the route has gone when BFD came back")
	}
	r.kill(frr{}.detector())
	goes("BFD has failed", false)
	frr{}.again(r.machine, frr{}.detector())
	goes("BFD is back", true)
	remove(t, a)
}

// TestBGPRouterWaits has a router of BIRD that waits after an error, for as long as BIRD does by
// default, and one that doesn't know the node. Both close connections at once, which is no reason
// to ask for the password.
func TestBGPRouterWaits(t *testing.T) {
	t.Parallel()
	u := node.NewUnderlay(t)
	s := u.Segment(node.Media{})
	c := newSpeakersOn(t, s, 1)
	a := c.nodes[0]
	subnet := netip.MustParsePrefix("10.201.200.0/24")
	config := routerConfig{as: 65000, bfd: true, waits: true, own: []netip.Prefix{subnet}}
	config.addPeers(64512, a)
	r := newRouter(t, s, bird{}, config)
	config.peers[0].address = r.at().Next().Next().Next()
	stranger := newRouter(t, s, bird{}, config)
	a.also("--bgp-peers", fmt.Sprintf("%v=65000/bfd,%v=65000", r.at(), stranger.at()))
	c.start()
	goes := func(what string, within time.Duration, want bool) {
		t.Helper()
		began := time.Now()
		node.Eventually(t, within, func() string {
			if strings.Contains(a.Must("ip", "route", "show", subnet.String()), r.at().String()) != want {
				return fmt.Sprintf("%s: there is a route: %t\n%s", what, !want, a.Husk("net", "nodes").Stderr)
			}
			return ""
		})
		t.Logf("%s: route %t after %v", what, want, time.Since(began).Round(time.Second))
	}
	goes("start", time.Minute, true)
	r.bfdUp(a)
	a.says(fmt.Sprintf("no session with %v of AS 65000: it closes connections at once", stranger.at()), true)
	u.Cut(a.Node, r.Node)
	goes("path cut", 15*time.Second, false)
	if !(bird{}).waits(r.machine) {
		t.Error("the router doesn't wait after an error:\n" + r.Run("birdc", "-s", bird{}.socket(r.machine), "show", "protocols", "all", "peer0").Stdout)
	}
	u.Heal(a.Node, r.Node)
	a.says(fmt.Sprintf("no session with %v of AS 65000: BFD has ended the session", r.at()), true)
	t.Log(a.Husk("net", "nodes").Stderr)
	a.says("has it the same password", false)
	goes("path healed", 3*time.Minute, true)
	r.bfdUp(a)
	remove(t, a)
}
