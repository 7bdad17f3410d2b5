package peer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Accept returns the records that a node may route by, in the order of their names, and a note for
// each record or block that it may not. The blocks must be inside the cluster's pod subnets and
// mustn't overlap a block of self; nor may a peer have an address of self. Of two peers with
// overlapping blocks, or the same MAC or key, the one whose name comes first keeps it, so that all
// nodes agree.
func Accept(cluster []netip.Prefix, self Node, records []Node) (peers []Node, notes []string) {
	records = slices.Clone(records)
	slices.SortFunc(records, func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	taken := claims{holders: make(map[netip.Prefix]string, len(records))}
	identities := make(map[any]string, len(records))
	peers = make([]Node, 0, len(records))
	self.claimIdentities(identities)
	for _, b := range self.Blocks {
		taken.add(b, self.Name)
	}
	for _, r := range records {
		if r.Name == self.Name {
			continue
		}
		if err := r.Check(); err != nil {
			notes = append(notes, err.Error())
			continue
		}
		if i := slices.IndexFunc(r.Addresses, func(a netip.Addr) bool { return slices.Contains(self.Addresses, a) }); i >= 0 {
			notes = append(notes, fmt.Sprintf("node %s has this node's address %v: give one of them another", r.Name, r.Addresses[i]))
			continue
		}
		blocks := make([]netip.Prefix, 0, len(r.Blocks))
		for _, b := range r.Blocks {
			if !inside(cluster, b) {
				notes = append(notes, fmt.Sprintf("block %v of node %s is outside the pod subnets %v", b, r.Name, cluster))
				continue
			}
			if holder, ok := taken.overlapping(b); ok {
				notes = append(notes, fmt.Sprintf("block %v of node %s overlaps one of node %s", b, r.Name, holder))
				continue
			}
			taken.add(b, r.Name)
			blocks = append(blocks, b)
		}
		r.Blocks = blocks
		notes = append(notes, r.claimIdentities(identities)...)
		peers = append(peers, r)
	}
	return peers, notes
}

// claimIdentities adds the MACs and keys of a node to those that are taken. By these the kernel
// tells peers apart. If one is another node's, the node is not reached by that way.
func (n *Node) claimIdentities(taken map[any]string) (notes []string) {
	claim := func(id any, what string) bool {
		holder, ok := taken[id]
		if ok && holder != n.Name {
			notes = append(notes, fmt.Sprintf("node %s has the %s %v of node %s: give one of them another", n.Name, what, id, holder))
			return false
		}
		taken[id] = n.Name
		return true
	}
	if n.VXLAN != nil && (!claim(n.VXLAN.MAC, "MAC") || n.VXLAN.MAC6 != (MAC{}) && !claim(n.VXLAN.MAC6, "MAC")) {
		n.VXLAN = nil
	}
	if slices.ContainsFunc(n.WireGuard, func(w WireGuard) bool { return !claim(w.Key, "key") }) {
		n.WireGuard = nil
	}
	return notes
}

func inside(cluster []netip.Prefix, b netip.Prefix) bool {
	return slices.ContainsFunc(cluster, func(c netip.Prefix) bool { return c.Bits() <= b.Bits() && c.Contains(b.Addr()) })
}

// claims holds blocks that don't overlap. As long as all blocks of a family have the same length,
// finding one that overlaps another takes a single step.
type claims struct {
	holders map[netip.Prefix]string
	lengths []length // few
}

type length struct {
	six  bool
	bits int
}

func (c *claims) add(b netip.Prefix, holder string) {
	c.holders[b] = holder
	if l := (length{b.Addr().Is6(), b.Bits()}); !slices.Contains(c.lengths, l) {
		c.lengths = append(c.lengths, l)
	}
}

func (c *claims) overlapping(b netip.Prefix) (holder string, ok bool) {
	longer := false
	for _, l := range c.lengths {
		switch {
		case l.six != b.Addr().Is6():
		case l.bits > b.Bits():
			longer = true
		default:
			p, _ := b.Addr().Prefix(l.bits)
			if holder, ok = c.holders[p]; ok {
				return holder, true
			}
		}
	}
	if !longer {
		return "", false
	}
	for other, holder := range c.holders {
		if b.Overlaps(other) {
			return holder, true
		}
	}
	return "", false
}
