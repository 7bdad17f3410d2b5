package lease_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/lease/leasetest"
	"github.com/huskd/husk/internal/network/peer"
)

// scenario runs a test in virtual time with a cluster of nodes that have started, and have a block
// each.
func scenario(t *testing.T, nodes int, test func(t *testing.T, s *simulation)) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(1, 1))
		s := newSimulation(t, rng, bug{}, nodes)
		defer s.stop()
		for _, n := range s.nodes {
			n.start()
			n.waitView("a block", func(v peer.View) bool { return len(v.Blocks) == 1 && n.keeper.May(v.Blocks[0]) == nil })
		}
		test(t, s)
		s.check()
		if wrong := s.violation(); wrong != "" {
			t.Error(wrong)
		}
	})
}

// waitView waits for a view, for at most three hours.
func (n *simNode) waitView(what string, ok func(peer.View) bool) peer.View {
	n.sim.t.Helper()
	for deadline := time.Now().Add(3 * time.Hour); !ok(n.view()); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			n.sim.t.Fatalf("node %s: no view with %s: %+v", n.name, what, n.view())
		}
	}
	return n.view()
}

func (n *simNode) waitBlocks(want ...netip.Prefix) {
	n.sim.t.Helper()
	n.waitView("the blocks", func(v peer.View) bool { return slices.Equal(v.Blocks, want) })
}

func (n *simNode) waitNote(text string) {
	n.sim.t.Helper()
	n.waitView("note "+text, func(v peer.View) bool {
		return slices.ContainsFunc(v.Notes, func(note string) bool { return strings.Contains(note, text) && !strings.Contains(note, "\n") })
	})
}

func (n *simNode) cut(cut bool) {
	n.link.mu.Lock()
	defer n.link.mu.Unlock()
	n.link.cut = cut
}

// uses tells the node how many addresses of its blocks are in use.
func (n *simNode) uses(used ...int) {
	var usage []peer.Usage
	for i, b := range n.view().Blocks {
		usage = append(usage, peer.Usage{Block: b, Size: 254, Used: used[min(i, len(used)-1)]})
	}
	n.keeper.Used(usage)
}

func (n *simNode) may(t *testing.T, b netip.Prefix, want string) {
	t.Helper()
	err := n.keeper.May(b)
	if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
		t.Errorf("node %s, block %v: %v, want %q", n.name, b, err, want)
	}
}

// TestGrowAndShrink: a node that fills up claims another block, until the pool is used up, and
// gives spare ones back an hour after they became empty.
func TestGrowAndShrink(t *testing.T) {
	scenario(t, 1, func(t *testing.T, s *simulation) {
		n := s.nodes[0]
		n.uses(203) // just below 80 %
		time.Sleep(time.Minute)
		first := n.view().Blocks[0]
		n.waitBlocks(first)
		for len(n.view().Blocks) < 8 {
			before := len(n.view().Blocks)
			n.uses(204)
			n.waitView("another block", func(v peer.View) bool { return len(v.Blocks) == before+1 })
		}
		n.uses(254)
		time.Sleep(time.Minute)
		all := slices.SortedFunc(slices.Values(n.view().Blocks), netip.Prefix.Compare)
		if len(all) != 8 || !slices.Equal(slices.Compact(all), all) {
			t.Errorf("got %v, want the whole pool", all)
		}

		n.uses(100, 0, 1, 0)
		time.Sleep(59 * time.Minute)
		if len(n.view().Blocks) != 8 {
			t.Errorf("blocks went early: %v are left", n.view().Blocks)
		}
		blocks := n.view().Blocks
		left := n.waitView("fewer blocks", func(v peer.View) bool { return len(v.Blocks) < 8 }).Blocks
		gone := blocks[slices.IndexFunc(blocks, func(b netip.Prefix) bool { return !slices.Contains(left, b) })]
		n.may(t, gone, "on its way back")
		time.Sleep(time.Minute)
		if s.store.Holder(gone).Session == "" {
			t.Error("a block was given back before the network said that it isn't used")
		}
		// A pod got an address of it just before: it stays.
		n.keeper.Used([]peer.Usage{{Block: blocks[0], Size: 254, Used: 100}, {Block: gone, Size: 254, Used: 1}})
		n.waitView("the block again", func(v peer.View) bool { return slices.Contains(v.Blocks, gone) })
		n.may(t, gone, "")
		for range 200 {
			n.keeper.Used([]peer.Usage{{Block: blocks[0], Size: 254, Used: 100}})
			time.Sleep(time.Minute)
		}
		n.waitBlocks(blocks[0])
		if holder := s.store.Holder(gone); holder.Session != "" {
			t.Errorf("block %v still belongs to %v", gone, holder)
		}
	})
}

// TestExhausted: nodes share a pool up to its last block, and the next one gets what is given back.
func TestExhausted(t *testing.T) {
	scenario(t, 8, func(t *testing.T, s *simulation) {
		late := s.newNode(rand.New(rand.NewPCG(2, 2)), 8)
		late.start()
		s.mu.Lock()
		s.nodes = append(s.nodes, late)
		s.mu.Unlock()
		late.may(t, netip.Prefix{}, "waits for the store to give it a block")
		late.waitNote("all 8 blocks of the pod subnets 10.201.0.0/21 are claimed")
		late.may(t, netip.Prefix{}, "all 8 blocks")
		leaver := s.nodes[3]
		block := leaver.view().Blocks[0]
		leaver.stop()
		if err := leaver.keeper.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		leaver.may(t, block, "isn't one of this node's")
		late.waitBlocks(block)
		if notes := late.view().Notes; len(notes) > 0 {
			t.Errorf("notes %q are left", notes)
		}
	})
}

// TestAdopt: a node that had pods before it joined claims the blocks with their addresses, unless
// they are another's.
func TestAdopt(t *testing.T) {
	scenario(t, 1, func(t *testing.T, s *simulation) {
		taken := s.nodes[0].waitView("a block", func(v peer.View) bool { return len(v.Blocks) == 1 }).Blocks[0]
		var free []netip.Prefix
		for i := range byte(8) {
			if b := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 201, i, 0}), 24); b != taken && len(free) < 2 {
				free = append(free, b)
			}
		}
		var strays []peer.Usage
		for _, b := range append(free, taken) {
			strays = append(strays, peer.Usage{Block: netip.PrefixFrom(b.Addr().Next().Next(), 32), Size: 1, Used: 1})
		}
		late := s.newNode(rand.New(rand.NewPCG(2, 2)), 1)
		s.mu.Lock()
		s.nodes = append(s.nodes, late)
		s.mu.Unlock()
		late.cut(true)
		late.start()
		late.keeper.Used(strays)
		late.cut(false)
		late.waitBlocks(free...)
		late.waitView("use of its blocks", func(peer.View) bool { return late.keeper.May(free[0]) == nil && late.keeper.May(free[1]) == nil })
		if late.keeper.May(taken) == nil || s.nodes[0].keeper.May(taken) != nil {
			t.Errorf("block %v isn't that of the node that had it", taken)
		}
	})
}

// TestStoreAway: pods are started for almost a TTL after the last answer, and peers stay.
func TestStoreAway(t *testing.T) {
	scenario(t, 2, func(t *testing.T, s *simulation) {
		a, b := s.nodes[0], s.nodes[1]
		block := a.view().Blocks[0]
		a.waitView("its peer's block", func(v peer.View) bool { return len(v.Peers) == 1 && len(v.Peers[0].Blocks) == 1 })
		a.cut(true)
		time.Sleep(simTTL - 20*time.Second)
		a.may(t, block, "")
		a.waitNote("the store: no answer; what was known at")
		time.Sleep(19 * time.Second)
		a.may(t, block, "hasn't confirmed since")
		b.waitView("no peers", func(v peer.View) bool { return len(v.Peers) == 0 })
		if v := a.view(); len(v.Peers) != 1 || !slices.Equal(v.Blocks, []netip.Prefix{block}) {
			t.Errorf("without the store, the view became %+v", v)
		}
		a.cut(false)
		a.waitView("no notes", func(v peer.View) bool { return len(v.Notes) == 0 && a.keeper.May(block) == nil })
		a.waitBlocks(block)
	})
}

// TestBlockLost: a node that was away for too long finds its block taken, and claims another.
func TestBlockLost(t *testing.T) {
	scenario(t, 2, func(t *testing.T, s *simulation) {
		a, b := s.nodes[0], s.nodes[1]
		lost := a.view().Blocks[0]
		a.uses(3)
		a.cut(true)
		for len(b.view().Blocks) < 8 {
			b.uses(254)
			time.Sleep(time.Second)
		}
		b.waitView("the block", func(v peer.View) bool { return slices.Contains(v.Blocks, lost) })
		a.may(t, lost, "hasn't confirmed since")
		a.cut(false)
		a.waitNote("block " + lost.String() + " belongs to node n1 now")
		a.may(t, lost, "isn't one of this node's")
		a.waitNote("all 8 blocks")
		a.keeper.Used([]peer.Usage{{Block: lost, Used: 3}}) // the pods are still there
		time.Sleep(time.Minute)
		a.waitNote("other nodes don't reach pods with addresses of it")
		a.keeper.Used(nil)
		a.waitView("one note", func(v peer.View) bool { return len(v.Notes) == 1 })
	})
}

// TestBlockFound: a node claims a block again that it has lost, once that is free and as long as
// its pods still have addresses of it, also after a restart.
func TestBlockFound(t *testing.T) {
	for _, restarted := range []bool{false, true} {
		t.Run(fmt.Sprintf("restarted %v", restarted), func(t *testing.T) { testBlockFound(t, restarted) })
	}
}

func testBlockFound(t *testing.T, restarted bool) {
	scenario(t, 2, func(t *testing.T, s *simulation) {
		a, b := s.nodes[0], s.nodes[1]
		lost := a.view().Blocks[0]
		a.uses(3)
		a.cut(true)
		for !slices.Contains(b.view().Blocks, lost) {
			b.uses(254)
			time.Sleep(time.Second)
		}
		b.uses(0) // before it has used the block
		a.cut(false)
		a.waitNote("block " + lost.String() + " belongs to node n1 now")
		used := []peer.Usage{{Block: lost, Size: 254, Used: 3}}
		if restarted {
			s.replace(a, func(*simNode) {})
			a = s.nodes[0]
		}
		a.keeper.Used(used)
		a.waitView("no block", func(v peer.View) bool { return !slices.Contains(v.Blocks, lost) })
		for range 200 { // until the other node gives up what it doesn't need
			b.uses(0)
			a.keeper.Used(used)
			time.Sleep(time.Minute)
		}
		a.waitView("the block again", func(v peer.View) bool { return slices.Contains(v.Blocks, lost) })
		a.may(t, lost, "")
		if holder := s.store.Holder(lost); holder.Node != "n0" {
			t.Errorf("block %v belongs to %+v", lost, holder)
		}
		a.waitView("no note of it", func(v peer.View) bool {
			return !slices.ContainsFunc(v.Notes, func(note string) bool { return strings.Contains(note, lost.String()) })
		})
	})
}

// TestSuspended: time during which the machine slept counts.
func TestSuspended(t *testing.T) {
	scenario(t, 1, func(t *testing.T, s *simulation) {
		n := s.nodes[0]
		block := n.view().Blocks[0]
		n.cut(true)
		n.may(t, block, "")
		s.began = s.began.Add(-simTTL) // moves the nodes' clocks
		n.may(t, block, "hasn't confirmed since")
		n.cut(false)
		n.waitView("use of the block", func(peer.View) bool { return n.keeper.May(block) == nil })
	})
}

// TestRestartWithoutStore: what the journal says holds as long as it may.
func TestRestartWithoutStore(t *testing.T) {
	for name, c := range map[string]struct {
		after  time.Duration
		change func(*simNode)
		want   string
	}{
		"SameBoot":     {simTTL - 20*time.Second, func(*simNode) {}, ""},
		"SameBootLate": {simTTL - time.Second, func(*simNode) {}, "hasn't confirmed since"},
		"Reboot":       {simTTL/2 - 15*time.Second, func(n *simNode) { n.boot = "b" }, ""},
		"RebootLate":   {simTTL / 2, func(n *simNode) { n.boot = "b" }, "hasn't confirmed since"},
		"CopiedDisk":   {0, func(n *simNode) { n.boot, n.address = "b", netip.MustParseAddr("192.0.2.99") }, "hasn't confirmed since"},
		"OtherName":    {0, func(n *simNode) { n.name = "other" }, "waits for the store"},
		"JournalLost":  {0, func(n *simNode) { n.journal = new(leasetest.Journal) }, "isn't one of this node's"},
		"ClockWentBack": {0, func(n *simNode) {
			n.boot = "b"
			n.journal.Change(func(s *claim.Saved) { s.Sent = time.Now().Add(time.Second) })
		}, "hasn't confirmed since"},
		"ClockIsUnknown": {0, func(n *simNode) { n.boot = "b"; n.journal.Change(func(s *claim.Saved) { s.Sent = time.Time{} }) }, "hasn't confirmed since"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, s *simulation) {
				n := s.nodes[0]
				block := n.view().Blocks[0]
				n.cut(true)
				time.Sleep(c.after)
				s.replace(n, c.change)
				s.nodes[0].may(t, block, c.want)
				time.Sleep(simTTL)
				if c.want == "" {
					s.nodes[0].may(t, block, "hasn't confirmed since")
				}
			})
		})
	}
}

// TestTwoMachinesOneName: the second one is refused, and the first one isn't disturbed.
func TestTwoMachinesOneName(t *testing.T) {
	scenario(t, 1, func(t *testing.T, s *simulation) {
		a := s.nodes[0]
		block := a.view().Blocks[0]
		saved, _ := a.journal.Load()
		copied := new(leasetest.Journal)
		_ = copied.Save(saved)
		for _, journal := range []*leasetest.Journal{new(leasetest.Journal), copied} {
			clone := s.newNode(rand.New(rand.NewPCG(2, 2)), 0)
			clone.boot, clone.address, clone.journal = "boot-clone", netip.MustParseAddr("192.0.2.99"), journal
			clone.start()
			clone.waitNote("two machines have the node name n0: one with addresses [192.0.2.1] and boot ID boot-0-1, and this one with addresses [192.0.2.99] and boot ID boot-clone")
			clone.may(t, netip.Prefix{}, "two machines have the node name n0")
			if clone.keeper.May(block) == nil {
				t.Error("the clone may use the block")
			}
			time.Sleep(time.Hour)
			a.may(t, block, "")
			if len(a.view().Notes) > 0 {
				t.Errorf("the first machine has notes %q", a.view().Notes)
			}
			clone.stop()
		}
		// The administrator says that the first one is gone, though it isn't.
		clone := s.newNode(rand.New(rand.NewPCG(3, 3)), 0)
		clone.boot, clone.address = "boot-clone", netip.MustParseAddr("192.0.2.99")
		clone.start()
		defer clone.stop()
		clone.waitNote("two machines")
		a.cut(true)
		s.store.Delete(netip.Prefix{}, "n0")
		clone.waitView("a block", func(v peer.View) bool { return len(v.Blocks) == 1 && len(v.Notes) == 0 })
		if clone.view().Blocks[0] == block {
			t.Error("the clone has the first machine's block")
		}
		a.cut(false)
		a.waitNote("two machines")
		a.may(t, block, "two machines")
	})
}

// TestNameComesBack: a machine that rebooted, has another address or has lost its disk is the same.
func TestNameComesBack(t *testing.T) {
	for name, change := range map[string]func(*simNode){
		"Reboot":          func(n *simNode) { n.boot = "b" },
		"RebootEmptyDisk": func(n *simNode) { n.boot, n.journal = "b", new(leasetest.Journal) },
		"Address":         func(n *simNode) { n.address = netip.MustParseAddr("192.0.2.99") },
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 2, func(_ *testing.T, s *simulation) {
				block := s.nodes[0].view().Blocks[0]
				s.replace(s.nodes[0], change)
				n, other := s.nodes[0], s.nodes[1]
				n.waitView("the block", func(v peer.View) bool {
					return slices.Equal(v.Blocks, []netip.Prefix{block}) && n.keeper.May(block) == nil
				})
				other.waitView("the new record", func(v peer.View) bool {
					return len(v.Peers) == 1 && v.Peers[0].Boot == n.boot && v.Peers[0].Addresses[0] == n.address
				})
			})
		})
	}
}

// TestRestored: after the store was restored from a backup, each node has its blocks again, and
// nothing that it gave back before.
func TestRestored(t *testing.T) {
	scenario(t, 3, func(t *testing.T, s *simulation) {
		grown, late := s.nodes[0], s.nodes[2]
		restore := s.store.Backup()
		grown.uses(254)
		grown.waitView("two blocks", func(v peer.View) bool { return len(v.Blocks) == 2 })
		ofLate := late.view().Blocks[0]
		late.stop()
		if err := late.keeper.Leave(t.Context()); err != nil {
			t.Fatal(err)
		}
		for len(grown.view().Blocks) < 7 { // among them the one that was late's in the backup
			grown.uses(254)
			time.Sleep(time.Second)
		}
		blocks := grown.view().Blocks
		if !slices.Contains(blocks, ofLate) {
			t.Fatalf("node n0 has %v without %v", blocks, ofLate)
		}
		restore()
		time.Sleep(time.Second)
		// The node that left doesn't come back with what the backup has.
		time.Sleep(3 * simTTL)
		grown.waitView("all of its blocks", func(peer.View) bool {
			return !slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b != ofLate && grown.keeper.May(b) != nil })
		})
		for _, b := range blocks {
			if b != ofLate && s.store.Holder(b).Node != "n0" {
				t.Errorf("block %v belongs to %+v", b, s.store.Holder(b))
			}
		}
	})
}

// TestDeletedBehindBack: what somebody deletes in the store is claimed again.
func TestDeletedBehindBack(t *testing.T) {
	scenario(t, 2, func(_ *testing.T, s *simulation) {
		n := s.nodes[0]
		block := n.view().Blocks[0]
		s.store.Delete(block, "n0")
		n.waitView("nothing new", func(peer.View) bool { return s.store.Holder(block).Node == "n0" })
		s.nodes[1].waitView("the record", func(v peer.View) bool {
			return len(v.Peers) == 1 && cmp.Equal(v.Peers[0].Blocks, []netip.Prefix{block}, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		})
	})
}

// TestPoolChanged: blocks outside the pool go when they are empty; those of another length stay.
func TestPoolChanged(t *testing.T) {
	scenario(t, 1, func(t *testing.T, s *simulation) {
		n := s.nodes[0]
		short := netip.MustParsePrefix("10.201.0.0/25")
		if n.view().Blocks[0].Contains(short.Addr()) {
			short = netip.MustParsePrefix("10.201.2.0/25")
		}
		n.stop()
		n.journal.Change(func(s *claim.Saved) { s.Blocks = append(s.Blocks, netip.MustParsePrefix("10.99.0.0/24"), short) })
		s.replace(n, func(*simNode) {})
		n = s.nodes[0]
		n.waitNote("block 10.99.0.0/24 of this node is outside the pod subnets")
		n.waitNote("block " + short.String() + " of this node was claimed when blocks had another length than 24")
		n.uses(1)
		time.Sleep(2 * time.Hour)
		if len(n.view().Blocks) != 3 {
			t.Errorf("blocks in use are gone: %v are left", n.view().Blocks)
		}
		n.uses(1, 0, 1)
		n.waitView("two blocks", func(v peer.View) bool { return len(v.Blocks) == 2 })
		n.uses(1)
		n.waitView("one note", func(v peer.View) bool { return len(v.Blocks) == 2 && len(v.Notes) == 1 })
	})
}

// TestOtherLengths: a node says so if the others have blocks of another length, and takes none that
// overlaps them.
func TestOtherLengths(t *testing.T) {
	scenario(t, 1, func(t *testing.T, s *simulation) {
		kept, err := s.store.Keep(t.Context(), "", nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range []string{"10.201.0.0/25", "10.201.2.0/23", "10.201.4.0/25", "10.201.5.128/26", "10.201.6.0/23"} {
			_ = s.store.Bind(t.Context(), claim.Claim{Block: netip.MustParsePrefix(b), Node: "x", Session: kept.Session}, false)
		}
		n := s.nodes[0]
		n.waitNote("blocks of other nodes have another length than this node's, which claims /24: node x has 10.201.")
		for range 60 {
			n.uses(254)
			time.Sleep(100 * time.Millisecond)
		}
		n.waitNote("all 8 blocks")
	})
}

// TestRenamed: a node with another name takes its own record and blocks over, in the same boot and
// after a reboot, whether or not the wall clock tells when it prolonged its session.
func TestRenamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*simNode)
		within time.Duration
	}{
		"SameBoot":     {func(*simNode) {}, 3 * time.Second},
		"Reboot":       {func(n *simNode) { n.boot = "b" }, 3 * time.Second},
		"UnknownClock": {func(n *simNode) { n.boot = "b"; n.journal.Change(func(s *claim.Saved) { s.Sent = time.Time{} }) }, 30 * time.Second},
		"Unsaved": {func(n *simNode) { // killed before it could save that it has prolonged its session
			n.journal.Change(func(s *claim.Saved) { s.Until -= 20 * time.Second })
		}, 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 2, func(t *testing.T, s *simulation) {
				block, session := s.nodes[0].view().Blocks[0], s.store.Holder(s.nodes[0].view().Blocks[0]).Session
				s.nodes[0].uses(3)
				s.replace(s.nodes[0], func(n *simNode) { n.name = "other"; c.change(n) })
				n, other := s.nodes[0], s.nodes[1]
				n.keeper.Used([]peer.Usage{{Block: netip.PrefixFrom(block.Addr().Next().Next(), 32), Size: 1, Used: 1}})
				began := time.Now()
				n.waitView("its block", func(v peer.View) bool {
					return slices.Equal(v.Blocks, []netip.Prefix{block}) && len(v.Notes) == 0 && len(v.Peers) == 1 && n.keeper.May(block) == nil
				})
				if took := time.Since(began); took > c.within {
					t.Errorf("it took %v", took)
				}
				other.waitView("the new name", func(v peer.View) bool {
					return len(v.Peers) == 1 && v.Peers[0].Name == "other" && slices.Equal(v.Peers[0].Blocks, []netip.Prefix{block})
				})
				if holder := s.store.Holder(block); holder.Node != "other" || holder.Session == session {
					t.Errorf("the block belongs to %+v", holder)
				}
				if _, err := s.store.Keep(t.Context(), session, nil); !errors.Is(err, claim.ErrLost) {
					t.Errorf("the former session: %v, want none", err)
				}
				// The journal has it, too.
				n.cut(true)
				s.replace(n, func(*simNode) {})
				s.nodes[0].may(t, block, "")
			})
		})
	}
}

// TestRenamedCrash: the answer to what takes the record over is lost, and huskd is killed before it
// can save that.
func TestRenamedCrash(t *testing.T) {
	for _, kill := range []bool{false, true} {
		scenario(t, 2, func(t *testing.T, s *simulation) {
			block := s.nodes[0].view().Blocks[0]
			s.nodes[0].link.loseMove = true
			s.replace(s.nodes[0], func(n *simNode) { n.name = "other" })
			for s.store.Holder(block).Node != "other" {
				time.Sleep(time.Millisecond)
			}
			if kill {
				s.replace(s.nodes[0], func(*simNode) {})
			}
			n := s.nodes[0]
			n.waitView("its block", func(v peer.View) bool {
				return slices.Equal(v.Blocks, []netip.Prefix{block}) && n.keeper.May(block) == nil
			})
			if claims := s.store.Claims(); len(claims) != 2 {
				t.Errorf("the claims are %+v", claims)
			}
		})
	}
}

// TestRenamedCopy: copies of a node's disk under other names don't disturb the node, wherever they
// run and whatever they have in common with it.
func TestRenamedCopy(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*simNode)
		note   string
	}{
		"OtherMachine": {func(n *simNode) { n.boot, n.address = "boot-clone", netip.MustParseAddr("192.0.2.99") }, ""},
		"SameBoot":     {func(n *simNode) { n.address = netip.MustParseAddr("192.0.2.99") }, "this node was node n0 with addresses [192.0.2.1] before"},
		"SameAddress":  {func(n *simNode) { n.boot = "boot-clone" }, "another machine still prolongs the claims of that node"},
	} {
		t.Run(name, func(t *testing.T) {
			scenario(t, 1, func(t *testing.T, s *simulation) {
				a := s.nodes[0]
				block := a.view().Blocks[0]
				saved, _ := a.journal.Load()
				copied := new(leasetest.Journal)
				_ = copied.Save(saved)
				clone := s.newNode(rand.New(rand.NewPCG(2, 2)), 0)
				clone.name, clone.journal = "clone", copied
				c.change(clone)
				time.Sleep(time.Minute)
				clone.start()
				defer clone.stop()
				for range 60 {
					time.Sleep(time.Minute)
					a.may(t, block, "")
					if clone.keeper.May(block) == nil {
						t.Fatal("the clone may use the block")
					}
				}
				if c.note != "" {
					clone.may(t, netip.Prefix{}, c.note)
				} else if v := clone.view(); len(v.Blocks) != 1 || v.Blocks[0] == block {
					t.Errorf("the clone is no node of its own: %+v", v)
				}
				if v := a.view(); len(v.Notes) > 0 || !slices.Equal(v.Blocks, []netip.Prefix{block}) {
					t.Errorf("the node has %+v", v)
				}
				if c.note == "" {
					return
				}
				if err := clone.keeper.Leave(t.Context()); err == nil {
					t.Error("the clone has left, and taken the node's blocks with it")
				}
				a.may(t, block, "")
			})
		})
	}
}
