package nodes

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/peer"
)

// withLearned adds a peer for each next hop of learned prefixes that belong to no node of the
// registry. It is so for machines that only routers know. The notes name next hops of too many.
func withLearned(cluster []netip.Prefix, self peer.Node, peers []*peer.Node, learned map[netip.Prefix][]netip.Addr) (all []*peer.Node, notes []string) {
	known := make(map[netip.Prefix]bool)
	blocks := slices.Clone(self.Blocks)
	for _, n := range peers {
		blocks = append(blocks, n.Blocks...)
	}
	for _, b := range blocks {
		known[b] = true
	}
	at := make(map[netip.Addr][]netip.Prefix)
	for prefix, via := range learned {
		if !known[prefix] && !slices.ContainsFunc(blocks, prefix.Overlaps) {
			at[via[0]] = append(at[via[0]], prefix)
		}
	}
	var strangers []*peer.Node
	for via, blocks := range at {
		if len(blocks) > peer.MaxBlocks {
			notes = append(notes, fmt.Sprintf("bgp: next hop %v: %d subnets of no node: at most %d can be used, so none is", via, len(blocks), peer.MaxBlocks))
			continue
		}
		slices.SortFunc(blocks, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
		strangers = append(strangers, &peer.Node{Version: peer.Version, Name: via.String(), Addresses: []netip.Addr{via}, Blocks: blocks})
	}
	// They may announce nothing but subnets of the cluster's, like other nodes. What can't be used
	// is no mistake of this cluster's nodes, and not reported.
	accepted, _ := peer.Accept(cluster, self, strangers)
	slices.Sort(notes)
	return merge(peers, accepted), notes
}

// merge returns both lists in the order of the names. A next hop with the name of a node is left
// out.
func merge(peers, strangers []*peer.Node) []*peer.Node {
	out := slices.Clone(peers)
	for _, n := range strangers {
		i, taken := slices.BinarySearchFunc(out, n.Name, func(p *peer.Node, name string) int { return strings.Compare(p.Name, name) })
		if !taken && len(n.Blocks) > 0 {
			out = slices.Insert(out, i, n)
		}
	}
	return out
}
