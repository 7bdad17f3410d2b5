package compile

import (
	"cmp"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"maps"
	"slices"
	"strings"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// directions are in the order of arrays by direction.
var directions = [2]policy.Direction{policy.Ingress, policy.Egress}

// The ends of connections that are judged on their own. The first are the directions.
const (
	ingress = iota
	egress
	toNode // egress to the pod's own node
	ends
)

// direction returns that of an end.
func direction(end int) int { return min(end, egress) }

// source is a policy, and what is known about it while profiles use it.
type source struct {
	*policy.Policy
	// names are how its ingress rules name ports.
	names []portName
	// nodes is whether its rules of egress can match addresses that aren't pods'.
	nodes bool
	// users counts the profiles. While there is one, rules are those of each direction, and held
	// their criteria.
	users int
	rules [2][]rule
	held  []*criterion
}

// rule is a policy's with its criteria.
type rule struct {
	action policy.Action
	tier   policy.Tier
	anyone bool
	peers  []bit
	// universal are the peers that hold for a universe.
	universal []universalPeer
	// ports are those given by number. Others are given by name, of the local pod for ingress, or
	// of the other pod for egress.
	ports   ports
	ingress []portName
	egress  []*criterion
}

func newSource(p *policy.Policy) *source {
	s := &source{Policy: p}
	if p.Egress != nil {
		s.nodes = slices.ContainsFunc(p.Egress.Rules, func(r policy.Rule) bool {
			return r.Peers == nil || slices.ContainsFunc(r.Peers, func(p policy.Peer) bool { return p.Nodes != nil || p.Networks != nil })
		})
	}
	if p.Ingress == nil {
		return s
	}
	seen := map[portName]bool{}
	for _, r := range p.Ingress.Rules {
		for _, port := range r.Ports {
			if n := (portName{port.Name, port.Protocol}); n.name != "" && !seen[n] {
				seen[n] = true
				s.names = append(s.names, n)
			}
		}
	}
	return s
}

// use counts a profile that has the policy.
func (s *source) use(c *criteria) {
	if s.users++; s.users > 1 {
		return
	}
	for i, d := range directions {
		rules := s.Of(d)
		if rules == nil {
			continue
		}
		for j := range rules.Rules {
			s.rules[i] = append(s.rules[i], s.compile(&rules.Rules[j], d, c))
		}
	}
}

// drop ends a use.
func (s *source) drop(c *criteria) {
	if s.users--; s.users > 0 {
		return
	}
	for _, h := range s.held {
		c.release(h)
	}
	s.rules, s.held = [2][]rule{}, nil
}

func (s *source) compile(from *policy.Rule, d policy.Direction, c *criteria) rule {
	out := rule{action: from.Action, tier: s.Tier, anyone: from.Peers == nil}
	// Networks of a rule are one criterion: otherwise each would be a class, and what the rule allows
	// would be as many elements as it has networks, times its ports.
	var networks []*policy.Networks
	hold := func(found *criterion) {
		if found == nil {
			return
		}
		s.held = append(s.held, found)
		out.peers = append(out.peers, found.bit)
		if u := found.universe(); u != none {
			out.universal = append(out.universal, universalPeer{u, found.bit})
		}
	}
	for i := range from.Peers {
		if n := from.Peers[i].Networks; n != nil && n.Prefix.IsValid() && !isUniversal(n) {
			networks = append(networks, n)
		} else {
			hold(c.peer(&from.Peers[i]))
		}
	}
	if len(networks) > 0 {
		hold(c.networks(networks))
	}
	if from.Ports == nil {
		out.ports = allPorts
	}
	numbers := map[policy.Protocol][]span{}
	for _, p := range from.Ports {
		switch name := (portName{p.Name, p.Protocol}); {
		case p.Name == "":
			numbers[p.Protocol] = append(numbers[p.Protocol], span{p.First, p.Last})
		case d == policy.Ingress:
			out.ingress = append(out.ingress, name)
		default:
			found := c.portName(name)
			s.held = append(s.held, found)
			out.egress = append(out.egress, found)
		}
	}
	for protocol, all := range numbers {
		out.ports.add(protocol, all...)
	}
	return out
}

// profile is what local pods share whose policies and named ports are the same at an end.
type profile struct {
	id       ruleset.ProfileID
	end      int
	policies []*source
	ports    []policy.NamedPort // of the pods, as far as rules name them
	pods     int                // addresses of local pods

	rules    []*rule
	peers    []peerRules // in the order of their bits
	anyone   []int32
	isolates bool
	// universes are the bits of criteria that hold for a universe.
	universes [universes]bit
	// certain is what the rules allow each group, and groups the matches for that.
	certain [len(groups)]ports
	groups  [len(groups)]*allowed
	// known has what the profile allows by group, the rules that match and the ports that they name.
	known map[string]*allowed
	// allow is what the profile allows the classes beside their groups, by slot.
	allow []*allowed
	// kernel and kernelGroups are what the kernel's profile allows, if that isn't allow and groups.
	// They are nil for new profiles.
	kernel       []*allowed
	kernelGroups [len(groups)]*allowed
	stale        bool // its policies have changed since it was built
	rebuilt      bool // since it was emitted
	loaded       bool // into the kernel
	current      bool // loaded, and not emitted since
}

// peerRules are the rules, by their indexes, of a peer.
type peerRules struct {
	peer  bit
	rules []int32
}

// allowed is a set of ports, as matches in order and without an identity.
type allowed struct{ matches []ruleset.Match }

var nothing = &allowed{}

// profileID returns the name of the profile of pods that policies select. It depends on the names
// of the policies and not on their rules: when these change, most of what the profile allows stays,
// and neither its pods nor its sets must be replaced.
func profileID(end int, policies []*source, ports []policy.NamedPort) ruleset.ProfileID {
	if len(policies) == 0 {
		return ""
	}
	h := sha256.New()
	part := func(s string) {
		h.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(s))))
		h.Write([]byte(s))
	}
	part([ends]string{string(policy.Ingress), string(policy.Egress), "node"}[end])
	for _, name := range namesOf(policies) {
		part(name)
	}
	part("")
	for _, p := range ports {
		part(p.Name)
		h.Write([]byte{byte(p.Protocol), byte(p.Port >> 8), byte(p.Port)})
	}
	return ruleset.ProfileID(strings.ToLower(base32.StdEncoding.EncodeToString(h.Sum(nil)[:10])))
}

// relevant returns the ports of a pod that policies name in their rules of ingress.
func relevant(policies []*source, p *policy.Pod) []policy.NamedPort {
	var out []policy.NamedPort
	for _, s := range policies {
		for _, n := range s.names {
			for _, q := range p.Ports {
				if n.matches(q) {
					out = append(out, q)
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b policy.NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
	})
	return slices.Compact(out)
}

// adopt makes policies those of the profile.
func (p *profile) adopt(policies []*source, c *criteria) {
	if slices.Equal(p.policies, policies) && p.known != nil {
		return
	}
	for _, s := range policies {
		s.use(c)
	}
	for _, s := range p.policies {
		s.drop(c)
	}
	p.policies, p.stale = policies, true
}

// name returns the profile's ID, or that of no profile if it is nil.
func (p *profile) name() ruleset.ProfileID {
	if p == nil {
		return ""
	}
	return p.id
}

// build makes the profile's rules of those of its policies, and then what it allows the classes.
func (p *profile) build(c *classes) {
	if p.stale = false; p.loaded {
		p.kernel, p.kernelGroups, p.rebuilt = p.allow, p.groups, true
	}
	p.rules, p.peers, p.anyone, p.isolates, p.known = nil, nil, nil, false, map[string]*allowed{}
	p.universes = [universes]bit{}
	byPeer := map[bit][]int32{}
	for _, s := range p.policies {
		p.isolates = p.isolates || s.Tier == policy.Namespaced
		for i := range s.rules[direction(p.end)] {
			r := &s.rules[direction(p.end)][i]
			if len(r.ingress) > 0 {
				r = p.resolve(r)
			}
			n := int32(len(p.rules))
			p.rules = append(p.rules, r)
			if r.anyone {
				p.anyone = append(p.anyone, n)
			}
			for _, b := range r.peers {
				byPeer[b] = append(byPeer[b], n)
			}
			for _, u := range r.universal {
				p.universes[u.universe] = u.bit
			}
		}
	}
	for _, b := range slices.Sorted(maps.Keys(byPeer)) {
		p.peers = append(p.peers, peerRules{b, byPeer[b]})
	}
	p.buildGroups()
	p.allow = make([]*allowed, c.slots)
	for _, k := range c.byID {
		p.judge(k)
	}
}

// resolve returns a rule with the ports whose names are those of the profile's pods.
func (p *profile) resolve(r *rule) *rule {
	out := *r
	for _, n := range r.ingress {
		for _, q := range p.ports {
			if n.matches(q) {
				out.ports.add(q.Protocol, span{q.Port, q.Port})
			}
		}
	}
	return &out
}

// matching appends the rules with peers that have the bits of a signature, and adds the bits of
// named ports to ports.
func (p *profile) matching(out []int32, ports []bit, s *signature) ([]int32, []bit) {
	if s == nil {
		return out, ports
	}
	bits := s.bits
	for i := len(bits) - 1; i >= 0 && bits[i]&portBit != 0; i-- {
		ports = append(ports, bits[i])
		bits = bits[:i]
	}
	if len(p.peers) < len(bits) {
		for _, r := range p.peers {
			if _, found := slices.BinarySearch(bits, r.peer); found {
				out = append(out, r.rules...)
			}
		}
		return out, ports
	}
	for _, b := range bits {
		if i, found := slices.BinarySearchFunc(p.peers, b, func(r peerRules, b bit) int { return cmp.Compare(r.peer, b) }); found {
			out = append(out, p.peers[i].rules...)
		}
	}
	return out, ports
}

// judge finds what a class is allowed.
func (p *profile) judge(k *class) *allowed {
	var buffer [16]int32
	matching := append(buffer[:0], p.anyone...)
	var ports []bit
	matching, ports = p.matching(matching, ports, k.pod)
	matching, ports = p.matching(matching, ports, k.network)
	slices.Sort(matching)
	matching = slices.Compact(matching)
	named := slices.ContainsFunc(matching, func(i int32) bool { return len(p.rules[i].egress) > 0 })
	var keyBuffer [64]byte
	group := p.groupOf(k)
	key := append(keyBuffer[:0], byte(group))
	for _, i := range matching {
		key = binary.LittleEndian.AppendUint32(key, uint32(i))
	}
	if named {
		for _, b := range ports {
			key = binary.LittleEndian.AppendUint64(key, uint64(b))
		}
	} else {
		ports = nil
	}
	found := p.known[string(key)]
	if found == nil {
		all := p.fold(matching, ports)
		found = &allowed{all.matches(&p.certain[group])}
		p.known[string(key)] = found
	}
	p.set(k, found)
	return found
}

func (p *profile) set(k *class, to *allowed) {
	for len(p.allow) <= k.slot {
		p.allow = append(p.allow, nil)
	}
	p.allow[k.slot] = to
}

// fold returns what rules allow to an end with named ports: the tiers, one after the other, take
// from the ports that are undecided.
func (p *profile) fold(matching []int32, named []bit) ports {
	undecided := allPorts
	var accepted ports
	for _, tier := range []policy.Tier{policy.Admin, policy.Namespaced, policy.Baseline} {
		var passed ports
		left := undecided
		for _, i := range matching {
			r := p.rules[i]
			if r.tier != tier {
				continue
			}
			decides := r.numbers(named)
			decides = decides.intersect(&left)
			switch left = left.subtract(&decides); r.action {
			case policy.Accept:
				accepted = accepted.union(&decides)
			case policy.Pass:
				passed = passed.union(&decides)
			}
		}
		if tier == policy.Namespaced && p.isolates {
			return accepted
		}
		undecided = left.union(&passed)
	}
	return accepted.union(&undecided)
}

// numbers returns the ports of a rule for an end with named ports.
func (r *rule) numbers(named []bit) ports {
	out := r.ports
	for _, n := range r.egress {
		for _, b := range named {
			if b&^(1<<24-1) == n.bit {
				out.add(policy.Protocol(b>>16), span{uint16(b), uint16(b)})
			}
		}
	}
	return out
}

// namesOf returns the names of policies, sorted.
func namesOf(policies []*source) []string {
	out := make([]string, len(policies))
	for i, s := range policies {
		out[i] = s.Name
	}
	slices.Sort(out)
	return out
}

// allowedTo returns what a table by slots allows a class, which may be nil.
func allowedTo(table []*allowed, k *class) *allowed {
	if k == nil || k.slot >= len(table) || table[k.slot] == nil {
		return nothing
	}
	return table[k.slot]
}

// load adds the profile to an update.
func (p *profile) load(u *ruleset.Update, c *classes) {
	allow := map[ruleset.Match]struct{}{}
	add := func(id Identity, a *allowed) {
		for _, m := range a.matches {
			m.Identity = id
			allow[m] = struct{}{}
		}
	}
	for id, k := range c.byID {
		add(id, allowedTo(p.allow, k))
	}
	for i, g := range groups {
		add(g, p.groups[i])
	}
	u.AddProfiles = append(u.AddProfiles, ruleset.Profile{ID: p.id, Direction: directions[direction(p.end)], Policies: namesOf(p.policies), Allow: allow})
	p.loaded, p.current = true, true
}

// emit adds to an update what a profile of the kernel allows otherwise than before. If only bits
// were forgotten that no rule asks for, a number is allowed what it was.
func (p *profile) emit(u *ruleset.Update, c *classes, forgotten bool) {
	if p.current || p.pods == 0 && p.policies == nil { // it is new, or is removed
		p.current = false
		return
	}
	before := p.allow
	if p.rebuilt {
		before = p.kernel
		for i, g := range groups {
			p.differ(u, g, p.kernelGroups[i], p.groups[i])
		}
		for id, k := range c.byID {
			if _, ok := c.changed[id]; !ok {
				p.differ(u, id, allowedTo(before, k), allowedTo(p.allow, k))
			}
		}
	}
	for id, old := range c.changed {
		was := allowedTo(before, old)
		switch k := c.byID[id]; {
		case k == nil:
			p.differ(u, id, was, nothing)
		case forgotten:
			p.set(k, was)
		default:
			p.differ(u, id, was, p.judge(k))
		}
	}
	p.rebuilt, p.kernel = false, nil
}

// compareMatches compares as ports.matches orders them.
func compareMatches(a, b ruleset.Match) int {
	order := func(p ruleset.Protocol) int {
		switch p {
		case ruleset.Every:
			return -1
		case ruleset.Other:
			return len(protocols)
		}
		return slices.Index(protocols[:], policy.Protocol(p))
	}
	return cmp.Or(cmp.Compare(order(a.Protocol), order(b.Protocol)), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

// differ adds to an update what a number is allowed otherwise than before.
func (p *profile) differ(u *ruleset.Update, id Identity, was, is *allowed) {
	if was == is {
		return
	}
	missing := func(to *map[ruleset.ProfileID][]ruleset.Match, from, in *allowed) {
		rest := in.matches // both are in order
		for _, m := range from.matches {
			for len(rest) > 0 && compareMatches(rest[0], m) < 0 {
				rest = rest[1:]
			}
			if len(rest) > 0 && rest[0] == m {
				continue
			}
			if *to == nil {
				*to = map[ruleset.ProfileID][]ruleset.Match{}
			}
			m.Identity = id
			(*to)[p.id] = append((*to)[p.id], m)
		}
	}
	missing(&u.Disallow, was, is)
	missing(&u.Allow, is, was)
}
