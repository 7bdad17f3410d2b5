package connlimit

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"
)

// What there is to share: of a table's entries, all pods together may hold the pods' part, and when
// they do, none may hold more than the others that want as much. The rest is for the node and for
// connections from elsewhere.
const podsPart = 0.5

const (
	// easePart is the share of the pods' part below which a pod that is refused is let in again.
	easePart = 0.75
	// fullPart is the share of the table from which on pods lose what they hold above their limit.
	fullPart = 0.9

	// A pod is refused for refuseTime at least, and after it has lost connections for cutTime: one
	// whose entries expire quickly would fill the table again and again.
	refuseTime = time.Minute
	cutTime    = 5 * time.Minute
)

// owner is who began connections: a pod of this node, or an address of another node's pod.
type owner struct {
	Pod  string // as namespace/name; empty is another node's
	Addr netip.Addr
}

func (o owner) String() string {
	if o.Pod != "" {
		return "pod " + o.Pod
	}
	return "pod " + o.Addr.String() + " of another node"
}

// level returns the most that each may hold so that all together hold no more than total, and
// math.MaxInt if they do anyway. Who holds less than the level isn't affected by it.
func level(held map[owner]int, total int) int {
	all := make([]int, 0, len(held))
	for _, n := range held {
		all = append(all, n)
	}
	slices.Sort(all)
	for i, n := range all {
		if part := total / (len(all) - i); n > part {
			return part
		}
		total -= n
	}
	return math.MaxInt
}

// refusal is of a pod that can't begin connections.
type refusal struct {
	held, limit int
	until       time.Time // it lasts until then at least
	cut         bool      // the pod has lost connections
}

// shares decides who is refused.
type shares struct{ refused map[owner]*refusal }

// verdict is what changed with a count of who holds how much of a table.
type verdict struct {
	refused, admitted []owner
	surplus           map[owner]int // how many connections each loses
}

// judge takes a new count.
func (s *shares) judge(now time.Time, held map[owner]int, entries, size int) (v verdict) {
	pods := int(podsPart * float64(size))
	limit, ease := level(held, pods), level(held, int(easePart*float64(pods)))
	full := float64(entries) >= fullPart*float64(size)
	for o, n := range held {
		if n <= limit {
			continue
		}
		r := s.refused[o]
		if r == nil {
			r = &refusal{until: now.Add(refuseTime)}
			s.refused[o] = r
			v.refused = append(v.refused, o)
		}
		r.limit = limit
		if full {
			if v.surplus == nil {
				v.surplus = map[owner]int{}
			}
			v.surplus[o] = n - limit
			r.cut, r.until = true, now.Add(cutTime)
		}
	}
	for o, r := range s.refused {
		if r.held = held[o]; r.held <= ease && !now.Before(r.until) {
			delete(s.refused, o)
			v.admitted = append(v.admitted, o)
		}
	}
	for _, list := range [][]owner{v.refused, v.admitted} {
		slices.SortFunc(list, func(a, b owner) int { return cmp.Or(cmp.Compare(a.Pod, b.Pod), a.Addr.Compare(b.Addr)) })
	}
	return v
}
