package peertest_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/huskd/husk/internal/network/peer"
	"github.com/huskd/husk/internal/network/peer/peertest"
)

// memory is the simplest cluster: its nodes are in one process.
type memory struct {
	mu      sync.Mutex
	nodes   map[string]peer.Node
	changed chan struct{} // closed at the next change
}

func (c *memory) Join(_ *testing.T, name string, address netip.Addr) peer.Registry {
	c.change(func() {
		n := address.As4()[3]
		c.nodes[name] = peer.Node{Version: peer.Version, Name: name, Addresses: []netip.Addr{address}, Blocks: []netip.Prefix{
			netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, n, 0}), 24),
			netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0x68, 0x75, 0x73, 0x6b, 0, 0, n}), 64),
		}}
	})
	return &node{c, name}
}

func (c *memory) Leave(_ *testing.T, name string) { c.change(func() { delete(c.nodes, name) }) }

func (c *memory) change(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
	close(c.changed)
	c.changed = make(chan struct{})
}

type node struct {
	*memory
	name string
}

func (n *node) view() (v peer.View, changed chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(n.nodes)) {
		if record := n.nodes[name]; name == n.name {
			v.Blocks = slices.Clone(record.Blocks)
		} else {
			v.Peers = append(v.Peers, &record)
		}
	}
	return v, n.changed
}

func (n *node) Run(ctx context.Context, update func(peer.View)) error {
	for ctx.Err() == nil {
		v, changed := n.view()
		update(v)
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
	return nil
}

func (n *node) Announce(record peer.Node) {
	n.change(func() {
		record.Version, record.Name, record.Blocks = peer.Version, n.name, n.nodes[n.name].Blocks
		n.nodes[n.name] = record
	})
}

func (n *node) May(block netip.Prefix) error {
	if v, _ := n.view(); !slices.Contains(v.Blocks, block) {
		return errors.New("not a block of this node")
	}
	return nil
}

func (n *node) Used([]peer.Usage) {}

func TestMemory(t *testing.T) {
	peertest.Run(t, func(*testing.T) peertest.Cluster {
		return &memory{nodes: map[string]peer.Node{}, changed: make(chan struct{})}
	}, peertest.Options{})
}
