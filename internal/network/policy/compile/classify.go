package compile

import (
	"net/netip"

	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// classify finds the classes of addresses that have changed. The classes are those of the criteria
// that were known before.
func (c *Compiler) classify() {
	for _, p := range c.dirty {
		if p.dirty = false; c.pods[p.key] != p {
			continue
		}
		c.scratch = named(c.criteria.index.match(c.scratch[:0], p.Pod, c.namespaces[p.Namespace]), c.criteria.names, p.Pod)
		c.sign(p, c.classes.signature(c.scratch))
	}
	c.dirty = nil
	c.place(false)
}

// learn splits classes by new criteria. It returns false if there are none.
func (c *Compiler) learn(added []*criterion) bool {
	if len(added) == 0 {
		return false
	}
	extra := newIndex()
	var names []*criterion
	pods := false
	for _, a := range added {
		switch {
		case a.pods != nil:
			extra.add(a)
			pods = true
		case a.port != nil:
			names = append(names, a)
			pods = true
		default:
			c.recut = true
		}
	}
	if pods {
		for _, p := range c.pods {
			bits := named(extra.match(c.scratch[:0], p.Pod, c.namespaces[p.Namespace]), names, p.Pod)
			if c.scratch = bits; len(bits) == 0 {
				continue
			}
			if p.signature != nil {
				bits = append(bits, p.signature.bits...)
			}
			c.sign(p, c.classes.signature(bits))
		}
	}
	c.place(true)
	return true
}

// sign gives a pod a signature.
func (c *Compiler) sign(p *pod, s *signature) {
	if s == p.signature {
		return
	}
	c.classes.hold(p.signature, s)
	p.signature = s
	for _, addr := range p.Addresses {
		if usable(addr) {
			c.touched[addr] = struct{}{}
		}
	}
}

// place finds the segments, if they may have changed, and the classes of all addresses, or of those
// that were touched. Then it gives numbers to the classes.
func (c *Compiler) place(learned bool) {
	if c.recut {
		c.segments = c.classes.cut(c.segments, edges(c.criteria.byKey, c.nodes, true), edges(c.criteria.byKey, c.nodes, false))
	}
	if c.recut {
		c.recut, c.cut = false, true
		for addr := range c.addresses {
			c.placeAddress(addr)
		}
	} else {
		for addr := range c.touched {
			c.placeAddress(addr)
		}
	}
	if c.classes.former != nil && len(c.classes.byKey) > 1 {
		c.classes.claims, c.classes.former = c.formerClaims(), nil
	}
	c.classes.number(learned)
}

func (c *Compiler) placeAddress(addr netip.Addr) {
	a := c.addresses[addr]
	var next *class
	if a.pod != nil && a.pod.signature != nil {
		key := classKey{pod: a.pod.signature}
		if s := at(c.segments, addr); s != nil {
			key.network = s.signature
		}
		next = c.classes.class(key)
	}
	if next != a.class {
		c.classes.move(a.class, next)
		a.class = next
		c.addresses[addr] = a
		c.touched[addr] = struct{}{}
	}
}

// forget takes the bits of criteria from all signatures.
func (c *Compiler) forget(gone []*criterion) {
	bits := map[bit]bool{}
	for _, g := range gone {
		bits[g.bit] = true
		c.recut = c.recut || g.networks != nil || g.nodes != nil
	}
	for _, old := range c.classes.signatures {
		left := c.scratch[:0]
		for _, b := range old.bits {
			if !bits[b] && (b&portBit == 0 || !bits[b&^(1<<24-1)]) {
				left = append(left, b)
			}
		}
		c.scratch = left
		if old.next = old; len(left) < len(old.bits) {
			old.next = c.classes.signature(left)
		}
	}
	for _, p := range c.pods {
		if p.signature != nil {
			c.sign(p, p.signature.next)
		}
	}
	c.place(true)
}

// formerClaims returns what claims classes have to the numbers to keep.
func (c *Compiler) formerClaims() []claim {
	counts := map[claim]int{}
	for addr, a := range c.addresses {
		if id := c.classes.former.Identities[addr]; a.class != nil && id != ruleset.World {
			counts[claim{id: id, to: a.class}]++
		}
	}
	for _, s := range c.segments {
		if id := c.classes.former.Ranges[s.first].Identity; id != ruleset.World {
			counts[claim{id: id, to: s.class}]++
		}
	}
	claims := make([]claim, 0, len(counts))
	for l, count := range counts {
		l.count = count
		claims = append(claims, l)
	}
	// Numbers that no class keeps aren't reused.
	used := func(id Identity) {
		if last := &c.classes.lastID[kindOf(id)]; !id.IsGroup() {
			*last = max(*last, id)
		}
	}
	for _, id := range c.classes.former.Identities {
		used(id)
	}
	for _, r := range c.classes.former.Ranges {
		used(r.Identity)
	}
	for _, p := range c.classes.former.Profiles {
		for m := range p.Allow {
			used(m.Identity)
		}
	}
	return claims
}
