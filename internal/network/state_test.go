package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// reaped waits until there are no debts.
func reaped(t testing.TB, n *Network) {
	t.Helper()
	eventually(t, "all links are reaped", func() bool { return len(n.Usage().Debts) == 0 })
}

// pristine checks that nothing of pods is left in memory, in the journal or in the kernel.
func (l *lab) pristine(n *Network, kernel string) {
	l.t.Helper()
	u := n.Usage()
	for _, r := range u.Ranges {
		if r.Used != 0 {
			l.t.Errorf("leases are left: %+v", r)
		}
	}
	if u.Attached != 0 || len(u.Debts) != 0 || len(n.ledger.records)+len(n.ledger.links)+len(n.ledger.ports) != 0 {
		l.t.Errorf("left: %+v, %v, %v, %v", u, n.ledger.records, n.ledger.links, n.ledger.ports)
	}
	for key := range n.ledger.journal.All("lease/") {
		l.t.Errorf("left in the journal: %s", key)
	}
	if got := l.kernel(n.cfg.Instance); got != kernel {
		l.t.Errorf("kernel objects now:\n%s\nbefore:\n%s", got, kernel)
	}
	elements, err := n.dp.Sweep(n.basePlan(), nil)
	must(l.t, err)
	if len(elements) > 0 {
		l.t.Errorf("strays: %v", elements)
	}
}

func TestAttachAndDetachAreIdempotent(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		before := l.kernel(cfg.Instance)
		g := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
		again, err := n.Attach(t.Context(), g.Attachment)
		must(t, err)
		if fmt.Sprint(*again) != fmt.Sprint(*g.Attached) {
			t.Errorf("attached again: %+v, before %+v", again, g.Attached)
		}
		if g.Network != Name || g.Attached.IfName != "eth0" || g.HostLink != cfg.Instance.HostLink(g.Sandbox) || len(g.Gateways) != len(stacks) {
			t.Errorf("attached: %+v", g.Attached)
		}
		for range 2 {
			must(t, n.Detach(t.Context(), g.Attachment))
		}
		reaped(t, n)
		must(t, n.Detach(t.Context(), g.Attachment))
		must(t, n.Detach(t.Context(), l.attachment()))
		l.pristine(n, before)
	})
}

func TestConcurrentAttachesOfOneSandbox(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	a := l.attachment()
	var wg sync.WaitGroup
	got := make([]*pod.Attached, 8)
	for i := range got {
		wg.Go(func() {
			var err error
			got[i], err = n.Attach(t.Context(), a)
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, g := range got {
		if fmt.Sprint(g) != fmt.Sprint(got[0]) {
			t.Errorf("got %+v and %+v", g, got[0])
		}
	}
	if u := n.Usage(); u.Attached != 1 || u.Ranges[0].Used != 1 {
		t.Errorf("usage: %+v", u)
	}
}

func TestAttachAgainWaitsForTheFormerLink(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	g := l.attach(n)
	for range 3 {
		must(t, n.Detach(t.Context(), g.Attachment))
		again, err := n.Attach(t.Context(), g.Attachment)
		must(t, err)
		if again.Addresses[0] == g.Addresses[0] {
			t.Errorf("%v, though it must be in quarantine", again.Addresses)
		}
	}
}

func TestFailedAttachLeavesNothing(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	before := l.kernel(n.cfg.Instance)
	taken := l.attachment()
	l.ip(taken.Netns, "link add eth0 type veth peer name eth9")
	gone := l.attachment()
	must(t, netns.Remove(gone.Netns))
	file := l.attachment()
	file.Netns = filepath.Join(l.dir, "file")
	must(t, os.WriteFile(file.Netns, nil, 0o600))
	noIPv6 := l.attachment()
	l.write(noIPv6.Netns, "net/ipv6/conf/all/disable_ipv6", "1")
	l.write(noIPv6.Netns, "net/ipv6/conf/default/disable_ipv6", "1")
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for _, c := range []struct {
		name string
		ctx  context.Context
		a    pod.Attachment
		want string
		kind error
	}{
		{"interface there", t.Context(), taken, "the namespace has a link eth0 of its own", errdefs.ErrAlreadyExists},
		{"namespace gone", t.Context(), gone, "no such file or directory", os.ErrNotExist},
		{"not a namespace", t.Context(), file, file.Netns, nil},
		{"no IPv6 in the pod", t.Context(), noIPv6, "is IPv6 disabled there", nil},
		{"cancelled", cancelled, l.attachment(), "context canceled", context.Canceled},
		{"bad sandbox", t.Context(), pod.Attachment{Sandbox: "x", Netns: "/n", IfName: "eth0"}, "sandbox", errdefs.ErrInvalidArgument},
	} {
		_, err := n.Attach(c.ctx, c.a)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.kind != nil && !errors.Is(err, c.kind) {
			t.Errorf("%s: got %v, want …%s…", c.name, err, c.want)
		}
	}
	if u := n.Usage(); u.Ranges[0].Free != u.Ranges[0].Size {
		t.Errorf("usage: %+v", u)
	}
	l.pristine(n, before)
}

func TestAttachRefusesDifferentSettings(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	g := l.attach(n)
	second := g.Attachment
	second.IfName = "eth1"
	if _, err := n.Attach(t.Context(), second); !errors.Is(err, errdefs.ErrAlreadyExists) || !strings.Contains(err.Error(), "detach it first") {
		t.Errorf("a second interface: %v", err)
	}
	similar := l.attachment()
	similar.Sandbox = g.Sandbox[:12] + similar.Sandbox[12:]
	if _, err := n.Attach(t.Context(), similar); !errors.Is(err, errdefs.ErrAlreadyExists) {
		t.Errorf("a sandbox with the same link: %v", err)
	}
	moved := g.Attachment
	moved.Netns = l.namespace("elsewhere")
	if _, err := n.Attach(t.Context(), moved); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("another namespace: %v", err)
	}
	ports := g.Attachment
	ports.Ports = []pod.PortMapping{{Protocol: pod.TCP, HostPort: 1, Port: 1}}
	if _, err := n.Attach(t.Context(), ports); !errors.Is(err, errdefs.ErrFailedPrecondition) {
		t.Errorf("other ports: %v", err)
	}
}

func TestDetachWhenTheNamespaceIsGone(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, _ []stack) {
		n := l.open(cfg)
		before := l.kernel(cfg.Instance)
		g := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
		must(t, netns.Remove(g.Netns))
		g.Attachment.Netns = ""
		must(t, n.Detach(t.Context(), g.Attachment))
		reaped(t, n)
		l.pristine(n, before)
	})
}

// TestTrafficEndsBeforeDetachReturns checks that Detach ends the traffic before the link is
// deleted.
func TestTrafficEndsBeforeDetachReturns(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		g := l.attach(n)
		l.serve(g.Netns, "tcp", "g", 80)
		l.serve(l.other, "tcp", "other", 7000)
		for _, s := range stacks {
			l.reaches("node", l.node, "tcp"+s.suffix, g.addr(s.family).String(), 80, "g "+func() string {
				got, _ := l.ask(l.node, "tcp"+s.suffix, g.addr(s.family).String(), 80)
				return strings.TrimPrefix(got, "g ")
			}())
		}
		must(t, n.Detach(t.Context(), g.Attachment))
		for _, s := range stacks {
			l.fails("node", l.node, "tcp"+s.suffix, g.addr(s.family).String(), 80)
			l.fails("pod", g.Netns, "tcp"+s.suffix, s.other, 7000)
		}
	})
}

func TestExhaustionAndRecovery(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.88.0.0/29")}
	cfg.Quarantine = 3 * time.Second
	n := l.open(cfg)
	var pods []guest
	for range 5 {
		must(t, n.Status())
		pods = append(pods, l.attach(n))
	}
	one := l.attachment()
	const want = "range 10.88.0.0/29 is exhausted: 5 of 5 addresses in use, 0 in quarantine"
	if _, err := n.Attach(t.Context(), one); !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), want) {
		t.Fatalf("a sixth pod: %v", err)
	}
	if err := n.Status(); !errors.Is(err, errdefs.ErrResourceExhausted) || !strings.Contains(err.Error(), want) {
		t.Fatalf("status: %v", err)
	}
	must(t, n.Detach(t.Context(), pods[2].Attachment))
	if _, err := n.Attach(t.Context(), one); err == nil {
		t.Fatal("an address was allocated while its link was being deleted, or in quarantine")
	}
	reaped(t, n)
	rested := time.Now().Add(cfg.Quarantine)
	if u := n.Usage().Ranges[0]; u.Quarantined != 1 || u.Used != 4 {
		t.Errorf("usage: %+v", u)
	}
	var got *pod.Attached
	eventually(t, "the address is free again", func() bool {
		var err error
		got, err = n.Attach(t.Context(), one)
		return err == nil
	})
	if early := time.Until(rested); early > time.Second {
		t.Errorf("the address was in quarantine %v less than it should", early)
	}
	if got.Addresses[0] != pods[2].Addresses[0] {
		t.Errorf("got %v, free was %v", got.Addresses, pods[2].Addresses)
	}
}

func TestQuarantineSurvivesRestart(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Subnets = []netip.Prefix{netip.MustParsePrefix("10.88.0.0/30")}
	n := l.open(cfg)
	g := l.attach(n)
	must(t, n.Detach(t.Context(), g.Attachment))
	must(t, n.Close())
	n = l.open(cfg)
	must(t, n.Reconcile(t.Context(), nil))
	if u := n.Usage().Ranges[0]; u.Quarantined != 1 {
		t.Errorf("usage: %+v", u)
	}
	if _, err := n.Attach(t.Context(), l.attachment()); !errors.Is(err, errdefs.ErrResourceExhausted) {
		t.Errorf("attach: %v", err)
	}
}

func TestManyConcurrentAttachmentsLeaveNothing(t *testing.T) {
	for _, mode := range []plan.Mode{plan.PTP, plan.Bridge} {
		t.Run(string(mode), func(t *testing.T) {
			l := newLab(t)
			cfg := l.config()
			cfg.Mode = mode
			cfg.Quarantine = 10 * time.Millisecond
			n := l.open(cfg)
			before, goroutines := l.kernel(cfg.Instance), runtime.NumGoroutine()
			const pods, workers, spaces = 1000, 16, 32
			// Namespaces are reused: the test is about the network.
			free := make(chan string, spaces)
			for i := range spaces {
				free <- l.namespace(fmt.Sprint("space", i))
			}
			var mu sync.Mutex
			used := map[netip.Addr]string{}
			var wg sync.WaitGroup
			work := make(chan int)
			for range workers {
				wg.Go(func() {
					for i := range work {
						ns := <-free
						a := pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Name: fmt.Sprint(i)}, Netns: ns, IfName: "eth0",
							Ports: []pod.PortMapping{{Protocol: pod.UDP, HostPort: uint16(20000 + i), Port: 80}}}
						got, err := n.Attach(t.Context(), a)
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						for _, p := range got.Addresses {
							if other := used[p.Addr()]; other != "" {
								t.Errorf("%v belongs to both %s and %s", p, other, a.Sandbox)
							}
							used[p.Addr()] = a.Sandbox
						}
						mu.Unlock()
						mu.Lock()
						for _, p := range got.Addresses {
							delete(used, p.Addr())
						}
						mu.Unlock()
						if err := n.Detach(t.Context(), a); err != nil {
							t.Error(err)
						}
						// The former link is in the namespace until it is reaped.
						if err := n.reaper.wait(t.Context(), ownerOf(a)); err != nil {
							t.Error(err)
						}
						free <- ns
					}
				})
			}
			for i := range pods {
				work <- i
			}
			close(work)
			wg.Wait()
			reaped(t, n)
			l.pristine(n, before)
			eventually(t, "quarantines end", func() bool {
				n.ledger.expire()
				return n.Usage().Ranges[0].Free == n.Usage().Ranges[0].Size
			})
			eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= goroutines })
		})
	}
}

func TestReconcileKeepsRepairsAndReleases(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		n := l.open(cfg)
		before := l.kernel(cfg.Instance)
		port := pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}
		kept, hurt, dead := l.attach(n), l.attach(n, port), l.attach(n)
		l.serve(kept.Netns, "tcp", "kept", 80)
		l.serve(hurt.Netns, "tcp", "hurt", 80)
		must(t, n.Close())

		// Changes that may happen while huskd isn't running.
		l.run(l.node, "nft", "flush", "set", "inet", cfg.Instance.Table(), "pods"+stacks[0].suffix)
		l.run(l.node, "nft", "add", "element", "inet", cfg.Instance.Table(), "pods4", "{ 10.88.0.99 }")
		l.run(l.node, "nft", "flush", "map", "inet", cfg.Instance.Table(), "ports"+stacks[0].suffix)
		for _, s := range stacks {
			l.ip(hurt.Netns, "-"+s.suffix+" route flush default")
			l.ip(hurt.Netns, "-"+s.suffix+" addr flush dev eth0 scope global")
			if cfg.Mode == plan.PTP {
				l.ip(l.node, fmt.Sprintf("-%s route flush %v", s.suffix, hurt.addr(s.family)))
				l.ip(l.node, fmt.Sprintf("-%s neigh flush dev %s nud permanent", s.suffix, hurt.HostLink))
			}
		}
		l.ip(l.node, "link set "+hurt.HostLink+" down")
		stray := cfg.Instance.HostLinkPrefix() + "012345678"
		l.ip(l.node, "link add "+stray+" type veth peer name other")
		l.ip(l.node, "link set "+stray+" up")
		l.ip(l.node, fmt.Sprintf("route add 10.77.0.1/32 dev %s proto %d", kept.HostLink, plan.Protocol))

		n = l.open(cfg)
		damages, err := n.Damages([]pod.Attachment{kept.Attachment, hurt.Attachment})
		if found := fmt.Sprint(damages); err != nil || !strings.Contains(found, "link "+hurt.HostLink+": down") || !strings.Contains(found, "route") {
			t.Errorf("damages %v, %v", damages, err)
		}
		must(t, n.Reconcile(t.Context(), []pod.Attachment{kept.Attachment, hurt.Attachment}))
		if damages, err := n.Damages([]pod.Attachment{kept.Attachment, hurt.Attachment}); err != nil || len(damages) > 0 {
			t.Errorf("after Reconcile: damages %v, %v", damages, err)
		}
		for _, g := range []guest{kept, hurt} {
			diffs, err := n.dp.Verify(n.plan(n.ledger.records[ownerOf(g.Attachment)]))
			if err != nil || len(diffs) > 0 {
				t.Errorf("after Reconcile: %v, %v", diffs, err)
			}
			again, err := n.Attach(t.Context(), g.Attachment)
			if err != nil || !slices.Equal(again.Addresses, g.Addresses) {
				t.Errorf("attached again: %+v, %v; was %v", again, err, g.Addresses)
			}
		}
		for _, s := range stacks {
			l.reaches("other", l.other, "tcp"+s.suffix, s.node, 8080, "hurt "+s.other)
			l.reaches("hurt", hurt.Netns, "tcp"+s.suffix, kept.addr(s.family).String(), 80, "kept "+hurt.addr(s.family).String())
		}
		got := l.kernel(cfg.Instance)
		for _, gone := range []string{stray, dead.HostLink, "10.77.0.1"} {
			if strings.Contains(got, gone) {
				t.Errorf("%s is still there:\n%s", gone, got)
			}
		}
		if table := l.run(l.node, "nft", "list", "table", "inet", cfg.Instance.Table()); strings.Contains(table, "10.88.0.99") {
			t.Error("the foreign element is still there")
		}
		if u := n.Usage(); u.Attached != 2 || u.Ranges[0].Used != 2 {
			t.Errorf("usage: %+v", u)
		}
		must(t, n.Reconcile(t.Context(), nil))
		l.pristine(n, before)
	})
}

func TestReconcileReportsPodsWithoutLease(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	n := l.open(cfg)
	g, ok := l.attach(n), l.attach(n)
	must(t, n.Close())
	n = l.open(cfg)
	must(t, n.ledger.leases.Delete(ownerOf(g.Attachment).String()))
	must(t, n.Close())
	n = l.open(cfg)
	err := n.Reconcile(t.Context(), []pod.Attachment{g.Attachment, ok.Attachment})
	if err == nil || !strings.Contains(err.Error(), "pod default/pod1 (sandbox "+pod.Short(g.Sandbox)+") has lost its lease") {
		t.Errorf("got %v", err)
	}
	if strings.Contains(l.kernel(cfg.Instance), g.HostLink) {
		t.Error("it has a link, and another pod may get its address")
	}
	if n.Usage().Attached != 1 {
		t.Errorf("usage: %+v", n.Usage())
	}
}

func TestBadRecordsAreSetAside(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	n := l.open(cfg)
	g := l.attach(n)
	must(t, n.Close())
	n = l.open(cfg)
	double := *n.ledger.records[ownerOf(g.Attachment)]
	double.Attachment.Sandbox = pod.NewID()
	must(t, n.ledger.leases.Put(ownerOf(double.Attachment).String(), double))
	must(t, n.ledger.leases.Put("odd", record{}))
	must(t, n.ledger.journal.Put("lease/garbage", []byte("{")))
	must(t, n.ledger.journal.Put("quarantine/garbage", []byte("{")))
	must(t, n.ledger.journal.Put("quarantine/"+g.addr(4).String(), []byte(fmt.Sprintf(`{"addr":%q,"until":"2126-01-01T00:00:00Z"}`, g.addr(4)))))
	must(t, n.Close())
	n = l.open(cfg)
	must(t, n.Reconcile(t.Context(), nil))
	reaped(t, n)
	for key := range n.ledger.journal.All("") {
		if strings.HasPrefix(key, "lease/") || strings.HasPrefix(key, "quarantine/g") {
			t.Errorf("still there: %s", key)
		}
	}
}

func TestRebootVoidsLeases(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	n := l.open(cfg)
	g, other := l.attach(n), l.attach(n)
	must(t, n.Detach(t.Context(), other.Attachment))
	must(t, n.Close())
	for _, ns := range []string{g.Netns, other.Netns} {
		must(t, netns.Remove(ns))
	}
	l.run(l.node, "nft", "flush", "ruleset")
	n, err := open(cfg, "another boot")
	must(t, err)
	defer func() { must(t, n.Close()) }()
	if u := n.Usage(); u.Attached != 0 || u.Ranges[0].Free != u.Ranges[0].Size {
		t.Errorf("usage: %+v", u)
	}
	must(t, n.Detach(t.Context(), g.Attachment))
	must(t, n.Reconcile(t.Context(), nil))
	l.attach(n)
}

func TestRemovedTableIsRecreated(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	n := l.open(cfg)
	g := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	l.serve(g.Netns, "tcp", "g", 80)
	l.run(l.node, "nft", "flush", "ruleset")
	l.attach(n) // needs the table
	l.reaches("other", l.other, "tcp4", node4, 8080, "g "+other4)
	l.run(l.node, "nft", "flush", "ruleset")
	must(t, n.Detach(t.Context(), l.attachment()))
	n.reaper.maintain() // runs periodically
	l.reaches("other", l.other, "tcp6", node6, 8080, "g "+other6)
	l.run(l.node, "nft", "flush", "ruleset")
	must(t, n.Detach(t.Context(), g.Attachment))
	reaped(t, n)
}

func TestTeardownLeavesTheNodeAsItWas(t *testing.T) {
	inEachWorld(t, func(t *testing.T, l *lab, cfg Config, stacks []stack) {
		l.write(l.node, "net/ipv6/conf/up0/accept_ra", "1")
		names := []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/up0/accept_ra", "net/ipv6/conf/up0/forwarding", "net/ipv4/conf/up0/forwarding", established, closeWait}
		sysctls := func() (out []string) {
			for _, name := range names {
				out = append(out, name+" "+l.read(l.node, name))
			}
			return out
		}
		kernel := func() string {
			return l.ip(l.node, "link") + l.ip(l.node, "addr") + l.ip(l.node, "route show table all") + l.ip(l.node, "-6 route show table all") + l.run(l.node, "nft", "list", "ruleset")
		}
		before, was := sysctls(), kernel()
		n := l.open(cfg)
		for _, s := range stacks {
			if name := map[int]string{4: plan.Forward4, 6: plan.Forward6}[s.family]; l.read(l.node, name) != "1" {
				t.Errorf("%s isn't set", name)
			}
			if s.family == 6 && l.read(l.node, "net/ipv6/conf/up0/accept_ra") != "2" {
				t.Error("the node ignores its router's advertisements")
			}
		}
		must(t, n.Close())
		n = l.open(cfg) // the former values are recorded
		g := l.attach(n)
		if err := n.Teardown(); !errors.Is(err, errdefs.ErrFailedPrecondition) {
			t.Errorf("with a pod: %v", err)
		}
		must(t, n.Detach(t.Context(), g.Attachment))
		reaped(t, n)
		// The tables of policies and Services may go later.
		tables := []string{cfg.Instance.PolicyTable(), cfg.Instance.ServiceTable()}
		for _, table := range tables {
			l.run(l.node, "nft", "add", "table", "inet", table)
		}
		must(t, n.Teardown())
		must(t, n.Teardown())
		for _, table := range tables {
			l.run(l.node, "nft", "delete", "table", "inet", table)
		}
		n.reaper.maintain()
		if after := sysctls(); !slices.Equal(after, before) {
			t.Errorf("sysctls %v, before %v", after, before)
		}
		if is := kernel(); is != was {
			t.Errorf("node now:\n%s\nbefore:\n%s", is, was)
		}
	})
}

func TestInstancesSideBySide(t *testing.T) {
	l := newLab(t)
	one := l.config()
	two := l.config()
	two.Instance, two.Dir = "be10", filepath.Join(l.dir, "journal2")
	two.Subnets = []netip.Prefix{netip.MustParsePrefix("10.89.0.0/24"), netip.MustParsePrefix("fd89::/64")}
	a, b := l.open(one), l.open(two)
	port := pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80}
	ga := l.attach(a, port)
	port.HostPort = 8081
	gb := l.attach(b, port)
	l.serve(ga.Netns, "tcp", "a", 80)
	l.serve(gb.Netns, "tcp", "b", 80)
	try := func() {
		t.Helper()
		for _, s := range stacks {
			l.reaches("other", l.other, "tcp"+s.suffix, s.node, 8081, "b "+s.other)
			l.reaches("node", l.node, "tcp"+s.suffix, s.loopback, 8081, "b "+map[int]string{4: "10.89.0.1", 6: "fd89::1"}[s.family])
		}
	}
	try()
	for _, s := range stacks {
		got, err := l.ask(ga.Netns, "tcp"+s.suffix, gb.addr(s.family).String(), 80)
		if err != nil || !strings.HasPrefix(got, "b ") {
			t.Errorf("from pod to pod of another instance: %q, %v", got, err)
		}
	}
	before := l.kernel(two.Instance)
	must(t, a.Reconcile(t.Context(), nil))
	if _, err := Open(t.Context(), Config{Instance: "be11", Dir: filepath.Join(l.dir, "journal3"), Netns: l.node, Subnets: one.Subnets[:1]}); err == nil || !strings.Contains(err.Error(), "pod subnet 10.88.0.0/24 overlaps route 10.88.0.0/24") {
		t.Errorf("a third instance with the subnet of the first: %v", err)
	}
	must(t, a.Teardown())
	if l.read(l.node, "net/ipv4/ip_forward") != "1" {
		t.Error("routing was switched off for the other instance")
	}
	if after := strings.ReplaceAll(l.kernel(two.Instance), "", ""); !strings.Contains(after, gb.HostLink) || len(after) == 0 || strings.Count(after, "\n") > strings.Count(before, "\n") {
		t.Errorf("after:\n%s\nbefore:\n%s", after, before)
	}
	try()
}

func TestModeChangesWithRunningPods(t *testing.T) {
	l := newLab(t)
	cfg := l.config()
	cfg.Mode = plan.Bridge
	n := l.open(cfg)
	old := l.attach(n)
	must(t, n.Close())
	cfg.Mode = plan.PTP
	n = l.open(cfg)
	must(t, n.Reconcile(t.Context(), []pod.Attachment{old.Attachment}))
	fresh := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	l.serve(old.Netns, "tcp", "old", 80)
	l.serve(fresh.Netns, "tcp", "fresh", 80)
	for _, s := range stacks {
		l.reaches("old", old.Netns, "tcp"+s.suffix, s.node, 8080, "fresh "+old.addr(s.family).String())
		got, err := l.ask(l.node, "tcp"+s.suffix, old.addr(s.family).String(), 80)
		if err != nil || !strings.HasPrefix(got, "old ") {
			t.Errorf("from the node to the old pod: %q, %v", got, err)
		}
	}
	must(t, n.Reconcile(t.Context(), []pod.Attachment{fresh.Attachment}))
	if got := l.kernel(cfg.Instance); strings.Contains(got, cfg.Instance.Bridge()) {
		t.Errorf("the bridge is still there:\n%s", got)
	}
}

func TestTakenSubnets(t *testing.T) {
	l := newLab(t)
	l.ip(l.node, "route add 10.99.0.0/16 via "+other4)
	l.ip(l.node, "route add 0.0.0.0/1 via "+other4) // as a VPN does
	l.ip(l.node, "addr add 10.77.1.1/24 dev lo")
	for subnet, want := range map[string]string{
		"10.99.3.0/24":     "pod subnet 10.99.3.0/24 overlaps route 10.99.0.0/16 dev up0: configure another in pod-subnets",
		"10.0.0.0/8":       "overlaps route 10.99.0.0/16 dev up0",
		"10.64.0.0/12":     "overlaps address 10.77.1.1/24 of lo",
		"192.0.2.128/25":   "overlaps address 192.0.2.2/24 of up0",
		"2001:db8::/112":   "overlaps address 2001:db8::2/64 of up0",
		"127.1.0.0/16":     "pod-subnets: 127.1.0.0/16 has addresses that pods can't have",
		"169.254.0.0/16":   "pods can't have",
		"fe80::/64":        "pods can't have",
		"10.66.0.1/24":     "pod-subnets: range 10.66.0.1/24 has host bits: write 10.66.0.0/24",
		"::ffff:a00:0/120": "pod-subnets: range",
	} {
		cfg := l.config()
		cfg.Subnets = []netip.Prefix{netip.MustParsePrefix(subnet)}
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want …%s…", subnet, err, want)
		}
	}
	if got := l.kernel("be0f"); strings.TrimSpace(got) != "" {
		t.Errorf("left: %s", got)
	}
}

func TestInvalidConfigs(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"instance":                 func(c *Config) { c.Instance = "nope" },
		`network.mode "macvlan"`:   func(c *Config) { c.Mode = "macvlan" },
		"network.mtu 100":          func(c *Config) { c.MTU = 100 },
		"network.mtu 70000":        func(c *Config) { c.MTU = 70000 },
		"no range":                 func(c *Config) { c.Subnets = nil },
		"at most one of each":      func(c *Config) { c.Subnets = []netip.Prefix{subnet4, subnet4} },
		"has addresses that pods":  func(c *Config) { c.Subnets, c.Cluster = nil, []netip.Prefix{netip.MustParsePrefix("224.0.0.0/8")} },
		"can't have [10.88.0.0/24": func(c *Config) { c.Cluster = []netip.Prefix{subnet4} },
		"is for a node by itself":  func(c *Config) { c.Subnets, c.Cluster, c.Mode = nil, []netip.Prefix{subnet4}, plan.Bridge },
		"write 10.88.0.0/16":       func(c *Config) { c.Subnets, c.Cluster = nil, []netip.Prefix{netip.MustParsePrefix("10.88.1.0/16")} },
		"fd88::/64 are of the sam": nil,
	} {
		if change == nil {
			continue
		}
		cfg := Config{Instance: "be0f", Dir: t.TempDir(), Subnets: []netip.Prefix{subnet4}}
		change(&cfg)
		if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want …%s…", err, want)
		}
	}
}

func TestNodeWithoutIPv6(t *testing.T) {
	l := newLab(t)
	l.write(l.node, "net/ipv6/conf/all/disable_ipv6", "1")
	n := l.open(l.config())
	g := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	s, err := n.Settings()
	must(t, err)
	if len(g.Addresses) != 1 || len(s.Subnets) != 1 || len(s.Notes) != 1 || s.Notes[0] != "pods get no IPv6 address from fd88::/64: net.ipv6.conf.all.disable_ipv6 is 1" {
		t.Errorf("attached %+v, settings %+v", g.Attached, s)
	}
	l.serve(g.Netns, "tcp", "g", 80)
	l.reaches("other", l.other, "tcp4", node4, 8080, "g "+other4)
	cfg := l.config()
	cfg.Dir, cfg.Subnets = t.TempDir(), []netip.Prefix{subnet6}
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "add an IPv4 subnet") {
		t.Errorf("with IPv6 only: %v", err)
	}
}

func TestStatusReportsDisabledRouting(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	must(t, n.Status())
	l.write(l.node, plan.Forward4, "0")
	if err := n.Status(); err == nil || !strings.Contains(err.Error(), "run sysctl -w net.ipv4.ip_forward=1") {
		t.Errorf("got %v", err)
	}
}

func TestSettings(t *testing.T) {
	l := newLab(t)
	for mode, gateways := range map[plan.Mode]string{plan.PTP: "[169.254.1.1 fe80::1]", plan.Bridge: "[10.88.0.1 fd88::1]"} {
		cfg := l.config()
		cfg.Mode, cfg.Dir = mode, t.TempDir()
		n := l.open(cfg)
		s, err := n.Settings()
		must(t, err)
		if s.Mode != mode || fmt.Sprint(s.Gateways) != gateways || s.MTU != 1500 || s.Uplink != "up0" || s.Table != "husk-be0f" || !s.Masquerade {
			t.Errorf("settings: %+v", s)
		}
		must(t, n.Teardown())
		must(t, n.Close())
	}
}

// TestNodeLosesItsAddress checks that pods keep working when the node, say a laptop, goes offline.
func TestNodeLosesItsAddress(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	g := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	l.serve(g.Netns, "tcp", "g", 80)
	l.reaches("node", l.node, "tcp4", g.addr(4).String(), 80, "g "+node4)
	l.ip(l.node, "addr flush dev up0")
	l.reaches("node", l.node, "tcp4", g.addr(4).String(), 80, "g 10.88.0.1")
	l.reaches("node", l.node, "tcp4", "127.0.0.1", 8080, "g 10.88.0.1")
	l.reaches("node", l.node, "tcp6", "::1", 8080, "g fd88::1")
	must(t, n.Reconcile(t.Context(), []pod.Attachment{g.Attachment}))
	if diffs, err := n.dp.Verify(n.plan(n.ledger.records[ownerOf(g.Attachment)])); err != nil || len(diffs) > 0 {
		t.Errorf("differences: %v, %v", diffs, err)
	}
}

func TestFailedDetachIsRetried(t *testing.T) {
	l := newLab(t)
	n := l.open(l.config())
	before := l.kernel(n.cfg.Instance)
	g := l.attach(n, pod.PortMapping{Protocol: pod.TCP, HostPort: 8080, Port: 80})
	// A link that can't be deleted is in the group that Reap deletes.
	l.ip(l.node, fmt.Sprintf("link set lo group %d", n.base.Tag))
	must(t, n.Detach(t.Context(), g.Attachment))
	eventually(t, "the debt is shown", func() bool {
		d := n.Usage().Debts
		return len(d) == 1 && d[0].Error != "" && d[0].Tries > 0 && d[0].Pod.String() == "default/pod1"
	})
	if u := n.Usage().Ranges[0]; u.Used != 1 {
		t.Errorf("usage: %+v", u)
	}
	l.ip(l.node, "link set lo group 0")
	reaped(t, n)
	l.pristine(n, before)
}

func TestFullDiskStopsAttachButNotDetach(t *testing.T) {
	l := newLab(t)
	dir := filepath.Join(l.dir, "small")
	must(t, os.Mkdir(dir, 0o700))
	l.mount(dir, "size=512k")
	cfg := l.config()
	cfg.Dir = dir
	n := l.open(cfg)
	before := l.kernel(cfg.Instance)
	g := l.attach(n)
	fill, err := os.Create(filepath.Join(dir, "fill"))
	must(t, err)
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	must(t, fill.Close())
	for err = nil; err == nil; {
		err = n.ledger.journal.Put("filling", make([]byte, 1024))
	}
	if _, err := n.Attach(t.Context(), l.attachment()); err == nil || !strings.Contains(err.Error(), "free some space") {
		t.Fatalf("attach on a full disk: %v", err)
	}
	must(t, n.Detach(t.Context(), g.Attachment))
	reaped(t, n)
	l.pristine(n, before)
}
