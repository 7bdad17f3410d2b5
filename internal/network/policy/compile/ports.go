package compile

import (
	"slices"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// span is a range of ports.
type span struct{ first, last uint16 }

// spans are in order, disjoint, and not adjacent.
type spans []span

// everyPort is never modified.
var everyPort = spans{{0, 65535}}

// ports is a set of ports of each protocol in protocols. The last element is for all protocols
// without ports, and is either empty or everyPort.
type ports [4]spans

// protocols are those of a set's first elements.
var protocols = [3]policy.Protocol{policy.TCP, policy.UDP, policy.SCTP}

// other is the element of the protocols without ports.
const other = 3

var (
	allPorts = ports{everyPort, everyPort, everyPort, everyPort}
	// namedPorts are those that may have a name.
	namedPorts = ports{everyPort, everyPort, everyPort}
)

// add adds ranges of ports of a protocol that has ports.
func (p *ports) add(protocol policy.Protocol, ranges ...span) {
	ranges = slices.DeleteFunc(ranges, func(s span) bool { return s.first > s.last })
	if i := slices.Index(protocols[:], protocol); i >= 0 && len(ranges) > 0 {
		p[i] = p[i].union(spans{}.merge(ranges))
	}
}

func (p *ports) union(q *ports) ports { return p.each(q, spans.union) }

func (p *ports) intersect(q *ports) ports { return p.each(q, spans.intersect) }

func (p *ports) subtract(q *ports) ports { return p.each(q, spans.subtract) }

func (p *ports) each(q *ports, f func(spans, spans) spans) ports {
	var out ports
	for i := range out {
		out[i] = f(p[i], q[i])
	}
	return out
}

// full reports whether the set has all ports of all protocols.
func (p *ports) full() bool {
	return !slices.ContainsFunc(p[:], func(s spans) bool { return !slices.Equal(s, everyPort) })
}

// contain reports whether a range is part of one of the spans.
func (s spans) contain(part span) bool {
	i, found := slices.BinarySearchFunc(s, part.first, func(t span, first uint16) int { return int(t.first) - int(first) })
	if !found {
		i--
	}
	return i >= 0 && part.last <= s[i].last
}

func (s spans) union(t spans) spans {
	switch {
	case len(s) == 0:
		return t
	case len(t) == 0:
		return s
	}
	return s.merge(t)
}

// merge is union, also of ranges that are in no order, overlap, or are adjacent.
func (s spans) merge(t []span) spans {
	all := slices.Concat(s, t)
	slices.SortFunc(all, func(a, b span) int { return int(a.first) - int(b.first) })
	out := all[:1]
	for _, next := range all[1:] {
		if last := &out[len(out)-1]; int(next.first) <= int(last.last)+1 {
			last.last = max(last.last, next.last)
		} else {
			out = append(out, next)
		}
	}
	return out
}

func (s spans) intersect(t spans) spans {
	var out spans
	for len(s) > 0 && len(t) > 0 {
		if first, last := max(s[0].first, t[0].first), min(s[0].last, t[0].last); first <= last {
			out = append(out, span{first, last})
		}
		if s[0].last < t[0].last {
			s = s[1:]
		} else {
			t = t[1:]
		}
	}
	return out
}

func (s spans) subtract(t spans) spans {
	var out spans
	for _, from := range s {
		rest := true
		for len(t) > 0 && t[0].last < from.first {
			t = t[1:]
		}
		for _, hole := range t {
			if hole.first > from.last {
				break
			}
			if hole.first > from.first {
				out = append(out, span{from.first, hole.first - 1})
			}
			if hole.last >= from.last {
				rest = false
				break
			}
			from.first = hole.last + 1
		}
		if rest {
			out = append(out, from)
		}
	}
	return out
}

// matches returns the set as the kernel has it, in order and without an identity. It leaves out the
// ranges that are part of others.
func (p *ports) matches(others *ports) []ruleset.Match {
	if p.full() && !others.full() {
		return []ruleset.Match{{Protocol: ruleset.Every}}
	}
	var out []ruleset.Match
	for i, protocol := range protocols {
		for _, s := range p[i] {
			if !others[i].contain(s) {
				out = append(out, ruleset.Match{Protocol: ruleset.Protocol(protocol), First: s.first, Last: s.last})
			}
		}
	}
	if len(p[other]) > 0 && len(others[other]) == 0 {
		out = append(out, ruleset.Match{Protocol: ruleset.Other})
	}
	return out
}
