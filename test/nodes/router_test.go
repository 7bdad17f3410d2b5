package nodes

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// routing is the software of a router that speaks BGP.
type routing interface {
	// run runs it on a machine until the test ends.
	run(m *machine, c routerConfig)
	// hops returns the next hops that it has learned for a prefix.
	hops(m *machine, p netip.Prefix) []netip.Addr
	// bfdUp reports whether it has a session of BFD with an address.
	bfdUp(m *machine, at netip.Addr) bool
	// speaker and detector are the names of the programs that speak BGP and BFD.
	speaker() string
	detector() string
	// again runs one of them again, which has ended, as it was configured.
	again(m *machine, program string)
}

// routings are all that Husk is tested with.
var routings = map[string]routing{"BIRD": bird{}, "FRR": frr{}}

// routerConfig is what a router does. It announces to each peer its connected networks, what it has
// learned from the others, and own.
type routerConfig struct {
	as       uint32
	password string
	own      []netip.Prefix
	// aggregate is announced in place of the prefixes that it contains. It is of IPv4.
	aggregate netip.Prefix
	bfd       bool // with the timers of husk-bgp
	gtsm      bool // FRR has it for other ASs only
	abrupt    bool // without graceful restart
	waits     bool // BIRD waits after an error for as long as it does by default
	peers     []routerPeer
}

type routerPeer struct {
	address netip.Addr
	as      uint32 // the router reflects routes if it is its own
}

// addPeers adds nodes of an AS.
func (c *routerConfig) addPeers(as uint32, nodes ...*machine) {
	for _, m := range nodes {
		c.peers = append(c.peers, routerPeer{m.Uplink.Addresses[0].Addr(), as})
	}
}

// router is a machine that runs routing software.
type router struct {
	*machine
	routing routing
}

// kill kills a program of the router, as a crash does.
func (r *router) kill(program string) {
	r.t.Helper()
	r.Must("sh", "-c", "kill -9 $(pidof "+program+")")
}

// restart ends the software and runs it with another configuration.
func (r *router) restart(c routerConfig) {
	r.t.Helper()
	r.end()
	r.routing.run(r.machine, c)
}

func newRouter(t *testing.T, on *node.Segment, r routing, c routerConfig) *router {
	t.Helper()
	m := newMachine(t, on)
	forward := func(value string) {
		for _, name := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
			if err := netns.Do(m.Net(), func() error { return netns.SetSysctl(name, value) }); err != nil {
				t.Error(err)
			}
		}
	}
	forward("1")
	t.Cleanup(func() { forward("0") })
	m.endOrphans()
	r.run(m, c)
	return &router{m, r}
}

// at returns the address of the router's sessions.
func (r *router) at() netip.Addr { return r.Uplink.Addresses[0].Addr() }

// knows waits until the router has a route to a block by a node, or has none.
func (r *router) knows(block netip.Prefix, by *machine, want bool) {
	r.t.Helper()
	i := slices.IndexFunc(by.Uplink.Addresses, func(a netip.Prefix) bool { return a.Addr().Is6() == block.Addr().Is6() })
	via := by.Uplink.Addresses[max(i, 0)].Addr()
	node.Eventually(r.t, 30*time.Second, func() string {
		if got := r.routing.hops(r.machine, block); slices.Contains(got, via) != want {
			return fmt.Sprintf("%T has %v by %v, want by %v: %t", r.routing, block, got, via, want)
		}
		return ""
	})
}

// bfdUp waits until the router has a session of BFD with a node.
func (r *router) bfdUp(with *machine) {
	r.t.Helper()
	node.Eventually(r.t, 30*time.Second, func() string {
		if !r.routing.bfdUp(r.machine, with.Uplink.Addresses[0].Addr()) {
			return fmt.Sprintf("%T has no session of BFD with %s", r.routing, with.Uplink.Name())
		}
		return ""
	})
}

// daemon runs a program of a router until end or the end of the test.
func (m *machine) daemon(name string, args ...string) {
	m.t.Helper()
	cmd := m.Command(context.WithoutCancel(m.t.Context()), name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	stop := sync.OnceFunc(func() {
		// nsenter leads the group. Wait returns when the program has closed its output.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM)
		kill := time.AfterFunc(10*time.Second, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
		_ = cmd.Wait()
		kill.Stop()
		if m.t.Failed() {
			m.t.Logf("%s: %s", name, out.String())
		}
	})
	m.t.Cleanup(stop)
	m.daemons = append(m.daemons, stop)
}

// end ends the programs in the reverse order of their starts.
func (m *machine) end() {
	for _, stop := range slices.Backward(m.daemons) {
		stop()
	}
	m.daemons = nil
}

// id returns a router ID.
func (m *machine) id() string { return fmt.Sprintf("192.0.2.%d", m.Uplink.Number) }

// bird is BIRD 2.
type bird struct{}

func (bird) socket(m *machine) string { return filepath.Join(m.Dir, "bird.ctl") }

func (b bird) run(m *machine, c routerConfig) {
	m.t.Helper()
	hosttest.Program(m.t, "bird")
	var conf strings.Builder
	fmt.Fprintf(&conf, "router id %s;\nprotocol device {}\nprotocol direct { ipv4; ipv6; }\n", m.id())
	conf.WriteString("protocol kernel { ipv4 { export where source = RTS_BGP; }; }\nprotocol kernel { ipv6 { export where source = RTS_BGP; }; }\n")
	export := "all"
	if c.aggregate.IsValid() {
		export = fmt.Sprintf("where net !~ [ %v{%d,32} ]", c.aggregate, c.aggregate.Bits()+1)
		c.own = append(slices.Clone(c.own), c.aggregate)
	}
	if c.bfd {
		conf.WriteString("protocol bfd { interface \"*\" { min rx interval 200 ms; min tx interval 200 ms; multiplier 3; }; }\n")
	}
	for _, six := range []bool{false, true} {
		fmt.Fprintf(&conf, "protocol static { ipv%d;\n", map[bool]int{false: 4, true: 6}[six])
		for _, p := range c.own {
			if p.Addr().Is6() == six {
				fmt.Fprintf(&conf, "route %v unreachable;\n", p)
			}
		}
		conf.WriteString("}\n")
	}
	for i, p := range c.peers {
		reflect, gateway := "", ""
		if p.as == c.as {
			reflect, gateway = "direct; rr client;", "gateway direct;"
		}
		if c.password != "" {
			reflect += fmt.Sprintf(" password %q;", c.password)
		}
		if c.bfd {
			reflect += " bfd on;"
		}
		if c.gtsm {
			reflect += " ttl security on;"
		}
		restart := map[bool]string{false: "on", true: "off"}[c.abrupt] + ";"
		if !c.waits {
			restart += " error wait time 1, 2;"
		}
		gateway4 := gateway
		if p.address.Is6() {
			gateway4 = gateway + " extended next hop on;"
		}
		fmt.Fprintf(&conf, `protocol bgp peer%d {
  local %v as %d; neighbor %v as %d; graceful restart %[10]s %[6]s
  ipv4 { import all; export %[8]s; %[9]s };
  ipv6 { import all; export all; %[7]s };
}
`, i, m.Uplink.Addresses[0].Addr(), c.as, p.address, p.as, reflect, gateway, export, gateway4, restart)
	}
	if err := os.WriteFile(b.file(m), []byte(conf.String()), 0o600); err != nil {
		m.t.Fatal(err)
	}
	b.again(m, b.speaker())
}

func (bird) file(m *machine) string { return filepath.Join(m.Dir, "bird.conf") }

func (bird) speaker() string  { return "bird" }
func (bird) detector() string { return "bird" }

func (b bird) again(m *machine, program string) {
	m.daemon(program, "-f", "-c", b.file(m), "-s", b.socket(m), "-P", b.socket(m)+".pid")
}

// waits reports whether it waits after an error before it has a session again.
func (b bird) waits(m *machine) bool {
	return strings.Contains(m.Run("birdc", "-s", b.socket(m), "show", "protocols", "all", "peer0").Stdout, "Error wait")
}

var birdVia = regexp.MustCompile(`via (\S+) `)

func (b bird) hops(m *machine, p netip.Prefix) (out []netip.Addr) {
	for _, via := range birdVia.FindAllStringSubmatch(m.Run("birdc", "-s", b.socket(m), "show", "route", p.String()).Stdout, -1) {
		if a, err := netip.ParseAddr(via[1]); err == nil {
			out = append(out, a)
		}
	}
	return out
}

func (b bird) bfdUp(m *machine, at netip.Addr) bool {
	for line := range strings.Lines(m.Run("birdc", "-s", b.socket(m), "show", "bfd", "sessions").Stdout) {
		if f := strings.Fields(line); len(f) > 2 && f[0] == at.String() {
			return f[2] == "Up"
		}
	}
	return false
}

// frr is FRRouting: zebra, which changes the kernel's routes, bgpd and bfdd.
type frr struct{}

// Debian's FRR keeps its sockets in /run/frr, which is the node's own.
const (
	frrDir = "/run/frr"
	frrLib = "/usr/lib/frr/"
)

func (frr) run(m *machine, c routerConfig) {
	m.t.Helper()
	hosttest.Program(m.t, frrLib+"bgpd")
	var conf strings.Builder
	fmt.Fprintf(&conf, `router bgp %d
 bgp router-id %s
 no bgp ebgp-requires-policy
 no bgp default ipv4-unicast
 no bgp network import-check
 %s
`, c.as, m.id(), map[bool]string{false: "bgp graceful-restart", true: "bgp graceful-restart-disable"}[c.abrupt])
	for _, p := range c.peers {
		fmt.Fprintf(&conf, " neighbor %v remote-as %d\n", p.address, p.as)
		if c.password != "" {
			fmt.Fprintf(&conf, " neighbor %v password %s\n", p.address, c.password)
		}
		if c.bfd {
			fmt.Fprintf(&conf, " neighbor %v bfd profile fast\n", p.address)
		}
		if c.gtsm {
			fmt.Fprintf(&conf, " neighbor %v ttl-security hops 1\n", p.address)
		}
		if p.address.Is6() {
			fmt.Fprintf(&conf, " neighbor %v capability extended-nexthop\n", p.address)
		}
	}
	for _, family := range []string{"ipv4", "ipv6"} {
		fmt.Fprintf(&conf, " address-family %s unicast\n  redistribute connected\n", family)
		for _, p := range c.peers {
			fmt.Fprintf(&conf, "  neighbor %v activate\n", p.address)
			if p.as == c.as {
				fmt.Fprintf(&conf, "  neighbor %v route-reflector-client\n", p.address)
			}
		}
		for _, p := range c.own {
			if p.Addr().Is6() == (family == "ipv6") {
				fmt.Fprintf(&conf, "  network %v\n", p)
			}
		}
		if c.aggregate.IsValid() && family == "ipv4" {
			fmt.Fprintf(&conf, "  aggregate-address %v summary-only\n", c.aggregate)
		}
		conf.WriteString(" exit-address-family\n")
	}
	const bfd = "bfd\n profile fast\n  receive-interval 200\n  transmit-interval 200\n exit\nexit\n"
	// The daemons run as a user of their own.
	m.Must("install", "-d", "-o", "frr", "-g", "frr", frrDir)
	m.t.Cleanup(func() { _ = os.RemoveAll(m.Path(frrDir)) })
	for name, text := range map[string]string{"zebra": "", "bgpd": conf.String(), "bfdd": bfd} {
		if err := os.WriteFile(m.Path(frrDir+"/"+name+".conf"), []byte(text), 0o644); err != nil {
			m.t.Fatal(err)
		}
	}
	// bgpd closes sessions over IPv6 while the link has no link-local address to announce.
	node.Eventually(m.t, 10*time.Second, func() string { return m.Must("ip", "-6", "address", "show", "dev", "up0", "tentative") })
	m.frr("zebra")
	node.Eventually(m.t, time.Minute, func() string {
		if _, err := os.Stat(m.Path(frrDir + "/zserv.api")); err != nil {
			return "zebra: " + err.Error()
		}
		return ""
	})
	if c.bfd {
		m.frr("bfdd")
	}
	m.frr("bgpd")
}

// frr runs a daemon of FRR. They write logs for the case that they crash into /var/tmp, which each
// has to itself: nodes share that of the host, and their PIDs are the same.
func (m *machine) frr(name string, args ...string) {
	m.t.Helper()
	command := append([]string{frrLib + name, "-A", "127.0.0.1", "-P", "0", "--log", "stdout", "-f", frrDir + "/" + name + ".conf"}, args...)
	m.daemon("unshare", append([]string{"--mount", "sh", "-c", `mount -t tmpfs frr /var/tmp && exec "$@"`, "sh"}, command...)...)
}

func (frr) speaker() string                  { return "bgpd" }
func (frr) detector() string                 { return "bfdd" }
func (frr) again(m *machine, program string) { m.frr(program) }

// stopBFD ends all sessions of BFD on purpose, or allows them again.
func (frr) stopBFD(m *machine, stop bool) {
	m.t.Helper()
	command := map[bool]string{true: "shutdown", false: "no shutdown"}[stop]
	m.Must("vtysh", "--vty_socket", frrDir, "-c", "configure terminal", "-c", "bfd", "-c", "profile fast", "-c", command)
}

func (frr) hops(m *machine, p netip.Prefix) (out []netip.Addr) {
	family := map[bool]string{false: "ipv4", true: "ipv6"}[p.Addr().Is6()]
	var known struct {
		Paths []struct {
			Nexthops []struct{ IP string }
		}
	}
	answer := m.Run("vtysh", "--vty_socket", frrDir, "-c", fmt.Sprintf("show bgp %s unicast %v json", family, p)).Stdout
	if err := json.Unmarshal([]byte(answer), &known); err != nil {
		return nil
	}
	for _, path := range known.Paths {
		for _, hop := range path.Nexthops {
			if a, err := netip.ParseAddr(hop.IP); err == nil {
				out = append(out, a)
			}
		}
	}
	return out
}

func (frr) bfdUp(m *machine, at netip.Addr) bool {
	var peers []struct{ Peer, Status string }
	answer := m.Run("vtysh", "--vty_socket", frrDir, "-c", "show bfd peers json").Stdout
	if err := json.Unmarshal([]byte(answer), &peers); err != nil {
		return false
	}
	for _, p := range peers {
		if p.Peer == at.String() {
			return p.Status == "up"
		}
	}
	return false
}
