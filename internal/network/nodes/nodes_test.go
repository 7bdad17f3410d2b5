package nodes_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/plan"
)

// world is the registry, the kernel and the pods of a node in memory. The real ones are tested
// together in test/nodes.
type world struct {
	mu        sync.Mutex
	update    func(peer.View)
	changed   func()
	announced []peer.Node
	underlay  []backend.Underlay
	plans     []backend.Plan
	failing   error
	blocks    []netip.Prefix
	nodes     []plan.Nodes
	usage     []peer.Usage // of the blocks that the node has from before
	mtu       int
	probed    []heartbeat.Peer
	health    map[string]heartbeat.Health
	sessions  map[backend.TunnelID]backend.Session
	own       func(link string) peer.Key // key of this node's
	events    []nodes.Event
	unsummed  []string
	switched  int // how often TxChecksum was called
	log       bytes.Buffer
}

func (w *world) Run(ctx context.Context, update func(peer.View)) error {
	w.set(func() { w.update = update })
	<-ctx.Done()
	return nil
}

func (w *world) Announce(n peer.Node) { w.set(func() { w.announced = append(w.announced, n) }) }
func (*world) Used([]peer.Usage)      {}
func (w *world) Blocks() []peer.Usage { return w.usage }
func (w *world) SetMTU(mtu int)       { w.set(func() { w.mtu = mtu }) }
func (w *world) set(change func())    { w.mu.Lock(); defer w.mu.Unlock(); change() }
func (w *world) see(view peer.View)   { w.update(view); synctest.Wait() }
func (w *world) lastPlan() (p backend.Plan) {
	w.set(func() { p = w.plans[len(w.plans)-1] })
	return p
}

func (w *world) lastAnnounced() (n peer.Node) {
	w.set(func() { n = w.announced[len(w.announced)-1] })
	return n
}

func prefix(s string) netip.Prefix     { return netip.MustParsePrefix(s) }
func blocks(s string) []netip.Prefix   { return []netip.Prefix{prefix(s)} }
func address(s string) netip.Addr      { return netip.MustParseAddr(s) }
func (w *world) fail(err error)        { w.set(func() { w.failing = err }) }
func (w *world) after(d time.Duration) { time.Sleep(d); synctest.Wait() }
func eth0(address string) backend.Underlay {
	return backend.Underlay{Link: "eth0", Address: prefix(address), MTU: 1500}
}

func (w *world) May(block netip.Prefix) error {
	if slices.ContainsFunc(w.usage, func(u peer.Usage) bool { return u.Block == block }) {
		return nil
	}
	return errors.New("the registry is away")
}

func (w *world) SetBlocks(_ context.Context, blocks []netip.Prefix) error {
	w.set(func() { w.blocks = blocks })
	return nil
}

func (w *world) SetNodes(n plan.Nodes) error {
	w.set(func() { w.nodes = append(w.nodes, n) })
	return nil
}

func (w *world) Underlay() ([]backend.Underlay, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.underlay, nil
}

func (w *world) Apply(p backend.Plan) ([]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failing != nil {
		return nil, w.failing
	}
	w.plans = append(w.plans, p)
	return nil, nil
}

func (w *world) TxChecksum(link string, on bool) error {
	w.set(func() {
		w.unsummed = slices.DeleteFunc(w.unsummed, func(l string) bool { return l == link })
		if !on {
			w.unsummed = append(w.unsummed, link)
		}
		w.switched++
	})
	return nil
}

func (w *world) Unsummed() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.unsummed)
}

func (w *world) Sessions() (map[backend.TunnelID]backend.Session, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.sessions), nil
}

func (w *world) Watch(ctx context.Context, changed func()) error {
	w.set(func() { w.changed = changed })
	<-ctx.Done()
	return nil
}

// prober is the part of the world whose Run differs from the registry's.
type prober struct{ *world }

func (p prober) Run(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

func (p prober) Watch(_ netip.Addr, peers []heartbeat.Peer) { p.set(func() { p.probed = peers }) }

func (p prober) Health() map[string]heartbeat.Health {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.health
}

func (p prober) Impaired() map[string]heartbeat.Health { return p.Health() }

// start runs a controller of node a at 192.0.2.1 in a bubble of synctest.
func start(t *testing.T, check func(w *world, c *nodes.Controller)) {
	startWith(t, func(*nodes.Config) {}, func(w *world, c *nodes.Controller, _ nodes.Config) { check(w, c) })
}

// startWith is start with another configuration.
func startWith(t *testing.T, edit func(*nodes.Config), check func(*world, *nodes.Controller, nodes.Config)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{underlay: []backend.Underlay{eth0("192.0.2.1/24")}}
		cfg := nodes.Config{
			Instance: "0b5e", Name: "a", Boot: "1", Cluster: []netip.Prefix{prefix("10.201.0.0/16")}, Backend: backend.Auto, Ways: nodes.Ways{VXLAN: backend.VXLANOf("a")},
			Registry: w, Kernel: w, Prober: prober{w}, Pods: w,
			Event: func(e nodes.Event) { w.set(func() { w.events = append(w.events, e) }) }, Log: slog.New(slog.NewTextHandler(&w.log, nil)),
		}
		edit(&cfg)
		c := nodes.New(cfg)
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- c.Run(ctx) }()
		synctest.Wait()
		check(w, c, cfg)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func record(name, at, block string) *peer.Node {
	return &peer.Node{Version: 1, Name: name, Addresses: []netip.Addr{address(at)}, Blocks: []netip.Prefix{prefix(block)}, VXLAN: backend.VXLANOf(name)}
}

func TestNothingBeforeTheFirstView(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		w.after(2 * time.Minute)
		if st := c.Status(); len(w.plans) > 0 || w.blocks != nil || st.Known || st.Error != "the registry is away" {
			t.Errorf("without a view, got plans %v, blocks %v and status %+v", w.plans, w.blocks, st)
		}
		if len(w.announced) != 1 || w.announced[0].Addresses[0] != address("192.0.2.1") || w.announced[0].MTU != 1500 {
			t.Errorf("announced %v, want the address and MTU once", w.announced)
		}
	})
}

// TestNodesOfTheTable: pods' table is told once of each change by which addresses nodes know each
// other, and by which links their pods' packets come.
func TestNodesOfTheTable(t *testing.T) {
	start(t, func(w *world, _ *nodes.Controller) {
		told := func() (out string) {
			w.set(func() {
				for _, n := range w.nodes {
					out += fmt.Sprint(n.Self, n.Others, n.Links)
				}
				w.nodes = nil
			})
			return out
		}
		if got := told(); got != "" {
			t.Errorf("before the first view: %s", got)
		}
		view := peer.View{Blocks: blocks("10.201.1.0/24"), Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24")}}
		w.see(view)
		w.after(time.Minute)
		if got, want := told(), "[10.201.1.1 192.0.2.1] [10.201.2.1 192.0.2.2] []"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		u := eth0("192.0.2.1/24")
		u.Links = "eth0 eth1"
		w.set(func() { w.underlay = []backend.Underlay{u} })
		w.after(2 * time.Minute)
		if got, want := told(), "[10.201.1.1 192.0.2.1] [10.201.2.1 192.0.2.2] [eth0 eth1]"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		// A node may still send from the address that it had, and others to that which the registry
		// tells of this one.
		view.Peers, view.Addresses = []*peer.Node{record("b", "192.0.2.3", "10.201.2.0/24")}, []netip.Addr{netip.MustParseAddr("192.0.2.9")}
		w.see(view)
		w.after(time.Second)
		if got, want := told(), "[10.201.1.1 192.0.2.1 192.0.2.9] [10.201.2.1 192.0.2.3 192.0.2.2] [eth0 eth1]"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		w.after(12 * time.Minute)
		if got, want := told(), "[10.201.1.1 192.0.2.1 192.0.2.9] [10.201.2.1 192.0.2.3] [eth0 eth1]"; got != want {
			t.Errorf("told %s, want %s", got, want)
		}
		view.Peers, view.Addresses = nil, nil
		w.see(view)
		w.after(12 * time.Minute)
		if got, want := told(), "[10.201.1.1 192.0.2.1] [] [eth0 eth1]"; !strings.HasSuffix(got, want) {
			t.Errorf("told %s, want %s at the end", got, want)
		}
	})
}

// TestRegistryIsAway: while the registry is away after a restart of huskd, a node whose pods get
// addresses isn't at fault.
func TestRegistryIsAway(t *testing.T) {
	blocks := func(cfg *nodes.Config) {
		w, _ := cfg.Pods.(*world)
		w.usage = []peer.Usage{{Block: prefix("10.201.1.0/24"), Size: 256}}
	}
	startWith(t, blocks, func(w *world, c *nodes.Controller, _ nodes.Config) {
		w.after(2 * time.Minute)
		if st := c.Status(); st.Known || st.Error != "" || len(st.Notes) != 1 || !strings.Contains(st.Notes[0], "the registry is away") {
			t.Errorf("without a view, got status %+v", st)
		}
	})
}

// TestBlockTakenAway: of pods with addresses of a block that the registry has taken away, a note
// says which node has it now, unless the registry says so itself, and whoever makes pods anew is
// told.
func TestBlockTakenAway(t *testing.T) {
	for _, c := range []struct{ own, lost, part, empty string }{
		{"10.201.1.0/24", "10.201.7.0/24", "10.201.7.128/25", "10.201.8.0/24"},
		{"fd68:7573:6b01:1::/64", "fd68:7573:6b01:7::/64", "fd68:7573:6b01:7::/80", "fd68:7573:6b01:8::/64"},
	} {
		t.Run(c.lost, func(t *testing.T) { testBlockTakenAway(t, c.own, c.lost, c.part, c.empty) })
	}
}

func testBlockTakenAway(t *testing.T, ownBlock, taken, part, empty string) {
	note := "pods of this node have 3 addresses of block " + taken + ", which "
	var told []peer.Lost
	former := func(cfg *nodes.Config) {
		w, _ := cfg.Pods.(*world)
		w.usage = []peer.Usage{{Block: prefix(ownBlock), Size: 254, Used: 1}, {Block: prefix(taken), Size: 254, Used: 3}, {Block: prefix(empty), Size: 254}}
		cfg.Cluster = append(cfg.Cluster, prefix("fd68:7573:6b01::/48"))
		cfg.Lost = func(lost []peer.Lost) { w.set(func() { told = lost }) }
	}
	startWith(t, former, func(w *world, c *nodes.Controller, _ nodes.Config) {
		own := blocks(ownBlock)
		for _, step := range []struct {
			view peer.View
			want string
			lost []peer.Lost
		}{
			{peer.View{Blocks: append(blocks(taken), own...)}, "", nil},
			{peer.View{Blocks: own}, note + "isn't this node's any more", []peer.Lost{{Block: prefix(taken)}}},
			{peer.View{Blocks: own, Peers: []*peer.Node{record("b", "192.0.2.2", taken)}}, note + "is node b's now", []peer.Lost{{Block: prefix(taken), Node: "b"}}},
			{peer.View{Blocks: own, Peers: []*peer.Node{record("b", "192.0.2.2", part)}}, note + "is node b's now", []peer.Lost{{Block: prefix(part), Node: "b"}}},
			{peer.View{Blocks: own, Notes: []string{"block " + taken + " belongs to node b now"}}, "block " + taken + " belongs to node b now", []peer.Lost{{Block: prefix(taken)}}},
			{peer.View{Blocks: append(own, prefix(taken))}, "", nil},
		} {
			w.see(step.view)
			w.after(time.Second)
			if got := strings.Join(c.Status().Notes, "\n"); !strings.HasPrefix(got, step.want) || step.want == "" && got != "" || strings.Contains(got, "\n") {
				t.Errorf("with blocks %v and peers %v, the notes are %q, want %q", step.view.Blocks, step.view.Peers, got, step.want)
			}
			w.set(func() {
				if !slices.Equal(told, step.lost) {
					t.Errorf("with blocks %v and peers %v, %v are lost, want %v", step.view.Blocks, step.view.Peers, told, step.lost)
				}
			})
		}
	})
}

func TestFollowsTheView(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		w.see(peer.View{Blocks: []netip.Prefix{prefix("10.201.1.0/24")}, Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24"), record("c", "198.51.100.3", "10.201.3.0/24")}})
		w.after(100 * time.Millisecond)
		began := time.Now()
		if diff := cmp.Diff([]netip.Prefix{prefix("10.201.1.0/24")}, w.blocks, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Error(diff)
		}
		if w.mtu != 1450 {
			t.Errorf("MTU of pods is %d, want 1450", w.mtu)
		}
		show := func() (out string) {
			for _, p := range c.Status().Peers {
				out += fmt.Sprintf("%s %s %v; ", p.Name, p.Way, began.Sub(p.Since) < time.Minute)
			}
			return out
		}
		if got := show(); got != "b direct true; c vxlan true; " {
			t.Errorf("got %s", got)
		}
		w.after(5 * time.Minute)
		began = time.Now()
		moved := record("c", "192.0.2.3", "10.201.3.0/24")
		w.see(peer.View{Blocks: w.blocks, Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24"), moved}})
		w.after(100 * time.Millisecond)
		if got := show(); got != "b direct false; c direct true; " {
			t.Errorf("after c has moved, got %s", got)
		}
		w.see(peer.View{Blocks: w.blocks})
		w.after(100 * time.Millisecond)
		if left := w.lastPlan().Peers; len(left) > 0 {
			t.Errorf("after all have left, the plan has %v", left)
		}
	})
}

func TestFollowsTheUnderlay(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		w.see(peer.View{Blocks: []netip.Prefix{prefix("10.201.1.0/24")}, Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24")}})
		w.after(100 * time.Millisecond)
		w.set(func() { w.underlay = []backend.Underlay{eth0("203.0.113.1/24")} })
		w.changed()
		w.after(100 * time.Millisecond)
		if n := len(w.announced); n != 2 || w.announced[1].Addresses[0] != address("203.0.113.1") {
			t.Errorf("announced %v, want the new address second", w.announced)
		}
		if p := w.lastPlan().Peers[0]; p.Way != backend.VXLAN {
			t.Errorf("b is reached by %q, want vxlan", p.Way)
		}
		w.set(func() { w.underlay = nil })
		w.changed()
		w.after(100 * time.Millisecond)
		if e := c.Status().Error; !strings.Contains(e, "set node-ip") {
			t.Errorf("without an underlay the error is %q", e)
		}
	})
}

func TestRetries(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		w.fail(errors.New("no buffer space"))
		w.see(peer.View{Notes: []string{"line 7 is odd"}})
		w.after(10 * time.Second)
		if e := c.Status().Error; e != "no buffer space" {
			t.Errorf("the error is %q", e)
		}
		w.fail(nil)
		w.after(2 * time.Second)
		if st := c.Status(); st.Error != "" || !st.Known || len(st.Notes) != 1 {
			t.Errorf("after the retry the status is %+v", st)
		}
		for _, line := range []string{"no buffer space", "line 7 is odd"} {
			if n := strings.Count(w.log.String(), line); n != 1 {
				t.Errorf("%q was logged %d times:\n%s", line, n, &w.log)
			}
		}
	})
}

func TestFollowsTheHeartbeat(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		w.see(peer.View{Blocks: []netip.Prefix{prefix("10.201.1.0/24")}, Peers: []*peer.Node{record("b", "192.0.2.2", "10.201.2.0/24")}})
		w.after(100 * time.Millisecond)
		if len(w.probed) != 1 || w.probed[0].To != address("10.201.2.1") || w.probed[0].Way != backend.Direct || w.probed[0].MTU != 1450 || len(w.probed[0].Paths) != 2 {
			t.Errorf("probes %+v", w.probed)
		}
		w.set(func() {
			w.health = map[string]heartbeat.Health{"b": {Answered: true, Broken: []backend.Way{backend.Direct}, Limit: 1300}}
		})
		w.changed()
		w.after(100 * time.Millisecond)
		if p := w.lastPlan().Peers[0]; p.Way != backend.VXLAN || p.MTU != 1300 {
			t.Errorf("once direct is broken, got %+v", p)
		}
		if st := c.Status().Peers[0]; st.Health.Limit != 1300 || st.Why == "" {
			t.Errorf("status %+v", st)
		}
	})
}

// TestCuresChecksums switches checksum offloading off while the heartbeat suspects it, and on again
// unless that has helped.
func TestCuresChecksums(t *testing.T) {
	start(t, func(w *world, c *nodes.Controller) {
		w.see(peer.View{Blocks: []netip.Prefix{prefix("10.201.1.0/24")}, Peers: []*peer.Node{record("b", "203.0.113.2", "10.201.2.0/24"), record("c", "203.0.113.3", "10.201.3.0/24")}})
		w.after(100 * time.Millisecond)
		finds := func(checksums heartbeat.Checksums, want ...string) {
			t.Helper()
			w.set(func() {
				w.health = map[string]heartbeat.Health{"b": {Answered: true, Checksums: checksums}, "c": {Answered: true}}
			})
			w.changed()
			w.after(100 * time.Millisecond)
			if got := c.Status().Unsummed; !slices.Equal(got, want) {
				t.Errorf("with checksums %q, offloading is off for %v, want %v", checksums, got, want)
			}
		}
		const link = "hn0b5evx"
		finds(heartbeat.ChecksumsSuspect, link)
		finds(heartbeat.ChecksumsFine)
		finds(heartbeat.ChecksumsSuspect, link)
		finds(heartbeat.ChecksumsCured, link)
		if n := strings.Count(w.log.String(), "checksum offloading of "+link+" is off"); n == 0 || len(c.Status().Notes) != 1 {
			t.Errorf("it was logged %d times, the notes are %q", n, c.Status().Notes)
		}
		finds(heartbeat.ChecksumsFine, link) // b has left, but the card is the same
		w.after(3 * time.Minute)
		if w.switched != 3 {
			t.Errorf("offloading was switched %d times, want 3", w.switched)
		}
	})
}

// TestCopiesOfAMachine sees a node whose disk is a copy of this node's, one that is on the same
// machine, and one that doesn't say.
func TestCopiesOfAMachine(t *testing.T) {
	edit := func(cfg *nodes.Config) { cfg.Machine = "abc" }
	startWith(t, edit, func(w *world, c *nodes.Controller, _ nodes.Config) {
		view := peer.View{Blocks: blocks("10.201.1.0/24")}
		for i, machine := range []string{"abc 2", "abc 1", " 3", "def 4"} {
			r := record(fmt.Sprint("n", i), fmt.Sprint("192.0.2.", i+2), fmt.Sprintf("10.201.%d.0/24", i+2))
			r.Machine, r.Boot, _ = strings.Cut(machine, " ")
			view.Peers = append(view.Peers, r)
		}
		w.see(view)
		w.after(time.Second)
		if got := c.Status().Notes; len(got) != 1 || !strings.HasPrefix(got[0], "node n0 has the machine ID of node a") || len(c.Status().Peers) != 4 {
			t.Errorf("notes %q", got)
		}
		if got := w.announced[0].Machine; got != "abc" {
			t.Errorf("announced %q", got)
		}
	})
}
