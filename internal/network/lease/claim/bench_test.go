package claim_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// BenchmarkSnapshot5000 is what a change of one of 5,000 nodes costs a node: taking the snapshot,
// deciding that there is nothing to do, and making the view.
func BenchmarkSnapshot5000(b *testing.B) {
	pool := claim.Pool{Subnets: prefixes("10.0.0.0/8")}
	var snap claim.Snapshot
	for i := range 5000 {
		name, session := fmt.Sprintf("n%04d", i), claim.Session(fmt.Sprint(i))
		snap.Records = append(snap.Records, &claim.Record{Session: session, Revision: int64(i), Node: peer.Node{
			Version: peer.Version, Name: name, Boot: "boot", Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})},
		}})
		snap.Claims = append(snap.Claims, claim.Claim{Node: name, Session: session, Block: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 8), byte(i), 0}), 24)})
	}
	s := claim.New(claim.Config{Node: "n2500", Boot: "boot", Pool: pool, Store: "the store"}, claim.Saved{}, claim.Instant{})
	s.Announce(snap.Records[2500].Node, claim.Instant{})
	s.Snapshot(snap, 0)
	s.Kept(claim.Instant{}, 1, claim.Kept{Session: "2500", TTL: 24 * time.Hour, Bound: prefixes("10.9.196.0/24")}, nil)
	b.ReportAllocs()
	var last peer.View
	for i := 0; b.Loop(); i++ {
		snap.Records = slices.Clone(snap.Records)
		one := *snap.Records[i%2500]
		one.Node.MTU++
		snap.Records[i%2500] = &one
		s.Snapshot(snap, 2)
		if a := s.Next(3); a.Do != claim.Wait {
			b.Fatalf("%+v", a)
		}
		if last, _ = s.View(last.Peers); len(last.Peers) != 4999 || len(last.Notes) > 0 {
			b.Fatalf("%d peers, notes %q", len(last.Peers), last.Notes)
		}
	}
}
