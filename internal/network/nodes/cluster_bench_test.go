package nodes_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/lease"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/etcd"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
	"github.com/huskd/husk/internal/pod"
)

// benchCluster are nodes, each the network part of one in a namespace of its own, that find each
// other in a real etcd. A router is between them, so that they use VXLAN.
type benchCluster struct {
	b      *testing.B
	url    string // etcd's
	router string // path of the namespace
	nodes  []*member
	plans  chan applied
	// silent leaves out the heartbeat: that of a hundred nodes takes all of a machine with two CPUs.
	silent bool
}

// applied says that a node has applied a plan.
type applied struct {
	node string
	plan backend.Plan
	at   time.Time
}

func newBenchCluster(b *testing.B, size int, silent bool) *benchCluster {
	hosttest.Root(b)
	c := &benchCluster{b: b, url: startEtcd(b), router: namespace(b), plans: make(chan applied, 100_000), silent: silent}
	netnstest.Set(b, c.router, "net/ipv4/conf/all/send_redirects", "0")
	for _, args := range []string{"link add br0 type bridge", "addr add 198.18.255.254/16 dev br0", "link set br0 up"} {
		netnstest.IP(b, c.router, args)
	}
	for i := range size {
		c.nodes = append(c.nodes, c.start(fmt.Sprintf("n%03d", i+1), c.host(i+1)))
	}
	c.wait(func(a applied) bool { return len(a.plan.Peers) == size-1 && usable(a.plan) }, c.names()...)
	return c
}

func usable(p backend.Plan) bool {
	return !slices.ContainsFunc(p.Peers, func(p *backend.Peer) bool { return len(p.Routes) == 0 })
}

func startEtcd(b *testing.B) (url string) {
	hosttest.Program(b, "etcd")
	var urls []string
	var listeners []net.Listener
	for range 2 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		must(b, err)
		urls = append(urls, "http://"+l.Addr().String())
		listeners = append(listeners, l)
	}
	for _, l := range listeners { // not before there are both, as they would have the same port
		must(b, l.Close())
	}
	cmd := exec.Command("etcd", "--data-dir", b.TempDir(), "--listen-client-urls", urls[0], "--advertise-client-urls", urls[0],
		"--listen-peer-urls", urls[1], "--initial-advertise-peer-urls", urls[1], "--initial-cluster", "default="+urls[1], "--log-level", "error")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	// The signal comes when the thread ends that has started etcd, and threads that have been in
	// another network namespace end.
	started, end := make(chan error), make(chan struct{})
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		started <- cmd.Start()
		<-end
	}()
	must(b, <-started)
	b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait(); close(end) })
	return urls[0]
}

// host returns a namespace with the address of a node.
func (c *benchCluster) host(number int) string {
	path := namespace(c.b)
	f, err := os.Open(path)
	must(c.b, err)
	defer f.Close()
	port := fmt.Sprint("p", number)
	netnstest.IP(c.b, c.router, fmt.Sprintf("link add %s master br0 type veth peer name eth0 netns /proc/%d/fd/%d", port, os.Getpid(), f.Fd()))
	netnstest.IP(c.b, c.router, "link set "+port+" up")
	for _, args := range []string{fmt.Sprintf("addr add 198.18.%d.%d/32 dev eth0", number/250, 1+number%250), "link set eth0 up", "route add default via 198.18.255.254 dev eth0 onlink"} {
		netnstest.IP(c.b, path, args)
	}
	return path
}

// member is a running node.
type member struct {
	name, netns string
	parts
	keeper *lease.Keeper
	plans  chan<- applied
	stop   func()
}

// Apply implements nodes.Kernel.
func (m *member) Apply(p backend.Plan) ([]string, error) {
	notes, err := m.Overlay.Apply(p)
	m.plans <- applied{m.name, p, time.Now()}
	return notes, err
}

func (c *benchCluster) keeper(name string) *lease.Keeper {
	store, err := etcd.New(etcd.Config{Endpoints: []string{c.url}})
	must(c.b, err)
	c.b.Cleanup(func() { must(c.b, store.Close()) })
	k, err := lease.New(lease.Config{
		Config: claim.Config{Node: name, Boot: "boot-" + name, Pool: claim.Pool{Subnets: subnets[:1]}, Store: "etcd"},
		Store:  store, Journal: new(leasetest.Journal), Clock: lease.SystemClock{}, Log: slog.New(slog.DiscardHandler),
	})
	must(c.b, err)
	return k
}

func (c *benchCluster) start(name, netns string) *member {
	m := &member{name: name, netns: netns, keeper: c.keeper(name), plans: c.plans}
	m.parts = openParts(c.b, netns, subnets[:1], m.keeper.May)
	var heartbeat nodes.Prober = m.Prober
	if c.silent {
		heartbeat = prober{new(world)}
	}
	controller := nodes.New(nodes.Config{Instance: instance, Name: name, Boot: "boot-" + name, Cluster: subnets[:1], Backend: backend.Auto,
		Ways: nodes.Ways{VXLAN: backend.VXLANOf(name)}, Registry: m.keeper, Kernel: m, Prober: heartbeat, Pods: m.Network, Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	running.Go(func() error { return controller.Run(ctx) })
	m.stop = func() {
		cancel()
		must(c.b, running.Wait())
	}
	c.b.Cleanup(func() { m.stop() })
	return m
}

func (c *benchCluster) names() (out []string) {
	for _, m := range c.nodes {
		out = append(out, m.name)
	}
	return out
}

// wait waits until each of the nodes has applied a plan that is ok, and returns when.
func (c *benchCluster) wait(ok func(applied) bool, of ...string) (at []time.Time) {
	c.b.Helper()
	missing := map[string]bool{}
	for _, name := range of {
		missing[name] = true
	}
	var last applied
	for limit := time.After(20 * time.Second); len(missing) > 0; {
		select {
		case a := <-c.plans:
			last = a
			if missing[a.node] && ok(a) {
				delete(missing, a.node)
				at = append(at, a.at)
			}
		case <-limit:
			c.b.Fatalf("%d nodes haven't applied the plan; the last plan of %s has %d peers", len(missing), last.node, len(last.plan.Peers))
		}
	}
	return at
}

// peerOf returns how a plan reaches a peer.
func peerOf(p backend.Plan, name string) (out backend.Peer) {
	if i := slices.IndexFunc(p.Peers, func(p *backend.Peer) bool { return p.Name == name }); i >= 0 {
		out = *p.Peers[i]
	}
	return out
}

// BenchmarkPropagation changes a node's record in etcd, and waits until all other nodes have
// changed their kernels.
func BenchmarkPropagation(b *testing.B) {
	for _, others := range []int{9, 99} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			c := newBenchCluster(b, others, false)
			mover := c.keeper("mover")
			ctx, cancel := context.WithCancel(context.Background())
			var running errgroup.Group
			running.Go(func() error {
				return mover.Run(ctx, func(peer.View) { mover.Used(nil) })
			})
			defer func() { cancel(); must(b, running.Wait()) }()
			record := peer.Node{Version: peer.Version, VXLAN: backend.VXLANOf("mover"), MTU: 1500}
			var took []time.Duration
			for i := 0; b.Loop(); i++ {
				to := netip.AddrFrom4([4]byte{198, 18, 250, byte(1 + i%250)})
				record.Addresses = []netip.Addr{to}
				began := time.Now()
				mover.Announce(record)
				at := c.wait(func(a applied) bool { p := peerOf(a.plan, "mover"); return p.Endpoint == to && len(p.Routes) > 0 }, c.names()...)
				for _, t := range at {
					if i > 0 { // it claims its block first
						took = append(took, t.Sub(began))
					}
				}
			}
			if len(took) > 0 {
				reportQuantile(b, took, 0.5, "ms-p50")
				reportQuantile(b, took, 0.99, "ms-p99")
			}
		})
	}
}

// BenchmarkJoin starts a node among others, and waits until each of them has had an answer from an
// address of the new node's block.
func BenchmarkJoin(b *testing.B) {
	const others = 100
	c := newBenchCluster(b, others, true)
	var took []time.Duration
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		netns, name := c.host(1000+i), fmt.Sprintf("x%03d", i)
		b.StartTimer()
		began := time.Now()
		m := c.start(name, netns)
		c.wait(func(a applied) bool {
			if a.node == name {
				return len(a.plan.Peers) == others && usable(a.plan)
			}
			return len(peerOf(a.plan, name).Routes) > 0
		}, append(c.names(), name)...)
		c.answers(m)
		took = append(took, time.Since(began))
		b.StopTimer()
		m.stop()
		must(b, m.keeper.Leave(b.Context()))
		m.stop = func() {}
		c.wait(func(a applied) bool { return len(a.plan.Peers) == others-1 }, c.names()...)
		b.StartTimer()
	}
	reportQuantile(b, took, 0.5, "ms-p50")
	reportQuantile(b, took, 1, "ms-max")
}

// answers asks a node from all others, at the first address of its block.
func (c *benchCluster) answers(m *member) {
	at := netip.AddrPortFrom(plan.First(m.Network.Blocks()[0].Block), 7777)
	var server net.PacketConn
	must(c.b, netns.Do(m.netns, func() (err error) {
		server, err = net.ListenPacket("udp4", at.String())
		return err
	}))
	defer server.Close()
	go func() {
		for buf := make([]byte, 10); ; {
			_, from, err := server.ReadFrom(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = server.WriteTo(buf, from)
			}
		}
	}()
	for _, from := range c.nodes {
		must(c.b, netns.Do(from.netns, func() error {
			client, err := net.Dial("udp4", at.String())
			if err != nil {
				return err
			}
			defer client.Close()
			for range 50 {
				_, _ = client.Write([]byte("?"))
				_ = client.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
				if _, err = client.Read(make([]byte, 10)); err == nil {
					return nil
				}
			}
			return fmt.Errorf("%s doesn't reach %v: %w", from.name, at, err)
		}))
	}
}

// BenchmarkAttachWithLease attaches pods to a node that has its block from etcd and, in turns, to
// one by itself.
func BenchmarkAttachWithLease(b *testing.B) {
	c := newBenchCluster(b, 2, false)
	netns := namespace(b)
	netnstest.IP(b, netns, "link add eth0 type veth peer name gw0")
	netnstest.IP(b, netns, "link set eth0 up")
	alone, err := network.Open(b.Context(), network.Config{Instance: instance, Dir: filepath.Join(b.TempDir(), "journal"), Netns: netns,
		Subnets: []netip.Prefix{prefix("10.200.0.0/24")}, Masquerade: true, MTU: 1450, Quarantine: -1, Log: slog.New(slog.DiscardHandler)})
	must(b, err)
	b.Cleanup(func() { must(b, alone.Close()) })
	took := map[string][]time.Duration{}
	for i := 0; b.Loop(); i++ {
		for name, n := range map[string]*network.Network{"lease": c.nodes[0].Network, "alone": alone} {
			b.StopTimer()
			a := pod.Attachment{Sandbox: pod.NewID(), Pod: pod.Ref{Namespace: "default", Name: "p", UID: fmt.Sprint(i)}, Netns: filepath.Join(b.TempDir(), "net"), IfName: "eth0"}
			netnstest.Make(b, a.Netns)
			b.StartTimer()
			began := time.Now()
			_, err := n.Attach(b.Context(), a)
			must(b, err)
			took[name] = append(took[name], time.Since(began))
			must(b, n.Detach(b.Context(), a))
		}
	}
	for name, d := range took {
		reportQuantile(b, d, 0.5, "ms-p50-"+name)
	}
	b.ReportMetric(float64(took["lease"][len(took["lease"])/2])/float64(took["alone"][len(took["alone"])/2]), "ratio")
}
