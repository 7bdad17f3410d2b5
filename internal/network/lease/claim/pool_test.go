package claim_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/network/lease/claim"
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// TestNextUsesPoolsUp: nodes get all blocks of a pool, each once, and then none.
func TestNextUsesPoolsUp(t *testing.T) {
	for _, c := range []struct {
		pool  claim.Pool
		six   bool
		taken []netip.Prefix
		want  int
	}{
		{claim.Pool{Subnets: prefixes("10.201.0.0/16")}, false, nil, 256},
		{claim.Pool{Subnets: prefixes("10.201.0.0/16", "fd68::/48", "10.3.0.0/20")}, false, nil, 256 + 16},
		{claim.Pool{Subnets: prefixes("10.201.0.0/16"), Length4: 26}, false, nil, 1024},
		{claim.Pool{Subnets: prefixes("10.201.0.0/24")}, false, nil, 1},
		{claim.Pool{Subnets: prefixes("10.201.0.0/20")}, false, prefixes("10.201.1.0/25", "10.201.1.128/26", "10.201.4.0/22", "10.0.0.0/24"), 16 - 1 - 4},
		{claim.Pool{Subnets: prefixes("10.201.0.0/20")}, false, prefixes("10.0.0.0/8"), 0},
		{claim.Pool{Subnets: prefixes("10.201.0.0/20")}, true, nil, 0},
		{claim.Pool{Subnets: prefixes("fd68:7573:6b00::/56")}, true, nil, 256},
		{claim.Pool{Subnets: prefixes("fd68:7573:6b00:1::/64"), Length6: 72}, true, nil, 256},
		{claim.Pool{Subnets: prefixes("fd68:7573:6b00:1::/60"), Length6: 66}, true, prefixes("fd68:7573:6b00:1:4000::/80"), 63},
	} {
		if c.pool.Subnets[0].Addr().Is6() {
			c.pool.Subnets[0] = c.pool.Subnets[0].Masked()
		}
		if err := c.pool.Check(); err != nil {
			t.Errorf("%v: %v", c.pool, err)
		}
		taken, got := slices.Clone(c.taken), 0
		for ; ; got++ {
			b, ok := c.pool.Next(c.six, fmt.Sprint("n", got), taken)
			if !ok {
				break
			}
			if slices.ContainsFunc(taken, b.Overlaps) || !slices.ContainsFunc(c.pool.Subnets, b.Overlaps) || b != b.Masked() {
				t.Fatalf("%v: got %v with %v taken", c.pool, b, taken)
			}
			taken = append(taken, b)
		}
		if got != c.want {
			t.Errorf("%v with %v taken: %d blocks, want %d", c.pool, c.taken, got, c.want)
		}
	}
}

// TestNextSpreads: nodes that start at the same time seldom want the same block, also of a subnet
// with more blocks than there are small numbers, and a node's blocks are next to each other.
func TestNextSpreads(t *testing.T) {
	for _, subnet := range []string{"10.0.0.0/11", "fd68::/48", "fd00::/16"} {
		pool := claim.Pool{Subnets: prefixes(subnet)}
		six := pool.Subnets[0].Addr().Is6()
		seen := map[netip.Prefix]bool{}
		for n := range 1000 {
			b, _ := pool.Next(six, fmt.Sprintf("node-%d.example.com", n), nil)
			seen[b] = true
			again, _ := pool.Next(six, fmt.Sprintf("node-%d.example.com", n), []netip.Prefix{b})
			if again.Addr().Prev().Compare(b.Addr()) < 0 || !b.Contains(again.Addr().Prev()) && again.Addr() != pool.Subnets[0].Addr() {
				t.Fatalf("%v comes after %v", again, b)
			}
		}
		if len(seen) < 900 {
			t.Errorf("1000 nodes want %d blocks of %v", len(seen), subnet)
		}
	}
}

func TestPoolCheck(t *testing.T) {
	for _, c := range []struct {
		pool claim.Pool
		want string
	}{
		{claim.Pool{}, "no pod subnets"},
		{claim.Pool{Subnets: []netip.Prefix{netip.MustParsePrefix("10.201.0.1/16")}}, "not a subnet"},
		{claim.Pool{Subnets: prefixes("10.201.0.0/16", "10.201.4.0/22")}, "overlaps another"},
		{claim.Pool{Subnets: prefixes("10.201.0.0/26")}, "smaller than a block"},
		{claim.Pool{Subnets: prefixes("10.201.0.0/16"), Length4: 31}, "leaves no addresses for pods"},
		{claim.Pool{Subnets: prefixes("fd00::/16"), Length6: 112}, "too many blocks"},
	} {
		if err := c.pool.Check(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v, want %q", c.pool, err, c.want)
		}
	}
}
