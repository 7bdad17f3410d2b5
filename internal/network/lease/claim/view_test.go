package claim_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// TestViewKeepsPeers changes a record and then the blocks of a session: all other peers are taken
// from the last view.
func TestViewKeepsPeers(t *testing.T) {
	var snap claim.Snapshot
	for i := range 5 {
		name, session := fmt.Sprint("n", i), claim.Session(fmt.Sprint(i))
		snap.Records = append(snap.Records, &claim.Record{Session: session, Node: peer.Node{
			Version: peer.Version, Name: name, MTU: 1500, Blocks: prefixes("10.9.9.0/24"), // a record has no say in this
		}})
		snap.Claims = append(snap.Claims, claim.Claim{Node: name, Session: session, Block: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 1, byte(i), 0}), 24)})
	}
	s := claim.New(claim.Config{Node: "n0", Pool: claim.Pool{Subnets: prefixes("10.1.0.0/16")}}, claim.Saved{}, claim.Instant{})
	view := func(last []*peer.Node) []*peer.Node {
		t.Helper()
		s.Snapshot(snap, 0)
		v, known := s.View(last)
		if !known || len(v.Peers) != 4 {
			t.Fatalf("%d peers", len(v.Peers))
		}
		return v.Peers
	}
	first := view(nil)
	if got := first[1].Blocks; !slices.Equal(got, prefixes("10.1.2.0/24")) {
		t.Errorf("n2 has blocks %v", got)
	}
	changed := *snap.Records[2]
	changed.Node.MTU = 1400
	snap.Records = slices.Clone(snap.Records)
	snap.Records[2] = &changed
	second := view(first)
	if second[0] != first[0] || second[1].MTU != 1400 || first[1].MTU != 1500 || second[2] != first[2] || second[3] != first[3] {
		t.Errorf("after a record has changed: %v, then %v", first, second)
	}
	snap.Claims = append(slices.Clone(snap.Claims), claim.Claim{Node: "n3", Session: "3", Block: netip.MustParsePrefix("10.1.30.0/24")})
	third := view(second)
	if third[0] != second[0] || third[1] != second[1] || !slices.Equal(third[2].Blocks, prefixes("10.1.3.0/24", "10.1.30.0/24")) || third[3] != second[3] {
		t.Errorf("after a claim: %v, then %v", second, third)
	}
}
