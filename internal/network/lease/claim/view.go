package claim

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/peer"
)

// View returns what the registry of the node shows, and false as long as the store isn't known.
func (s *State) View() (peer.View, bool) {
	if !s.known {
		return peer.View{}, false
	}
	var v peer.View
	for _, o := range s.own {
		if !o.fresh && !o.retiring {
			v.Blocks = append(v.Blocks, o.block)
		}
	}
	bySession := make(map[Session][]netip.Prefix, len(s.snap.Records))
	// Most nodes have one block of a family: their slices share an array.
	array := make([]netip.Prefix, len(s.snap.Claims))
	for i, c := range s.snap.Claims {
		array[i] = c.Block
		switch blocks := bySession[c.Session]; {
		case c.Session == "" || c.Session == s.session:
		case blocks == nil:
			bySession[c.Session] = array[i : i+1 : i+1]
		default:
			bySession[c.Session] = append(blocks, c.Block)
		}
	}
	v.Peers = make([]peer.Node, 0, len(s.snap.Records))
	for _, r := range s.snap.Records {
		if r.Node.Name != s.cfg.Node {
			r.Node.Blocks = bySession[r.Session]
			v.Peers = append(v.Peers, r.Node)
		}
	}
	v.Notes = slices.Concat(s.notes(), s.snap.Notes)
	return v, true
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
		note("block %v belongs to node %s now, as this node couldn't prolong its claim: pods with addresses of it must be made anew", c.Block, c.Node)
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
