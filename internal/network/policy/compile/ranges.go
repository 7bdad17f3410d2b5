package compile

import (
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// segment is a range of addresses that networks in use contain, and nodes have, alike. Segments
// that touch have different signatures.
type segment struct {
	first, last netip.Addr
	signature   *signature
	class       *class
}

// edge is where a bit begins or ends. An end is the first address without it.
type edge struct {
	at    netip.Addr
	bit   bit
	begin bool
}

// edges returns those of the criteria of one family's addresses.
func edges(all map[string]*criterion, nodes map[string]*policy.Node, v4 bool) []edge {
	var out []edge
	add := func(b bit, first, last netip.Addr) {
		out = append(out, edge{first, b, true})
		if next := last.Next(); next.IsValid() {
			out = append(out, edge{next, b, false})
		}
	}
	for _, c := range all {
		switch {
		case !c.settled:
		case c.networks != nil:
			for _, r := range union(c.networks, v4) {
				add(c.bit, r[0], r[1])
			}
		case c.nodes != nil:
			for _, n := range nodes {
				if !c.nodes.Matches(n.Labels) {
					continue
				}
				for _, addr := range n.Addresses {
					if usable(addr) && addr.Is4() == v4 {
						add(c.bit, addr, addr)
					}
				}
			}
		}
	}
	return out
}

// contained returns the first and last addresses of what networks contain.
func contained(n *policy.Networks) [][2]netip.Addr {
	var except [][2]netip.Addr
	for _, e := range n.Except {
		if e.IsValid() && e.Overlaps(n.Prefix) {
			first, last := bounds(e)
			except = append(except, [2]netip.Addr{first, last})
		}
	}
	slices.SortFunc(except, func(a, b [2]netip.Addr) int { return a[0].Compare(b[0]) })
	var out [][2]netip.Addr
	first, last := bounds(n.Prefix)
	for _, e := range except {
		if first.Less(e[0]) {
			out = append(out, [2]netip.Addr{first, e[0].Prev()})
		}
		if !e[1].Less(last) {
			return out
		}
		if next := e[1].Next(); first.Less(next) {
			first = next
		}
	}
	return append(out, [2]netip.Addr{first, last})
}

// union returns the ranges of one family's addresses that one of the networks contains.
func union(all []*policy.Networks, v4 bool) [][2]netip.Addr {
	var ranges [][2]netip.Addr
	for _, n := range all {
		if n.Prefix.Addr().Is4() == v4 {
			ranges = append(ranges, contained(n)...)
		}
	}
	slices.SortFunc(ranges, func(a, b [2]netip.Addr) int { return a[0].Compare(b[0]) })
	var out [][2]netip.Addr
	for _, r := range ranges {
		if n := len(out); n > 0 && !out[n-1][1].Less(r[0]) {
			if out[n-1][1].Less(r[1]) {
				out[n-1][1] = r[1]
			}
			continue
		}
		out = append(out, r)
	}
	return out
}

// segments returns those that edges make, in order.
func (c *classes) segments(edges []edge) []segment {
	slices.SortFunc(edges, func(a, b edge) int { return a.at.Compare(b.at) })
	var out []segment
	var active, bits []bit // in order; several nodes may have an address, and so its bit
	for len(edges) > 0 {
		at := edges[0].at
		for len(edges) > 0 && edges[0].at == at {
			if i, _ := slices.BinarySearch(active, edges[0].bit); edges[0].begin {
				active = slices.Insert(active, i, edges[0].bit)
			} else {
				active = slices.Delete(active, i, i+1)
			}
			edges = edges[1:]
		}
		if n := len(out); n > 0 && !out[n-1].last.IsValid() {
			out[n-1].last = at.Prev()
		}
		bits = append(bits[:0], active...)
		s := c.signature(bits)
		switch n := len(out); {
		case s == nil:
		case n > 0 && out[n-1].signature == s && out[n-1].last.Next() == at:
			out[n-1].last = netip.Addr{}
		default:
			out = append(out, segment{first: at, signature: s})
		}
	}
	if n := len(out); n > 0 && !out[n-1].last.IsValid() {
		_, out[n-1].last = bounds(netip.PrefixFrom(out[n-1].first, 0))
	}
	return out
}

// at returns the segment that contains an address, or nil.
func at(segments []segment, addr netip.Addr) *segment {
	i, found := slices.BinarySearchFunc(segments, addr, func(s segment, addr netip.Addr) int { return s.first.Compare(addr) })
	if !found {
		i--
	}
	if i < 0 || segments[i].last.Less(addr) || segments[i].last.Is4() != addr.Is4() {
		return nil
	}
	return &segments[i]
}

// cut replaces the segments after networks, nodes, or what is asked of them have changed.
func (c *classes) cut(old []segment, v4, v6 []edge) []segment {
	next := append(c.segments(v4), c.segments(v6)...)
	for i := range next {
		n := &next[i]
		c.hold(nil, n.signature)
		n.class = c.class(classKey{network: n.signature})
		n.class.size++
		var from *class
		if o := at(old, n.first); o != nil {
			from = o.class
		}
		if from != n.class {
			c.moves[move{from, n.class}]++
		}
	}
	for i := range old {
		c.hold(old[i].signature, nil)
		old[i].class.size--
		c.moves[move{old[i].class, nil}] += 0 // it may be gone
	}
	return next
}

// ranges returns segments as the kernel has them.
func ranges(segments []segment) []ruleset.Range {
	out := make([]ruleset.Range, len(segments))
	for i, s := range segments {
		out[i] = ruleset.Range{First: s.first, Last: s.last, Identity: s.class.id}
	}
	return out
}

// usable reports whether packets can have the address.
func usable(addr netip.Addr) bool { return addr.IsValid() && !addr.Is4In6() && addr.Zone() == "" }
