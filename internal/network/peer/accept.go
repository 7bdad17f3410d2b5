package peer

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Accept returns the records that a node may route by, in the order of their names, and a note for
// each record or block that it may not. The blocks must be inside the cluster's pod subnets and
// mustn't overlap a block of self; nor may a peer have an address of self or of a pod. Of two peers
// with overlapping blocks, or the same MAC or key, the one whose name comes first keeps it, so that
// all nodes agree.
func Accept(cluster []netip.Prefix, self Node, records []*Node) (peers []*Node, notes []string) {
	return new(Acceptor).Accept(cluster, self, records)
}

// Acceptor accepts the records of one view after another. As long as no record is refused, it looks
// only at those that differ from the last view's: most often that is one of thousands. The zero
// Acceptor is ready.
type Acceptor struct {
	cluster []netip.Prefix
	self    Node
	// records are the last ones, and peers what was accepted of them, in the same order. They are
	// only used if nothing was refused.
	records    []*Node
	peers      []*Node
	clean      bool
	taken      claims
	identities map[any]string
}

// Accept returns what the function Accept returns. A peer that hasn't changed has the same address
// in memory as in the last answer. The caller must modify neither the records nor the peers
// afterwards.
func (a *Acceptor) Accept(cluster []netip.Prefix, self Node, records []*Node) (peers []*Node, notes []string) {
	byName := func(a, b *Node) int { return strings.Compare(a.Name, b.Name) }
	if !slices.IsSortedFunc(records, byName) {
		records = slices.Clone(records)
		slices.SortFunc(records, byName)
	}
	if a.clean && slices.Equal(cluster, a.cluster) && self.Equal(a.self) {
		if peers, ok := a.change(records); ok {
			a.records, a.peers = records, peers
			return peers, nil
		}
	}
	*a = Acceptor{cluster: cluster, self: self, records: records, peers: make([]*Node, 0, len(records)), clean: true,
		taken: claims{holders: make(map[netip.Prefix]string, len(records))}, identities: make(map[any]string, len(records))}
	self.claimIdentities(a.identities)
	for _, b := range self.Blocks {
		a.taken.add(b, self.Name)
	}
	for i := range records {
		if records[i].Name == self.Name {
			a.clean = false // the lists differ
			continue
		}
		r, ok, refused := a.admit(*records[i])
		notes = append(notes, refused...)
		if ok {
			a.peers = append(a.peers, &r)
		}
	}
	a.clean = a.clean && len(notes) == 0
	return a.peers, notes
}

// change accepts records of which few differ from the last ones. It returns false, and the Acceptor
// must begin anew, if that isn't so or something is refused.
func (a *Acceptor) change(records []*Node) (peers []*Node, ok bool) {
	peers = make([]*Node, len(records))
	var changed []int
	old := 0
	for i := range records {
		for old < len(a.records) && a.records[old].Name < records[i].Name {
			a.forget(a.records[old])
			old++
		}
		if old == len(a.records) || a.records[old].Name != records[i].Name {
			changed = append(changed, i)
			continue
		}
		if peers[i] = a.peers[old]; a.records[old] != records[i] && !a.records[old].equal(records[i]) {
			a.forget(a.records[old])
			changed = append(changed, i)
		}
		old++
	}
	for ; old < len(a.records); old++ {
		a.forget(a.records[old])
	}
	for _, i := range changed {
		r, ok, notes := a.admit(*records[i])
		if !ok || len(notes) > 0 || r.Name == a.self.Name {
			a.clean = false
			return nil, false
		}
		peers[i] = &r
	}
	return peers, true
}

// forget releases what an accepted record has taken.
func (a *Acceptor) forget(r *Node) {
	for _, b := range r.Blocks {
		delete(a.taken.holders, b)
	}
	if r.VXLAN != nil {
		delete(a.identities, r.VXLAN.MAC)
		delete(a.identities, r.VXLAN.MAC6)
	}
	for _, w := range r.WireGuard {
		delete(a.identities, w.Key)
	}
	if r.Rotation != nil {
		delete(a.identities, r.Rotation.Key)
	}
}

// admit returns what is accepted of a record, and false if that is nothing.
func (a *Acceptor) admit(r Node) (_ Node, ok bool, notes []string) {
	if err := r.Check(); err != nil {
		return r, false, []string{err.Error()}
	}
	if i := slices.IndexFunc(r.Addresses, func(own netip.Addr) bool { return slices.Contains(a.self.Addresses, own) }); i >= 0 {
		return r, false, []string{fmt.Sprintf("node %s has this node's address %v: give one of them another", r.Name, r.Addresses[i])}
	}
	// Encapsulated packets are taken from nodes, and pods would be taken for some.
	if i := slices.IndexFunc(r.Addresses, func(at netip.Addr) bool { return inside(a.cluster, netip.PrefixFrom(at, at.BitLen())) }); i >= 0 {
		return r, false, []string{fmt.Sprintf("node %s has the address %v, which is inside the pod subnets %v", r.Name, r.Addresses[i], a.cluster)}
	}
	blocks := make([]netip.Prefix, 0, len(r.Blocks))
	for _, b := range r.Blocks {
		if !inside(a.cluster, b) {
			notes = append(notes, fmt.Sprintf("block %v of node %s is outside the pod subnets %v", b, r.Name, a.cluster))
			continue
		}
		if holder, ok := a.taken.overlapping(b); ok {
			notes = append(notes, fmt.Sprintf("block %v of node %s overlaps one of node %s", b, r.Name, holder))
			continue
		}
		a.taken.add(b, r.Name)
		blocks = append(blocks, b)
	}
	r.Blocks = blocks
	return r, true, append(notes, r.claimIdentities(a.identities)...)
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
		n.WireGuard, n.Rotation = nil, nil
	}
	if n.Rotating() && !claim(n.Rotation.Key, "key") {
		n.Rotation = nil
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
