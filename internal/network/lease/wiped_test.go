package lease_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer"
)

// knows reports whether a view has a node with a block.
func knows(v peer.View, name string, block netip.Prefix) bool {
	return slices.ContainsFunc(v.Peers, func(p *peer.Node) bool { return p.Name == name && slices.Equal(p.Blocks, []netip.Prefix{block}) })
}

// always checks for a time that a node knows another one.
func (n *simNode) always(d time.Duration, name string, block netip.Prefix) {
	n.sim.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if v := n.view(); !knows(v, name, block) {
			n.sim.t.Fatalf("node %s doesn't know node %s and %v any more: %+v", n.name, name, block, v)
		}
	}
}

// wipe makes the store of three nodes empty, while the first one can't reach it, and returns the
// first one's block.
func wipe(t *testing.T, s *simulation) netip.Prefix {
	t.Helper()
	away := s.nodes[0]
	block := away.view().Blocks[0]
	for _, n := range s.nodes[1:] {
		n.waitView("all nodes", func(v peer.View) bool { return knows(v, away.name, block) && len(v.Peers) == 2 })
	}
	away.cut(true)
	time.Sleep(time.Second)
	s.store.Wipe()
	return block
}

// TestWiped: the other nodes go on with a node that can't reach the store when that has lost
// everything. They write it into the store again, so that nobody else gets its block, nodes that
// join know it, and it goes on as if nothing had happened.
func TestWiped(t *testing.T) {
	scenario(t, 3, func(t *testing.T, s *simulation) {
		away, other := s.nodes[0], s.nodes[1]
		block := wipe(t, s)
		other.always(25*time.Second, away.name, block)
		if holder := s.store.Holder(block); holder.Node != away.name {
			t.Errorf("after 25 s, the block is that of %+v", holder)
		}
		if loss := other.view().Loss; loss != "" {
			t.Errorf("when all is there again, the view says %q", loss)
		}
		for i := range 2 {
			late := s.newNode(rand.New(rand.NewPCG(2, uint64(i))), 3+i)
			late.start()
			s.mu.Lock()
			s.nodes = append(s.nodes, late)
			s.mu.Unlock()
			late.waitView("a block, and the node", func(v peer.View) bool { return len(v.Blocks) == 1 && knows(v, away.name, block) })
		}
		for len(other.view().Blocks) < 3 {
			other.uses(254)
			time.Sleep(time.Second)
		}
		away.may(t, block, "")
		away.cut(false)
		away.waitView("all nodes", func(v peer.View) bool { return len(v.Peers) == 4 && away.keeper.Status() == nil })
		away.waitBlocks(block)
		away.may(t, block, "")
		other.always(3*simTTL, away.name, block)
		away.may(t, block, "")
		if notes := away.view().Notes; len(notes) > 0 {
			t.Errorf("the node has notes %q", notes)
		}
	})
}

// TestWipedAndGone: what was lost is dropped when its session would have ended.
func TestWipedAndGone(t *testing.T) {
	scenario(t, 3, func(t *testing.T, s *simulation) {
		away, other := s.nodes[0], s.nodes[1]
		block := wipe(t, s)
		wiped := time.Now()
		away.stop()
		other.always(simTTL-2*time.Second, away.name, block)
		other.waitView("two nodes", func(v peer.View) bool { return len(v.Peers) == 1 && v.Loss == "" })
		if took := time.Since(wiped); took > 2*simTTL+10*time.Second {
			t.Errorf("the node was dropped after %v", took)
		}
		s.nodes = s.nodes[1:]
	})
}

// TestWipedAndDeleted: a node that is taken out is dropped at once, though it was written into the
// store by others.
func TestWipedAndDeleted(t *testing.T) {
	scenario(t, 3, func(t *testing.T, s *simulation) {
		away, other := s.nodes[0], s.nodes[1]
		block := wipe(t, s)
		other.always(25*time.Second, away.name, block)
		s.store.Delete(netip.Prefix{}, away.name)
		began := time.Now()
		other.waitView("two nodes", func(v peer.View) bool { return len(v.Peers) == 1 })
		if took := time.Since(began); took > time.Second {
			t.Errorf("the node was dropped after %v", took)
		}
		time.Sleep(25 * time.Second)
		if v := other.view(); len(v.Peers) != 1 {
			t.Errorf("the node is there again: %+v", v.Peers)
		}
	})
}

// TestWipedAndLeft: a node that registered again and leaves is dropped at once.
func TestWipedAndLeft(t *testing.T) {
	scenario(t, 3, func(t *testing.T, s *simulation) {
		leaver, other := s.nodes[0], s.nodes[1]
		block := wipe(t, s)
		leaver.cut(false)
		leaver.waitView("its block", func(peer.View) bool {
			return leaver.keeper.May(block) == nil && s.store.Holder(block).Node == leaver.name
		})
		other.always(2*time.Second, leaver.name, block)
		leaver.stop()
		if err := leaver.keeper.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		other.waitView("two nodes", func(v peer.View) bool { return len(v.Peers) == 1 })
		if took := time.Since(began); took > time.Second {
			t.Errorf("the node was dropped after %v", took)
		}
		time.Sleep(30 * time.Second)
		if v := other.view(); len(v.Peers) != 1 {
			t.Errorf("the node is there again: %+v", v.Peers)
		}
	})
}

// TestWipedAway: nothing of what a node registers again is missing in between, whether or not
// others have written it into the store meanwhile, and whether or not huskd was restarted.
func TestWipedAway(t *testing.T) {
	for name, back := range map[string]func(*simNode){
		"Node":       nil,
		"Restart":    func(*simNode) {},
		"Reboot":     func(n *simNode) { n.boot = "b" },
		"EmptyDisk":  func(n *simNode) { n.boot, n.journal = "b", new(leasetest.Journal) },
		"NewAddress": func(n *simNode) { n.address = netip.MustParseAddr("192.0.2.99") },
	} {
		for _, after := range []time.Duration{0, 5 * time.Second, 30 * time.Second} {
			t.Run(name+after.String(), func(t *testing.T) {
				scenario(t, 3, func(t *testing.T, s *simulation) {
					block := wipe(t, s)
					away, other := s.nodes[0], s.nodes[1]
					other.always(after, away.name, block)
					if back != nil {
						s.replace(away, back)
						away = s.nodes[0]
					}
					away.cut(false)
					if name != "EmptyDisk" || after > 20*time.Second {
						other.always(20*time.Second, away.name, block)
						away.waitView("its block", func(v peer.View) bool {
							return slices.Equal(v.Blocks, []netip.Prefix{block}) && away.keeper.May(block) == nil
						})
					}
					away.waitView("a block", func(v peer.View) bool { return len(v.Blocks) == 1 && away.keeper.May(v.Blocks[0]) == nil })
					own := away.view().Blocks[0]
					other.waitView("the block only", func(v peer.View) bool { return knows(v, away.name, own) && v.Loss == "" })
				})
			})
		}
	}
}

// TestWipedAndRenamed: a node that has another name when it is back is known by that only, with its
// block.
func TestWipedAndRenamed(t *testing.T) {
	for _, after := range []time.Duration{0, 5 * time.Second, 25 * time.Second} {
		t.Run(after.String(), func(t *testing.T) {
			scenario(t, 3, func(t *testing.T, s *simulation) {
				block := wipe(t, s)
				away, other := s.nodes[0], s.nodes[1]
				other.always(after, away.name, block)
				s.replace(away, func(n *simNode) { n.name = "other" })
				away = s.nodes[0]
				away.cut(false)
				for done := false; !done; time.Sleep(10 * time.Millisecond) {
					v := other.view()
					if done = knows(v, "other", block); !done && !knows(v, "n0", block) || len(v.Peers) != 2 {
						t.Fatalf("peers are %+v", v.Peers)
					}
				}
				away.waitView("its block", func(v peer.View) bool {
					return slices.Equal(v.Blocks, []netip.Prefix{block}) && away.keeper.May(block) == nil
				})
				time.Sleep(2 * simTTL)
				if v := other.view(); !knows(v, "other", block) || len(v.Peers) != 2 {
					t.Errorf("peers are %+v", v.Peers)
				}
			})
		})
	}
}
