package claim_test

import (
	"errors"
	"testing"
	"time"

	"github.com/huskd/husk/internal/backoff"
	"github.com/huskd/husk/internal/network/lease/claim"
	"github.com/huskd/husk/internal/network/peer"
)

// TestAskedAgain: however often the store hasn't answered, it is asked again soon, and not by all
// nodes at once.
func TestAskedAgain(t *testing.T) {
	waits := map[time.Duration]bool{}
	for _, node := range []string{"a", "b", "c"} {
		s := claim.New(claim.Config{Node: node, Pool: claim.Pool{Subnets: prefixes("10.1.0.0/16")}}, claim.Saved{}, claim.Instant{})
		s.Announce(peer.Node{}, claim.Instant{})
		s.Snapshot(claim.Snapshot{}, 0)
		now := time.Duration(0)
		for range 100 {
			s.Kept(claim.Instant{Boot: now}, now, claim.Kept{}, errors.New("no answer"))
			a := s.Next(now)
			if a.Do != claim.Wait || a.At <= now || a.At > now+backoff.Most {
				t.Fatalf("at %v: %+v", now, a)
			}
			waits[a.At-now] = true
			now = a.At
		}
	}
	if len(waits) < 200 {
		t.Errorf("the nodes' 300 waits have only %d lengths", len(waits))
	}
}
