package node

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// pair are two nodes by the numbers of their uplinks, the smaller first.
type pair struct{ a, b int }

func pairOf(a, b *Node) pair {
	return pair{min(a.Uplink.Number, b.Uplink.Number), max(a.Uplink.Number, b.Uplink.Number)}
}

// fault is what the underlay does with packets between two nodes.
type fault struct {
	loss int // of a thousand packets, how many are dropped
	mtu  int // longer ones are dropped without a word; 0 if none are
	// drop has expressions of nftables that match what is dropped, one on each line.
	drop string
}

// Cut drops all packets between two nodes, in both directions.
func (u *Underlay) Cut(a, b *Node) { u.change(a, b, func(f *fault) { f.loss = 1000 }) }

// Drop drops a share of the packets between two nodes, in both directions. The share is 0 to 1.
func (u *Underlay) Drop(a, b *Node, share float64) {
	u.change(a, b, func(f *fault) { f.loss = int(share * 1000) })
}

// Swallow drops packets between two nodes that are longer than mtu bytes, without telling the
// sender, as a tunnel between them with a wrong MTU does.
func (u *Underlay) Swallow(a, b *Node, mtu int) { u.change(a, b, func(f *fault) { f.mtu = mtu }) }

// Filter drops packets between two nodes that one of the expressions of nftables matches, as a
// firewall or the source check of a cloud does.
func (u *Underlay) Filter(a, b *Node, expressions ...string) {
	u.change(a, b, func(f *fault) { f.drop = strings.Join(expressions, "\n") })
}

// Heal ends all faults between two nodes.
func (u *Underlay) Heal(a, b *Node) { u.change(a, b, func(f *fault) { *f = fault{} }) }

// Isolate cuts a node off from all others and from the router. Heal doesn't end it; Join does.
func (u *Underlay) Isolate(n *Node) {
	u.t.Helper()
	batch(u.t, u.Net(), "link set "+n.Uplink.Name()+" down")
}

// Join ends Isolate.
func (u *Underlay) Join(n *Node) {
	u.t.Helper()
	batch(u.t, u.Net(), "link set "+n.Uplink.Name()+" up")
}

func (u *Underlay) change(a, b *Node, change func(*fault)) {
	u.t.Helper()
	p := pairOf(a, b)
	f := u.faults[p]
	change(&f)
	if f == (fault{}) {
		delete(u.faults, p)
	} else {
		u.faults[p] = f
	}
	u.nft(u.rules())
}

// rules returns the rules of all faults. They mark a packet by the port that it came from, and drop
// it at the port that it leaves by: that holds for packets within a segment and for those through
// the router, whatever their addresses are.
func (u *Underlay) rules() string {
	const table = "table bridge faults"
	var b strings.Builder
	b.WriteString(table + "\ndelete " + table + "\n")
	if len(u.faults) == 0 {
		return b.String()
	}
	b.WriteString(table + " {\n chain from { type filter hook prerouting priority 0;\n")
	for _, l := range u.uplinks {
		fmt.Fprintf(&b, "  iifname { %[1]q, \"t%[1]s\" } meta mark set %[2]d\n", l.Name(), l.Number)
	}
	b.WriteString(" }\n chain to { type filter hook postrouting priority 0;\n")
	for _, p := range slices.SortedFunc(maps.Keys(u.faults), func(x, y pair) int { return cmp.Or(x.a-y.a, x.b-y.b) }) {
		f := u.faults[p]
		for _, way := range []pair{p, {p.b, p.a}} {
			match := fmt.Sprintf("  meta mark %d oifname { \"n%[2]d\", \"tn%[2]d\" }", way.a, way.b)
			if f.loss > 0 {
				fmt.Fprintf(&b, "%s numgen random mod 1000 <= %d counter drop\n", match, f.loss-1)
			}
			if f.mtu > 0 {
				fmt.Fprintf(&b, "%s meta length > %d counter drop\n", match, f.mtu)
			}
			for expression := range strings.Lines(f.drop) {
				fmt.Fprintf(&b, "%s %s counter drop\n", match, strings.TrimSpace(expression))
			}
		}
	}
	b.WriteString(" }\n}\n")
	return b.String()
}
