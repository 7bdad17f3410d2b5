// Package ruleset has the form of network policy that the kernel looks up: who an address is, what
// a local pod's profile allows, and which profile each local pod has. Package compile makes a
// Ruleset and keeps it up to date by Updates; package policytable writes them to nftables.
//
// A profile is a set of rules that pods of the node share. It lists everything that it allows; the
// rest is denied. So the order of policies, their tiers and priorities are dealt with when a
// profile is compiled, and a packet meets the same few lookups however many policies there are.
package ruleset

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/huskd/husk/internal/network/policy"
)

// Identity is a class of addresses that no policy in use tells apart.
type Identity uint32

// World is the identity of all addresses that have no other.
const World Identity = 0

// FirstPod is the first identity of pods' addresses. Those below are of ranges.
const FirstPod Identity = 1 << 31

// Groups are what a Match may have in place of an identity, so that a rule for many needs no Match
// for each. Nothing has one as its identity.
const (
	AllIPv4  Identity = 1<<32 - 1 - iota // every IPv4 address
	AllIPv6                              // every IPv6 address
	PodsIPv4                             // every IPv4 address with the identity of a pod
	PodsIPv6                             // every IPv6 address with the identity of a pod
)

// IsGroup reports whether the identity is one of the groups.
func (i Identity) IsGroup() bool { return i >= PodsIPv6 }

// IsPod reports whether the identity is that of pods' addresses.
func (i Identity) IsPod() bool { return i >= FirstPod && !i.IsGroup() }

// ProfileID names a profile by a hash of what it depends on. Empty means that everything is
// allowed.
type ProfileID string

// Profile is what pods accept (ingress) or may open (egress).
type Profile struct {
	ID        ProfileID
	Direction policy.Direction
	Policies  []string // names, for people
	Allow     map[Match]struct{}
}

// Match is the other end, and a range of destination ports of one protocol.
type Match struct {
	Identity Identity // or a group
	Protocol Protocol
	// First and Last are 0 and 65535 for all ports, and 0 and 0 if the protocol is Every or Other.
	First, Last uint16
}

// Protocol is the number of an IP protocol, or one of the constants.
type Protocol uint16

// Groups of protocols.
const (
	// Every protocol.
	Every Protocol = 256
	// Other are the protocols without ports: all but TCP, UDP and SCTP.
	Other Protocol = 257
)

// Range is a range of addresses of one family that is not a pod's. Ranges don't overlap.
type Range struct {
	First, Last netip.Addr
	Identity    Identity
}

// Pod is an address of a local pod with its profiles.
type Pod struct {
	Addr            netip.Addr
	Ingress, Egress ProfileID // of what the node forwards
	Node            ProfileID // what it may open to the node itself
}

// Update is a change of a Ruleset, which the kernel makes in one transaction. What an Update names
// twice is invalid.
type Update struct {
	AddProfiles     []Profile
	Allow, Disallow map[ProfileID][]Match // of profiles that stay
	// Identities are new ones of pods' addresses; World removes an address.
	Identities map[netip.Addr]Identity
	// AddRanges come after RemoveRanges, which are ranges that exist.
	RemoveRanges, AddRanges []Range
	SetPods                 []Pod
	RemovePods              []netip.Addr
	// RemoveProfiles are no pod's profiles any more.
	RemoveProfiles []ProfileID
}

// Empty reports whether the update changes nothing.
func (u *Update) Empty() bool {
	return len(u.AddProfiles)+len(u.Allow)+len(u.Disallow)+len(u.Identities)+len(u.RemoveRanges)+len(u.AddRanges)+
		len(u.SetPods)+len(u.RemovePods)+len(u.RemoveProfiles) == 0
}

// Ruleset is all that the kernel has.
type Ruleset struct {
	Profiles   map[ProfileID]Profile
	Identities map[netip.Addr]Identity
	Ranges     map[netip.Addr]Range // by First
	Pods       map[netip.Addr]Pod
}

// New returns an empty Ruleset.
func New() *Ruleset {
	return &Ruleset{map[ProfileID]Profile{}, map[netip.Addr]Identity{}, map[netip.Addr]Range{}, map[netip.Addr]Pod{}}
}

// Apply makes an update.
func (r *Ruleset) Apply(u *Update) {
	for _, p := range u.AddProfiles {
		p.Allow = maps.Clone(p.Allow)
		r.Profiles[p.ID] = p
	}
	for id, matches := range u.Disallow {
		for _, m := range matches {
			delete(r.Profiles[id].Allow, m)
		}
	}
	for id, matches := range u.Allow {
		for _, m := range matches {
			r.Profiles[id].Allow[m] = struct{}{}
		}
	}
	for addr, identity := range u.Identities {
		if identity == World {
			delete(r.Identities, addr)
			continue
		}
		r.Identities[addr] = identity
	}
	for _, old := range u.RemoveRanges {
		delete(r.Ranges, old.First)
	}
	for _, n := range u.AddRanges {
		r.Ranges[n.First] = n
	}
	for _, p := range u.SetPods {
		r.Pods[p.Addr] = p
	}
	for _, addr := range u.RemovePods {
		delete(r.Pods, addr)
	}
	for _, id := range u.RemoveProfiles {
		delete(r.Profiles, id)
	}
}

// All returns the update that makes this Ruleset of an empty one.
func (r *Ruleset) All() *Update {
	return &Update{
		AddProfiles: slices.Collect(maps.Values(r.Profiles)),
		Identities:  r.Identities,
		AddRanges:   slices.Collect(maps.Values(r.Ranges)),
		SetPods:     slices.Collect(maps.Values(r.Pods)),
	}
}

// IdentityOf returns who an address is.
func (r *Ruleset) IdentityOf(addr netip.Addr) Identity {
	if id, ok := r.Identities[addr]; ok {
		return id
	}
	for _, n := range r.Ranges {
		if n.First.Compare(addr) <= 0 && addr.Compare(n.Last) <= 0 {
			return n.Identity
		}
	}
	return World
}

// Allows reports whether the kernel lets a new connection pass, judged at those of its ends that
// are pods of Pods.
func (r *Ruleset) Allows(f policy.Flow) bool {
	if f.From == f.To {
		return true
	}
	if p, ok := r.Pods[f.From]; ok && !r.permits(p.egress(f), f.To, f) {
		return false
	}
	p, ok := r.Pods[f.To]
	return !ok || r.permits(p.Ingress, f.From, f)
}

func (r *Ruleset) permits(id ProfileID, other netip.Addr, f policy.Flow) bool {
	if id == "" {
		return true
	}
	who := membership(other, r.IdentityOf(other))
	for m := range r.Profiles[id].Allow {
		if slices.Contains(who[:], m.Identity) && m.covers(f) {
			return true
		}
	}
	return false
}

// egress returns the profile that judges a connection that the pod opens.
func (p Pod) egress(f policy.Flow) ProfileID {
	if f.ToNode {
		return p.Node
	}
	return p.Egress
}

// membership returns an address's identity, and its groups.
func membership(addr netip.Addr, id Identity) [3]Identity {
	all, pods := AllIPv6, PodsIPv6
	if addr.Is4() {
		all, pods = AllIPv4, PodsIPv4
	}
	if !id.IsPod() {
		pods = all
	}
	return [3]Identity{id, all, pods}
}

// covers reports whether the match has the flow's protocol and port.
func (m Match) covers(f policy.Flow) bool {
	switch m.Protocol {
	case Every:
		return true
	case Other:
		return !f.Protocol.HasPorts()
	}
	return m.Protocol == Protocol(f.Protocol) && m.First <= f.Port && f.Port <= m.Last
}

// Index is a copy of a Ruleset that answers Allows faster. The Ruleset tries each range of
// addresses and each match. An Index may be used concurrently.
type Index struct {
	pods       map[netip.Addr]Pod
	identities map[netip.Addr]Identity
	ranges     []Range               // sorted
	matches    map[ProfileID][]Match // sorted by identity
}

// Index returns an index of the Ruleset as it is now.
func (r *Ruleset) Index() *Index {
	x := &Index{pods: maps.Clone(r.Pods), identities: maps.Clone(r.Identities), matches: make(map[ProfileID][]Match, len(r.Profiles))}
	x.ranges = slices.SortedFunc(maps.Values(r.Ranges), func(a, b Range) int { return a.First.Compare(b.First) })
	for id, p := range r.Profiles {
		matches := slices.AppendSeq(make([]Match, 0, len(p.Allow)), maps.Keys(p.Allow))
		slices.SortFunc(matches, func(a, b Match) int { return cmp.Compare(a.Identity, b.Identity) })
		x.matches[id] = matches
	}
	return x
}

// IsPod reports whether an address is one of Pods.
func (x *Index) IsPod(addr netip.Addr) bool {
	_, ok := x.pods[addr]
	return ok
}

// Allows returns what Ruleset.Allows does.
func (x *Index) Allows(f policy.Flow) bool {
	if f.From == f.To {
		return true
	}
	if p, ok := x.pods[f.From]; ok && !x.permits(p.egress(f), f.To, f) {
		return false
	}
	p, ok := x.pods[f.To]
	return !ok || x.permits(p.Ingress, f.From, f)
}

func (x *Index) permits(id ProfileID, other netip.Addr, f policy.Flow) bool {
	if id == "" {
		return true
	}
	all := x.matches[id]
	for _, who := range membership(other, x.identityOf(other)) {
		at, _ := slices.BinarySearchFunc(all, who, func(m Match, who Identity) int { return cmp.Compare(m.Identity, who) })
		for ; at < len(all) && all[at].Identity == who; at++ {
			if all[at].covers(f) {
				return true
			}
		}
	}
	return false
}

func (x *Index) identityOf(addr netip.Addr) Identity {
	if id, ok := x.identities[addr]; ok {
		return id
	}
	// The range behind the one that may contain the address.
	at, _ := slices.BinarySearchFunc(x.ranges, addr, func(n Range, addr netip.Addr) int {
		if n.First.Compare(addr) <= 0 {
			return -1
		}
		return 1
	})
	if at > 0 && addr.Compare(x.ranges[at-1].Last) <= 0 {
		return x.ranges[at-1].Identity
	}
	return World
}
