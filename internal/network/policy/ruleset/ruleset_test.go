package ruleset

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/huskd/husk/internal/network/policy"
)

func addr(n int) netip.Addr {
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, uint32(10<<24+n))))
}

// TestIndex compares an index with the ruleset.
func TestIndex(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	ids := []Identity{World, 1, 2, 3, FirstPod, FirstPod + 1, AllIPv4, AllIPv6, PodsIPv4, PodsIPv6}
	for range 200 {
		rs := New()
		for range 5 {
			rs.Identities[addr(r.IntN(60))] = ids[4+r.IntN(2)]
		}
		for at := r.IntN(8); at < 60; at += r.IntN(8) {
			n := Range{addr(at), addr(at + r.IntN(6)), Identity(r.IntN(4))}
			rs.Ranges[n.First] = n
			at += 6
		}
		for _, id := range []ProfileID{"a", "b"} {
			p := Profile{ID: id, Allow: map[Match]struct{}{}}
			for range r.IntN(6) {
				first := uint16(r.IntN(4))
				p.Allow[Match{ids[r.IntN(len(ids))], Protocol([]int{6, 17, 256, 257}[r.IntN(4)]), first, first + uint16(r.IntN(3))}] = struct{}{}
			}
			rs.Profiles[id] = p
		}
		for i := range 4 {
			ids := []ProfileID{"", "a", "b"}
			rs.Pods[addr(i)] = Pod{addr(i), ids[r.IntN(3)], ids[r.IntN(3)], ids[r.IntN(3)]}
		}
		index := rs.Index()
		for range 200 {
			f := policy.Flow{From: addr(r.IntN(8)), To: addr(r.IntN(64)), Protocol: []policy.Protocol{6, 17, 1}[r.IntN(3)], Port: uint16(r.IntN(6)), ToNode: r.IntN(4) == 0}
			if got, want := index.Allows(f), rs.Allows(f); got != want {
				t.Fatalf("%+v: the index says %v, the ruleset %v: %+v", f, got, want, rs)
			}
		}
	}
}
