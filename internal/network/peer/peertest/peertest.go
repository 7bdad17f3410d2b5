// Package peertest is the test suite that every implementation of peer.Registry passes.
package peertest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/huskd/husk/internal/network/peer"
)

// Subnets are the pod subnets of the clusters that a test opens, one of each family.
var Subnets = []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16"), netip.MustParsePrefix("fd68:7573:6b00::/48")}

// Cluster is a store that only one test uses. All of its nodes have the pod subnets Subnets.
type Cluster interface {
	// Join does what makes a node part of the cluster, as far as the registry doesn't do it: a file
	// gets an entry, an API server a Node. It returns the node's registry, whose Run isn't called
	// yet. If the node is there already, it is as after a restart of its daemon.
	Join(t *testing.T, name string, address netip.Addr) peer.Registry
	// Leave removes a node, which has stopped for good. Its registry's Run has returned.
	Leave(t *testing.T, name string)
}

// Options say what a kind of registry can't do.
type Options struct {
	// Silent registries don't tell other nodes what Announce says.
	Silent bool
}

// Run tests the registries of the clusters that open returns.
func Run(t *testing.T, open func(t *testing.T) Cluster, options Options) {
	for name, test := range map[string]func(*suite){
		"Blocks":           testBlocks,
		"FirstViewIsWhole": testFirstViewIsWhole,
		"Changes":          testChanges,
		"Order":            testOrder,
		"Restart":          testRestart,
		"RunEnds":          testRunEnds,
		"CallsReturn":      testCallsReturn,
	} {
		t.Run(name, func(t *testing.T) { test(&suite{T: t, cluster: open(t)}) })
	}
	if !options.Silent {
		t.Run("Announce", func(t *testing.T) { testAnnounce(&suite{T: t, cluster: open(t)}) })
	}
}

// patience is how long a test waits for what should happen at once.
const patience = 30 * time.Second

type suite struct {
	*testing.T
	cluster Cluster
}

// member is a node whose registry is running.
type member struct {
	peer.Registry
	t      *suite
	name   string
	cancel context.CancelFunc
	ended  chan error

	mu      sync.Mutex
	views   []peer.View
	was     []string // views as they were when they came
	changed chan struct{}
}

// addressOf returns the address of the nth node.
func addressOf(n int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}) }

// join runs the registry of the nth node.
func (s *suite) join(name string, n int) *member {
	s.Helper()
	m := &member{Registry: s.cluster.Join(s.T, name, addressOf(n)), t: s, name: name, ended: make(chan error, 1), changed: make(chan struct{}, 1)}
	m.Announce(peer.Node{Boot: "boot-" + name, Addresses: []netip.Addr{addressOf(n)}, MTU: 1500})
	ctx, cancel := context.WithCancel(context.Background())
	m.cancel = cancel
	go func() { m.ended <- m.Run(ctx, m.update) }()
	s.Cleanup(func() { m.stop() })
	return m
}

func (m *member) update(v peer.View) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.views, m.was = append(m.views, v), append(m.was, text(v))
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

func text(v peer.View) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// stop ends Run, and checks that no view was changed after it was handed over.
func (m *member) stop() {
	m.t.Helper()
	if m.cancel == nil {
		return
	}
	m.cancel()
	m.cancel = nil
	select {
	case err := <-m.ended:
		if err != nil {
			m.t.Errorf("node %s: Run returned %v when its context ended, want nil", m.name, err)
		}
	case <-time.After(patience):
		m.t.Fatalf("node %s: Run goes on after its context ended", m.name)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, v := range m.views {
		if now := text(v); now != m.was[i] {
			m.t.Errorf("node %s: the registry changed a view after the update: %s became %s", m.name, m.was[i], now)
		}
	}
}

// wait waits for a view that ok accepts, and returns it.
func (m *member) wait(what string, ok func(peer.View) bool) peer.View {
	m.t.Helper()
	deadline := time.After(patience)
	for {
		m.mu.Lock()
		n := len(m.views)
		var last peer.View
		if n > 0 {
			last = m.views[n-1]
		}
		m.mu.Unlock()
		if n > 0 && ok(last) {
			return last
		}
		select {
		case <-m.changed:
		case err := <-m.ended:
			m.cancel = nil
			m.t.Fatalf("node %s: Run returned %v while waiting for %s", m.name, err, what)
		case <-deadline:
			m.t.Fatalf("node %s: no view with %s; the last of %d is %s", m.name, what, n, text(last))
		}
	}
}

// waitBlocks waits until the node has a block of each family, and may use them.
func (m *member) waitBlocks() []netip.Prefix {
	m.t.Helper()
	v := m.wait("a block of each family", func(v peer.View) bool {
		return slices.ContainsFunc(v.Blocks, is4) && !slices.ContainsFunc(v.Blocks, func(b netip.Prefix) bool { return m.May(b) != nil }) &&
			slices.ContainsFunc(v.Blocks, func(b netip.Prefix) bool { return !is4(b) })
	})
	return v.Blocks
}

func is4(b netip.Prefix) bool { return b.Addr().Is4() }

// waitPeer waits until the node has a record of a peer that ok accepts.
func (m *member) waitPeer(name, what string, ok func(peer.Node) bool) peer.View {
	m.t.Helper()
	return m.wait("peer "+name+" with "+what, func(v peer.View) bool {
		i := slices.IndexFunc(v.Peers, func(p *peer.Node) bool { return p.Name == name })
		return i >= 0 && ok(*v.Peers[i])
	})
}

func (m *member) waitBlocksOf(name string, blocks []netip.Prefix) {
	m.t.Helper()
	m.waitPeer(name, fmt.Sprintf("blocks %v", blocks), func(p peer.Node) bool { return equal(p.Blocks, blocks) })
}

// equal ignores the order.
func equal(a, b []netip.Prefix) bool {
	return cmp.Equal(a, b, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Prefix{}), cmpopts.SortSlices(netip.Prefix.Compare))
}

func names(v peer.View) (out []string) {
	for _, p := range v.Peers {
		out = append(out, p.Name)
	}
	return out
}

// testBlocks: a node has blocks inside the pod subnets, which are its own alone.
func testBlocks(s *suite) {
	a, b := s.join("a", 1), s.join("b", 2)
	blocks := map[string][]netip.Prefix{"a": a.waitBlocks(), "b": b.waitBlocks()}
	for name, own := range blocks {
		for _, block := range own {
			if !slices.ContainsFunc(Subnets, func(subnet netip.Prefix) bool {
				return subnet.Contains(block.Addr()) && subnet.Bits() <= block.Bits()
			}) {
				s.Errorf("node %s has block %v, which is outside %v", name, block, Subnets)
			}
		}
	}
	for _, block := range blocks["a"] {
		if slices.ContainsFunc(blocks["b"], block.Overlaps) {
			s.Errorf("block %v of node a overlaps one of node b: %v", block, blocks["b"])
		}
		if b.May(block) == nil {
			s.Errorf("node b may use block %v of node a", block)
		}
	}
	for _, block := range []netip.Prefix{{}, netip.MustParsePrefix("192.0.2.0/24"), Subnets[0], Subnets[1]} {
		if a.May(block) == nil {
			s.Errorf("node a may use %v", block)
		}
	}
}

// testFirstViewIsWhole: a node deletes what isn't in its first view.
func testFirstViewIsWhole(s *suite) {
	a, b := s.join("a", 1), s.join("b", 2)
	ofA, ofB := a.waitBlocks(), b.waitBlocks()
	a.waitBlocksOf("b", ofB)
	b.waitBlocksOf("a", ofA)
	c := s.join("c", 3)
	c.wait("anything", func(peer.View) bool { return true })
	c.mu.Lock()
	first := c.views[0]
	c.mu.Unlock()
	if diff := cmp.Diff([]string{"a", "b"}, names(first)); diff != "" {
		s.Fatalf("peers of the first view (-want +got):\n%s", diff)
	}
	if !equal(first.Peers[0].Blocks, ofA) || !equal(first.Peers[1].Blocks, ofB) {
		s.Errorf("first view has blocks %v and %v, want %v and %v", first.Peers[0].Blocks, first.Peers[1].Blocks, ofA, ofB)
	}
}

// testChanges: nodes come and leave.
func testChanges(s *suite) {
	a := s.join("a", 1)
	a.waitBlocks()
	a.wait("no peers", func(v peer.View) bool { return len(v.Peers) == 0 })
	b := s.join("b", 2)
	a.waitBlocksOf("b", b.waitBlocks())
	v := a.waitPeer("b", "its address", func(p peer.Node) bool { return p.Address(false) == addressOf(2) })
	if err := v.Peers[0].Check(); err != nil {
		s.Error(err)
	}
	b.stop()
	s.cluster.Leave(s.T, "b")
	a.wait("no peers", func(v peer.View) bool { return len(v.Peers) == 0 })
}

// testOrder: peers are in the order of their names, without the node itself.
func testOrder(s *suite) {
	all := []*member{s.join("c", 1), s.join("a", 2), s.join("d", 3), s.join("b", 4)}
	for _, m := range all {
		want := slices.DeleteFunc([]string{"a", "b", "c", "d"}, func(name string) bool { return name == m.name })
		m.wait(fmt.Sprintf("peers %v", want), func(v peer.View) bool { return slices.Equal(names(v), want) })
	}
}

// testAnnounce: what a node announces reaches the others, as often as it changes.
func testAnnounce(s *suite) {
	a, b := s.join("a", 1), s.join("b", 2)
	blocks := b.waitBlocks()
	record := peer.Node{
		Version: 7, Name: "x", Blocks: []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}, // the registry's own matter
		Boot: "boot-b", Addresses: []netip.Addr{addressOf(2), netip.MustParseAddr("2001:db8::2")}, MTU: 1450,
		VXLAN: &peer.VXLAN{VNI: 1, Port: 8472, MAC: peer.MAC{2, 0, 0, 0, 0, 2}}, IPIP: true, Encrypted: true, AS: 64512,
		WireGuard: []peer.WireGuard{{Key: peer.Key{1}, Port: 51820}}, Rotation: &peer.Rotation{Port: 51822, Key: peer.Key{2}},
	}
	want := record
	want.Version, want.Name = peer.Version, "b"
	see := func() {
		s.Helper()
		a.waitPeer("b", text(peer.View{Peers: []*peer.Node{&want}}), func(p peer.Node) bool {
			want.Blocks = p.Blocks
			return p.Equal(want) && equal(p.Blocks, blocks)
		})
	}
	b.Announce(record)
	see()
	for _, mtu := range []int{1400, 1300, 1500} { // only the last one must be seen
		record.MTU, want.MTU = mtu, mtu
		b.Announce(record)
	}
	see()
	record.VXLAN, want.VXLAN = nil, nil
	b.Announce(record)
	see()
}

// testRestart: a node has the same blocks after its daemon has restarted, and the others don't see
// it leave.
func testRestart(s *suite) {
	a, b := s.join("a", 1), s.join("b", 2)
	blocks := b.waitBlocks()
	a.waitBlocksOf("b", blocks)
	b.stop()
	a.mu.Lock()
	before := len(a.views)
	a.mu.Unlock()
	b = s.join("b", 2)
	b.wait(fmt.Sprintf("blocks %v", blocks), func(v peer.View) bool { return equal(v.Blocks, blocks) })
	c := s.join("c", 3)
	a.waitBlocksOf("c", c.waitBlocks())
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, v := range a.views[before:] {
		if !slices.Contains(names(v), "b") {
			s.Errorf("node a saw node b leave when it restarted: %s", text(v))
		}
	}
}

// testRunEnds: after Run, nothing is updated.
func testRunEnds(s *suite) {
	a := s.join("a", 1)
	a.waitBlocks()
	a.stop() // checks what Run returns
	a.mu.Lock()
	before := len(a.views)
	a.mu.Unlock()
	b := s.join("b", 2)
	b.waitBlocks()
	a.mu.Lock()
	defer a.mu.Unlock()
	if after := len(a.views); after != before {
		s.Errorf("Run updated %d times after it returned", after-before)
	}

	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	ended := make(chan error, 1)
	registry := s.cluster.Join(s.T, "c", addressOf(3))
	go func() { ended <- registry.Run(ctx, func(peer.View) {}) }()
	select {
	case err := <-ended:
		if err != nil {
			s.Errorf("Run with a context that has ended: %v, want nil", err)
		}
	case <-time.After(patience):
		s.Error("Run with a context that has ended goes on")
	}
}

// testCallsReturn: all but Run return at once, also while Run isn't called.
func testCallsReturn(s *suite) {
	registry := s.cluster.Join(s.T, "a", addressOf(1))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 3 {
			registry.Announce(peer.Node{Addresses: []netip.Addr{addressOf(1)}})
			registry.Used(nil)
			registry.Used([]peer.Usage{{Block: netip.MustParsePrefix("192.0.2.0/24"), Size: 254, Used: 254}, {}})
			_ = registry.May(Subnets[0])
		}
	}()
	select {
	case <-done:
	case <-time.After(patience):
		s.Fatal("Announce, Used or May waits for Run")
	}
	a := s.join("a", 1)
	blocks := a.waitBlocks()
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				a.Used([]peer.Usage{{Block: blocks[0], Size: 254, Used: 1}})
				_ = a.May(blocks[0])
			}
		})
	}
	wg.Wait()
	if err := a.May(blocks[0]); err != nil {
		s.Error(err)
	}
}
