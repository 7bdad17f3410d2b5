package peer_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/huskd/husk/internal/network/peer"
)

// TestAcceptor compares an Acceptor with Accept over random sequences of views, in some of which
// records are refused.
func TestAcceptor(t *testing.T) {
	cluster := []netip.Prefix{netip.MustParsePrefix("10.201.0.0/16")}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 1))
		record := func() *peer.Node {
			n := node(fmt.Sprintf("n%02d", random.IntN(12)), fmt.Sprintf("192.0.2.%d", 1+random.IntN(60)), fmt.Sprintf("10.201.%d.0/24", random.IntN(200)))
			if random.IntN(3) > 0 {
				n.VXLAN = &peer.VXLAN{VNI: 1, Port: 8472, MAC: peer.MAC{2, 5: byte(1 + random.IntN(200))}}
			}
			if random.IntN(3) == 0 {
				n.WireGuard = []peer.WireGuard{{Key: peer.Key{byte(1 + random.IntN(200))}, Port: 51820}}
			}
			if random.IntN(20) == 0 {
				n.Blocks[0] = netip.MustParsePrefix("10.99.0.0/24")
			}
			return &n
		}
		self := node("n99", "192.0.2.1", "10.201.0.0/24")
		var a peer.Acceptor
		var records []*peer.Node
		for step := range 60 {
			records = slices.Clone(records)
			for range random.IntN(3) {
				changed := record()
				records = slices.DeleteFunc(records, func(r *peer.Node) bool { return r.Name == changed.Name })
				if random.IntN(4) > 0 {
					records = append(records, changed)
				}
			}
			want, wantNotes := peer.Accept(cluster, self, records)
			got, notes := a.Accept(cluster, self, records)
			if !slices.EqualFunc(got, want, func(a, b *peer.Node) bool { return a.Equal(*b) }) || !slices.Equal(notes, wantNotes) {
				t.Fatalf("seed %d, step %d: got %v, %v; want %v, %v", seed, step, got, notes, want, wantNotes)
			}
		}
	}
}
