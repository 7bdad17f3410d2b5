package nodes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/netns/netnstest"
	"github.com/huskd/husk/internal/network"
	"github.com/huskd/husk/internal/network/backend"
	"github.com/huskd/husk/internal/network/heartbeat"
	"github.com/huskd/husk/internal/network/nodes"
	"github.com/huskd/husk/internal/network/overlay"
	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/test/node"
)

// hub is a registry of many nodes in memory, which tells all of them at once of each change.
type hub struct {
	mu      sync.Mutex
	records map[string]peer.Node
	members map[string]*member
}

// member is the hub as one node sees it.
type member struct {
	hub    *hub
	name   string
	blocks []netip.Prefix
	wake   chan struct{}
}

func (h *hub) member(name string, blocks []netip.Prefix) *member {
	h.mu.Lock()
	defer h.mu.Unlock()
	m := &member{hub: h, name: name, blocks: blocks, wake: make(chan struct{}, 1)}
	h.members[name] = m
	return m
}

// change changes the records and wakes all nodes.
func (h *hub) change(how func(records map[string]peer.Node)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	how(h.records)
	for _, m := range h.members {
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

func (m *member) view() peer.View {
	m.hub.mu.Lock()
	defer m.hub.mu.Unlock()
	v := peer.View{Blocks: m.blocks}
	for name, record := range m.hub.records {
		if name != m.name {
			v.Peers = append(v.Peers, &record)
		}
	}
	return v
}

// Run implements peer.Registry.
func (m *member) Run(ctx context.Context, update func(peer.View)) error {
	for {
		update(m.view())
		select {
		case <-ctx.Done():
			return nil
		case <-m.wake:
		}
	}
}

// Announce implements peer.Registry.
func (m *member) Announce(record peer.Node) {
	record.Version, record.Name, record.Blocks = peer.Version, m.name, m.blocks
	m.hub.change(func(records map[string]peer.Node) { records[m.name] = record })
}

// May implements peer.Registry.
func (m *member) May(netip.Prefix) error { return nil }

// Used implements peer.Registry.
func (m *member) Used([]peer.Usage) {}

// quiet is a prober that sends nothing: the nodes share one kernel, and their 20,000 probes and
// answers a second would take most of it.
type quiet struct{}

func (quiet) Watch(netip.Addr, []heartbeat.Peer)    {}
func (quiet) Health() map[string]heartbeat.Health   { return nil }
func (quiet) Impaired() map[string]heartbeat.Health { return nil }
func (quiet) Run(ctx context.Context, _ func()) error {
	<-ctx.Done()
	return nil
}

// networkNode is a node of which there is only the network, in this process.
type networkNode struct {
	t          *testing.T
	uplink     *node.Uplink
	network    *network.Network
	overlay    *overlay.Overlay
	controller *nodes.Controller
	stop       context.CancelFunc
	done       chan error
}

// open opens the network of a node and runs its controller.
func (h *hub) open(t *testing.T, l *node.Uplink) (*networkNode, error) {
	t.Helper()
	n := &networkNode{t: t, uplink: l, done: make(chan error, 1)}
	registry := h.member(l.Name(), blocksOf(l.Number))
	instance := pod.Instance(fmt.Sprintf("%04x", l.Number))
	var cluster []netip.Prefix
	for s := range strings.SplitSeq(subnets, ",") {
		cluster = append(cluster, netip.MustParsePrefix(s))
	}
	log := slog.New(slog.DiscardHandler)
	var err error
	if n.network, err = network.Open(t.Context(), network.Config{Instance: instance, Dir: filepath.Join(t.TempDir(), "journal"), Netns: l.Net, Cluster: cluster, Masquerade: true, May: registry.May, Log: log}); err != nil {
		return nil, err
	}
	if n.overlay, err = overlay.Open(overlay.Config{Netns: l.Net, Instance: instance}); err != nil {
		return nil, err
	}
	n.controller = nodes.New(nodes.Config{Instance: instance, Name: l.Name(), Boot: "boot", Cluster: cluster, Backend: backend.Auto, Ways: nodes.Ways{VXLAN: backend.VXLANOf(l.Name())},
		Store: "memory", Registry: registry, Kernel: n.overlay, Prober: quiet{}, Pods: n.network, Log: log})
	ctx, cancel := context.WithCancel(context.Background())
	n.stop = cancel
	go func() { n.done <- n.controller.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-n.done; err != nil {
			t.Error(err)
		}
		// The links of pods are deleted in the background.
		node.Eventually(t, 20*time.Second, func() string {
			if err := n.network.Teardown(); err != nil {
				return fmt.Sprintf("%s: %v", l.Name(), err)
			}
			return ""
		})
		if err := errors.Join(n.overlay.Teardown(), n.overlay.Close(), n.network.Close()); err != nil {
			t.Errorf("%s: %v", l.Name(), err)
		}
	})
	return n, nil
}

// peers returns how many other nodes have a way.
func (n *networkNode) peers() (count int) {
	for _, p := range n.controller.Status().Peers {
		if p.Way != "" {
			count++
		}
	}
	return count
}

// pod attaches a pod that answers.
func (n *networkNode) pod(name string) *host {
	n.t.Helper()
	path := filepath.Join(n.t.TempDir(), name)
	netnstest.Make(n.t, path)
	a := pod.Attachment{Sandbox: fmt.Sprintf("%064x", n.uplink.Number), Netns: path, IfName: "eth0"}
	got, err := n.network.Attach(n.t.Context(), a)
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := n.network.Detach(context.Background(), a); err != nil {
			n.t.Error(err)
		}
	})
	h := &host{name: name + " of " + n.uplink.Name(), netns: path, mtu: got.MTU}
	for _, p := range got.Addresses {
		h.addresses = append(h.addresses, p.Addr())
	}
	h.serve(n.t)
	return h
}

// routes counts a node's routes to pods of other nodes, in the kernel.
func (n *networkNode) routes() int {
	out := netnstest.Run(n.t, n.uplink.Net, "sh", "-c", toOthers)
	return strings.Count(out, "\n")
}

// TestHundredNodes runs the network of a hundred nodes in this process, half of them on each side
// of a router, and follows one that joins and leaves.
func TestHundredNodes(t *testing.T) {
	const many = 100
	u := node.NewUnderlay(t)
	segments := []*node.Segment{u.Segment(node.Media{}), u.Segment(node.Media{})}
	h := &hub{records: map[string]peer.Node{}, members: map[string]*member{}}
	var uplinks []*node.Uplink
	for i := range many + 1 {
		uplinks = append(uplinks, segments[i%2].Host())
	}
	all := func(list []*networkNode, peers int) {
		t.Helper()
		node.Eventually(t, time.Minute, func() string {
			for _, n := range list {
				if got := n.peers(); got != peers {
					return fmt.Sprintf("%s has ways to %d nodes, want %d", n.uplink.Name(), got, peers)
				}
			}
			return ""
		})
	}
	began := time.Now()
	list := make([]*networkNode, many)
	var opening errgroup.Group
	opening.SetLimit(10)
	for i, l := range uplinks[:many] {
		opening.Go(func() (err error) {
			list[i], err = h.open(t, l)
			return err
		})
	}
	if err := opening.Wait(); err != nil {
		t.Fatal(err)
	}
	opened := time.Since(began)
	all(list, many-1)
	t.Logf("%d nodes: opened after %v, all have ways to all after %v", many, opened, time.Since(began))
	for _, n := range list[:4] {
		if got := n.routes(); got != 2*(many-1) {
			t.Errorf("%s has %d routes to other nodes, want %d", n.uplink.Name(), got, 2*(many-1))
		}
	}
	var pods []*host
	for _, n := range []*networkNode{list[0], list[1], list[many-1], list[many/2]} {
		pods = append(pods, n.pod("a"))
	}
	node.Eventually(t, 30*time.Second, func() string { return strings.Join(wrongs(pods, nil), "\n") })

	began = time.Now()
	last, err := h.open(t, uplinks[many])
	if err != nil {
		t.Fatal(err)
	}
	node.Eventually(t, time.Minute, func() string {
		if last.network.Status() != nil {
			return "the node that joins has no blocks"
		}
		return ""
	})
	joiner := last.pod("a")
	for _, p := range pods {
		node.Eventually(t, time.Minute, func() string { return p.wrongOnce(joiner) })
	}
	reached := time.Since(began)
	all(list, many)
	t.Logf("one more: its pod is reached after %v, and all have ways to it after %v", reached, time.Since(began))

	began = time.Now()
	h.change(func(records map[string]peer.Node) { delete(records, uplinks[many].Name()) })
	all(list, many-1)
	t.Logf("it leaves: its routes are gone everywhere after %v", time.Since(began))
	if got := list[0].routes(); got != 2*(many-1) {
		t.Errorf("%d routes, want %d", got, 2*(many-1))
	}
}

// wrongOnce returns what is wrong about one small question.
func (h *host) wrongOnce(to *host) string {
	if _, err := h.askUDP(to.address(false), 100, 100*time.Millisecond); err != nil {
		return fmt.Sprintf("from %s to %s: %v", h.name, to.name, err)
	}
	return ""
}
