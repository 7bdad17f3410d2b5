package compile

import (
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// A rule for everybody, for all addresses of a family, or for all pods is a match of a group. It
// would otherwise be one of each class, and each new class would get one.

// groups are in the order of arrays by group.
var groups = [4]Identity{ruleset.AllIPv4, ruleset.AllIPv6, ruleset.PodsIPv4, ruleset.PodsIPv6}

// universe says of what a criterion holds without exception, and so to which groups it applies.
type universe int

const (
	none universe = iota
	allIPv4
	allIPv6
	allPods
	universes
)

// universalPeer is a peer by its bit.
type universalPeer struct {
	universe
	bit bit
}

// contains reports whether the group is part of the universe.
func (u universe) contains(group int) bool {
	switch u {
	case allIPv4, allIPv6:
		return group%2 == int(u-allIPv4)
	case allPods:
		return group >= 2
	}
	return false
}

func (c *criterion) universe() universe {
	switch {
	case len(c.networks) == 1 && isUniversal(c.networks[0]):
		if c.networks[0].Prefix.Addr().Is4() {
			return allIPv4
		}
		return allIPv6
	case c.pods != nil && c.pods.Namespace == "" && c.pods.Namespaces.Empty() && c.pods.Pods.Empty():
		return allPods
	}
	return none
}

// groupOf returns a group in which a class is, as far as the profile's rules tell groups apart.
func (p *profile) groupOf(k *class) (group int) {
	has := func(s *signature, u universe) bool {
		if s == nil || p.universes[u] == 0 {
			return false
		}
		_, found := slices.BinarySearch(s.bits, p.universes[u])
		return found
	}
	// If the rules ask for one family, the classes without that bit are of the other one.
	if has(k.network, allIPv6) || p.universes[allIPv4] != 0 && !has(k.network, allIPv4) {
		group = 1
	}
	if has(k.pod, allPods) {
		group += 2
	}
	return group
}

// always returns what rules allow to all members of a group, whatever else rules may ask for that
// members have and others don't. It is what fold returns for each class in the group, or less.
func (p *profile) always(group int) ports {
	undecided, allowed := allPorts, allPorts
	for _, tier := range []policy.Tier{policy.Admin, policy.Namespaced, policy.Baseline} {
		var passed ports
		left := undecided // in some class, at least
		for _, r := range p.rules {
			if r.tier != tier {
				continue
			}
			some := r.ports
			if len(r.egress) > 0 {
				some = some.union(&namedPorts)
			}
			some = some.intersect(&left)
			switch r.action {
			case policy.Accept:
			case policy.Pass:
				passed = passed.union(&some)
			default:
				allowed = allowed.subtract(&some)
			}
			if r.anyone || slices.ContainsFunc(r.universal, func(u universalPeer) bool { return u.contains(group) }) {
				left = left.subtract(&r.ports)
			}
		}
		undecided = left.union(&passed)
		if tier == policy.Namespaced && p.isolates {
			return allowed.subtract(&undecided)
		}
	}
	return allowed
}

// buildGroups finds what the groups are allowed. What all addresses are needs no match of the pods
// among them.
func (p *profile) buildGroups() {
	for g := range groups {
		p.certain[g] = p.always(g)
		var general ports
		if g >= 2 {
			general = p.certain[g-2]
		}
		p.groups[g] = &allowed{p.certain[g].matches(&general)}
	}
}

// isUniversal reports whether networks are all addresses of a family.
func isUniversal(n *policy.Networks) bool {
	return n.Prefix.Bits() == 0 && !slices.ContainsFunc(n.Except, netip.Prefix.IsValid)
}
