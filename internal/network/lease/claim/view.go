package claim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/peer"
)

// View returns what the registry of the node shows, and false as long as the store isn't known, or
// the node may have blocks under another name.
// Peers that haven't changed are taken from last, those of the last view.
func (s *State) View(last []*peer.Node) (peer.View, bool) {
	if !s.known || s.former != nil {
		return peer.View{}, false
	}
	var v peer.View
	for _, o := range s.own {
		if !o.fresh && !o.retiring {
			v.Blocks = append(v.Blocks, o.block)
		}
	}
	records, kept := s.memory.records(s.snap), s.memory.blocks()
	v.Peers = make([]*peer.Node, 0, len(records))
	for _, r := range records {
		if r.Node.Name == s.cfg.Node {
			continue
		}
		n := r.Node
		n.Blocks = nil // whatever the record says
		if r.Session != s.session {
			n.Blocks = withKept(s.bound[r.Session], kept[n.Name])
		}
		for len(last) > 0 && last[0].Name < n.Name {
			last = last[1:]
		}
		if len(last) > 0 && last[0].Equal(n) {
			v.Peers = append(v.Peers, last[0])
			continue
		}
		changed := n                            // n itself stays on the stack
		changed.Blocks = slices.Clone(n.Blocks) // of an array of all blocks, which needn't stay
		v.Peers = append(v.Peers, &changed)
	}
	v.Notes, v.Loss = slices.Concat(s.notes(), s.snap.Notes), s.memory.loss(s.cfg.Store)
	return v, true
}

// bySession returns the blocks of each session.
func bySession(claims []Claim) map[Session][]netip.Prefix {
	out := make(map[Session][]netip.Prefix, len(claims))
	// Most nodes have one block of a family: their slices share an array.
	array := make([]netip.Prefix, len(claims))
	for i, c := range claims {
		array[i] = c.Block
		switch blocks := out[c.Session]; {
		case c.Session == "":
		case blocks == nil:
			out[c.Session] = array[i : i+1 : i+1]
		default:
			out[c.Session] = append(blocks, c.Block)
		}
	}
	return out
}

// notes returns what is wrong with the node's own part.
func (s *State) notes() (out []string) {
	note := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	if s.refused != "" {
		note("%s", s.refused)
	}
	if why := s.Failure(); why != "" {
		note("%s: %s; what was known at %s stays in force", s.cfg.Store, why, s.since())
	}
	if s.settling {
		note("%s: %v", s.cfg.Store, ErrSettling)
	}
	for _, c := range s.lost {
		note("block %v belongs to node %s now, as this node couldn't prolong its claim: other nodes don't reach pods with addresses of it, which need other ones", c.Block, c.Node)
	}
	for _, o := range s.own {
		switch length := s.cfg.Pool.length(o.block.Addr().Is6()); {
		case !s.cfg.Pool.contains(o.block):
			note("block %v of this node is outside the pod subnets %v: it goes when no pod uses it", o.block, s.cfg.Pool.Subnets)
		case o.block.Bits() != length:
			note("block %v of this node was claimed when blocks had another length than %d: it stays as long as pods use it", o.block, length)
		}
	}
	if s.announced && s.refused == "" && s.session != "" {
		for _, six := range s.cfg.Pool.families() {
			if s.wants(six) {
				if _, ok := s.cfg.Pool.Next(six, s.cfg.Node, s.taken()); !ok {
					note("all %d blocks of the pod subnets %s are claimed, and this node needs another one: add a pod subnet, or claim shorter blocks", s.cfg.Pool.Size(six), s.family(six))
				}
			}
		}
	}
	return append(out, s.lengths()...)
}

func (s *State) family(six bool) string {
	var out []string
	for _, p := range s.cfg.Pool.Subnets {
		if p.Addr().Is6() == six {
			out = append(out, p.String())
		}
	}
	return strings.Join(out, ", ")
}

// lengths returns a note if other nodes have blocks of other lengths.
func (s *State) lengths() []string {
	count, example := 0, Claim{}
	for _, c := range s.snap.Claims {
		if c.Session != "" && c.Session != s.session && s.cfg.Pool.contains(c.Block) && c.Block.Bits() != s.cfg.Pool.length(c.Block.Addr().Is6()) {
			count, example = count+1, c
		}
	}
	if count == 0 {
		return nil
	}
	return []string{fmt.Sprintf("%d blocks of other nodes have another length than this node's, which claims /%d: node %s has %v: set the same block length on all nodes",
		count, s.cfg.Pool.length(example.Block.Addr().Is6()), example.Node, example.Block)}
}
