package network

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// watch runs Watch until the end of the test.
func (l *lab) watch(n *Network, limit *rate.Limiter) {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- (&repairer{n: n, limit: limit}).watch(ctx) }()
	l.t.Cleanup(func() {
		cancel()
		must(l.t, <-ended)
	})
}

// unlimited lets everything be repaired at once.
func unlimited() *rate.Limiter { return rate.NewLimiter(rate.Inf, 1) }

// volatile matches what changes when an object is made again.
var volatile = regexp.MustCompile(`@if\d+|qdisc (noqueue|noop) .*| refcnt \d+|[ \t]+$`)

// automatic matches lines about the MACs and link-local addresses that the kernel gives to IFBs.
var automatic = regexp.MustCompile(`hfbe0f.*(fe80::|LOWER_UP)|fe80::.* dev hfbe0f`)

// everything lists what is in the node's namespace.
func (l *lab) everything() string {
	l.t.Helper()
	var out []string
	for _, command := range []string{"ip -br link", "ip -br addr", "ip route show table all", "ip -6 route show table all",
		"ip -4 neigh show nud permanent", "ip -6 neigh show nud permanent", "tc qdisc show", "nft list ruleset"} {
		lines := strings.Split(l.run(l.node, strings.Fields(command)...), "\n")
		lines = slices.DeleteFunc(lines, func(line string) bool { return automatic.MatchString(line) })
		for i := range lines {
			lines[i] = volatile.ReplaceAllString(lines[i], "")
		}
		slices.Sort(lines)
		out = append(out, command)
		out = append(out, lines...)
	}
	return strings.Join(out, "\n")
}

// difference returns the lines that only one of two texts has.
func difference(was, is string) string {
	var out []string
	compare := func(sign, one, other string) {
		have := strings.Split(other, "\n")
		for line := range strings.Lines(one) {
			if !slices.Contains(have, strings.TrimSuffix(line, "\n")) {
				out = append(out, sign+line)
			}
		}
	}
	compare("- ", was, is)
	compare("+ ", is, was)
	return strings.Join(out, "\n")
}

// TestRepair removes objects of each kind by hand, and expects them back and all else as it was.
func TestRepair(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		for _, args := range []string{
			"link add stranger type bridge", "link set stranger addrgenmode none", "link set stranger up", "route add 203.0.113.0/24 dev stranger proto 105",
			"addr add 203.0.115.1/32 dev lo", "neigh add 203.0.113.9 lladdr 02:00:00:00:00:09 dev stranger nud permanent",
		} {
			l.ip(l.node, args)
		}
		l.run(l.node, "nft", "add", "table", "inet", "stranger")
		cfg.Resolver = plan.Resolvers(cfg.Instance)[0]
		n := l.open(cfg)
		quiet := l.attach(n)
		a := l.attachment(pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
		a.Bandwidth = pod.Bandwidth{IngressRate: 1e9, EgressRate: 1e9}
		attached, err := n.Attach(t.Context(), a)
		must(t, err)
		g := guest{a, attached}
		l.serve(g.Netns, "tcp", "g", 80)
		must(t, n.Reconcile(t.Context(), []pod.Attachment{quiet.Attachment, g.Attachment}))
		l.watch(n, unlimited())

		table := "inet " + cfg.Instance.Table()
		removals := map[string]string{
			"name server":      "ip addr flush to " + cfg.Resolver.String(),
			"link":             "ip link del " + g.HostLink,
			"link that is up":  "ip link set " + g.HostLink + " down",
			"MTU":              "ip link set " + g.HostLink + " mtu 1300",
			"IFB":              "ip link del " + plan.IFBPrefix(cfg.Instance) + g.HostLink[len(cfg.Instance.HostLinkPrefix()):],
			"rate":             "tc qdisc del dev " + g.HostLink + " root",
			"redirection":      "tc qdisc del dev " + g.HostLink + " ingress",
			"table":            "nft delete table " + table,
			"chains and rules": "nft flush table " + table,
			"rule":             "nft delete rule " + table + " guard handle $(nft -a list chain " + table + " guard | sed -n 's/.*# handle //p' | sed -n 2p)",
		}
		for _, s := range stacks {
			first := plan.First(g.Addresses[slices.IndexFunc(g.Addresses, is(s.family))])
			removals["set of pods"+s.suffix] = "nft flush set " + table + " pods" + s.suffix
			removals["hostPorts"+s.suffix] = "nft flush map " + table + " ports" + s.suffix
			removals["subnets"+s.suffix] = "nft flush set " + table + " direct" + s.suffix
			removals["routes of IPv"+s.suffix] = "ip -" + s.suffix + " route flush table all proto 104"
			removals["address of IPv"+s.suffix] = fmt.Sprintf("ip -%s addr flush to %v", s.suffix, first)
			removals["neighbours of IPv"+s.suffix] = fmt.Sprintf("ip -%s neigh flush nud permanent to %v", s.suffix, g.addr(s.family))
			if cfg.Mode == plan.PTP && s.family == 4 {
				removals["preferred route"] = fmt.Sprintf("ip route del %v src %s", g.addr(4), node4)
			}
		}
		if cfg.Mode == plan.Bridge {
			removals["bridge"] = "ip link del " + cfg.Instance.Bridge()
			removals["port of the bridge"] = "ip link set " + g.HostLink + " nomaster"
			removals["bridge that is up"] = "ip link set " + cfg.Instance.Bridge() + " down"
		}
		before := ""
		eventually(t, "the node is at rest", func() bool {
			was := before
			before = l.everything()
			return was == before
		})
		for what, command := range removals {
			began := time.Now()
			l.run(l.node, "sh", "-c", command)
			var diff string
			for end := began.Add(patience); ; time.Sleep(5 * time.Millisecond) {
				if diff = difference(before, l.everything()); diff == "" {
					t.Logf("%s: back after %v", what, time.Since(began))
					break
				}
				if time.Now().After(end) {
					t.Errorf("%s, after %q:\n%s", what, command, diff)
					break
				}
			}
			for _, s := range stacks {
				l.reaches("other, without "+what, l.other, "tcp"+s.suffix, s.node, 8080, "g "+s.other)
			}
		}
	})
}

// is returns whether a prefix is of a family.
func is(family int) func(netip.Prefix) bool {
	return func(p netip.Prefix) bool { return p.Addr().Is4() == (family == 4) }
}

// logLines counts the lines of a log that contain a text.
type logLines struct {
	t    testing.TB
	text string

	mu    sync.Mutex
	count int
}

func (c *logLines) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count += strings.Count(string(p), c.text)
	return testLog{c.t}.Write(p)
}

func (c *logLines) lines() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.count
}

// TestRepairAgainAndAgain lets a program remove a route for as long as the test runs.
func TestRepairAgainAndAgain(t *testing.T) {
	l := newLab(t)
	lines := &logLines{t: t, text: "others "}
	cfg := l.config()
	cfg.Log = slog.New(slog.NewTextHandler(lines, nil))
	n := l.open(cfg)
	g := l.attach(n)
	l.watch(n, rate.NewLimiter(rate.Every(time.Minute), 5))
	removed := 0
	var enough time.Time // when the last line was logged that is expected
	for end := time.Now().Add(patience); time.Now().Before(end) && (enough.IsZero() || time.Since(enough) < brevity); time.Sleep(time.Millisecond) {
		if _, err := netnstest.Try(l.node, "ip", "route", "del", g.addr(4).String()); err == nil {
			removed++
		}
		if enough.IsZero() && lines.lines() >= 7 {
			enough = time.Now()
		}
	}
	if removed < 6 || removed > 12 || lines.lines() != 7 { // one or two routes, put back five times
		t.Errorf("removed %d routes, and the log has %d lines", removed, lines.lines())
	}
}

// mtus returns the MTUs of the two ends of a pod's link.
func (l *lab) mtus(g guest) string {
	l.t.Helper()
	var out []string
	for _, link := range []struct{ ns, name string }{{l.node, g.HostLink}, {g.Netns, "eth0"}} {
		fields := strings.Fields(l.ip(link.ns, "-o link show "+link.name))
		out = append(out, fields[slices.Index(fields, "mtu")+1])
	}
	return strings.Join(out, " ")
}

// TestRunningPodsFollowTheMTU changes the MTU of the uplink and that of the ways to other nodes.
func TestRunningPodsFollowTheMTU(t *testing.T) {
	l := newLab(t)
	cfg := l.clusterConfig()
	n := l.open(cfg)
	must(t, n.SetBlocks(t.Context(), blocks1))
	own, external := l.attach(n), l.externally(n)
	a := l.attachment()
	a.RuntimeManaged = true
	attached, err := n.Attach(t.Context(), a)
	must(t, err)
	managed, kata := guest{a, attached}, l.externally(n)
	l.run(kata.Netns, "tc", "qdisc", "add", "dev", "eth0", "ingress")
	l.watch(n, unlimited())
	expect := func(mtu string) {
		t.Helper()
		for _, g := range []guest{own, external} {
			eventually(t, "the MTU of "+g.Pod.Name+" is "+mtu, func() bool { return l.mtus(g) == mtu+" "+mtu })
		}
		for _, g := range []guest{managed, kata} {
			if got := l.mtus(g); got != "1500 1500" {
				t.Errorf("MTU of a pod whose runtime has a network stack of its own: %s", got)
			}
		}
	}
	for _, mtu := range []string{"1400", "9000", "1300", "1500"} {
		l.ip(l.other, "link set eth0 mtu "+mtu)
		l.ip(l.node, "link set up0 mtu "+mtu)
		expect(mtu)
		l.run(own.Netns, "ping", "-c1", "-W5", "-n", "-M", "do", "-s", fmt.Sprint(atoi(t, mtu)-28), other4)
	}
	n.SetMTU(1450)
	expect("1450")
	l.ip(l.node, "route del default") // for a moment
	l.ip(l.node, "-6 route del default")
	n.SetMTU(0)
	eventually(t, "the change was seen", func() bool { return len(n.changes.wake) == 0 })
	expect("1450")
	l.ip(l.node, "route add default via "+other4)
	expect("1500")
	n.SetMTU(1410)
	expect("1410")
	if damages, err := n.Damages([]pod.Attachment{own.Attachment, managed.Attachment}); err != nil || len(damages) > 0 {
		t.Errorf("damages: %v, %v", damages, err)
	}
}

// TestMTUChangesWhileNobodyWatches restarts the network between the journal and the kernel.
func TestMTUChangesWhileNobodyWatches(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	n := l.open(cfg)
	g, other := l.attach(n), l.attach(n)
	must(t, n.ledger.setMTU(n.ledger.find(ownerOf(g.Attachment)), 1400))
	must(t, n.Close())
	n = l.open(cfg)
	must(t, n.Reconcile(t.Context(), []pod.Attachment{g.Attachment, other.Attachment}))
	if got := l.mtus(g) + " " + l.mtus(other); got != "1400 1400 1500 1500" {
		t.Errorf("after Reconcile: %s", got)
	}
	l.ip(l.node, "link set up0 mtu 1450")
	l.watch(n, unlimited())
	for _, g := range []guest{g, other} {
		eventually(t, "the MTU is that of the uplink", func() bool { return l.mtus(g) == "1450 1450" })
	}
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	i, err := strconv.Atoi(s)
	must(t, err)
	return i
}
