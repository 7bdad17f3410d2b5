// Package compile turns policies, and what they select, into the rule sets of the kernel: it puts
// addresses into classes that no rule in use tells apart, and works out what each profile of local
// pods allows each class. It is incremental: a change costs what it concerns, and yields the
// elements that change and no others.
//
// Only policies that select local pods are in use. What they ask of the other end is a criterion,
// shared by rules that ask the same. An address's signature has a bit for each criterion that it
// meets, and addresses with equal signatures are one class, which has a number, its identity.
package compile

import (
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// Compiler has the world as it was at the last Commit, and what has changed since.
type Compiler struct {
	pending      policy.Changes
	pendingLocal map[netip.Addr]bool // true is local

	namespaces map[string]labels.Set
	pods       map[string]*pod
	addresses  map[netip.Addr]address
	// rivals are the pods of an address that several have.
	rivals   map[netip.Addr][]*pod
	nodes    map[string]*policy.Node
	policies map[string]*source
	// subjects are the policies by their subject's Namespace and by name.
	subjects map[string]map[string]*source
	local    map[netip.Addr]*localPod
	profiles map[ruleset.ProfileID]*profile

	criteria criteria
	classes  *classes
	segments []segment
	ranges   []ruleset.Range // the segments that the kernel has

	// These are what a Commit has to look at.
	dirty   []*pod
	touched map[netip.Addr]struct{}
	recut   bool // networks or nodes have changed since the segments were made
	cut     bool // the segments have changed since they were emitted
	scratch []bit
}

// localPod is an address of this node.
type localPod struct {
	pod      *pod // nil if it isn't known
	policies [ends][]*source
	profiles [ends]*profile // nil if no policy selects it
	// kernel is what the kernel has, if it is loaded.
	kernel ruleset.Pod
	loaded bool
}

// New returns a Compiler of an empty world.
func New() *Compiler {
	return &Compiler{
		pendingLocal: map[netip.Addr]bool{}, namespaces: map[string]labels.Set{}, pods: map[string]*pod{},
		addresses: map[netip.Addr]address{}, rivals: map[netip.Addr][]*pod{}, nodes: map[string]*policy.Node{},
		policies: map[string]*source{}, subjects: map[string]map[string]*source{}, local: map[netip.Addr]*localPod{},
		profiles: map[ruleset.ProfileID]*profile{}, criteria: criteria{byKey: map[string]*criterion{}, index: newIndex()},
		classes: newClasses(), touched: map[netip.Addr]struct{}{},
	}
}

// Change adds changes to the next Commit. It keeps the objects, which the caller must not modify
// afterwards.
func (c *Compiler) Change(changes policy.Changes) {
	merge(&c.pending.Policies, changes.Policies)
	merge(&c.pending.Namespaces, changes.Namespaces)
	merge(&c.pending.Pods, changes.Pods)
	merge(&c.pending.Nodes, changes.Nodes)
}

// empty clears a map, and replaces a large one, which would stay as slow to iterate over.
func empty[M ~map[K]V, K comparable, V any](m *M) {
	if len(*m) > 100 {
		*m = M{}
	}
	clear(*m)
}

func merge[V any](to *map[string]V, from map[string]V) {
	if *to == nil {
		*to = make(map[string]V, len(from))
	}
	maps.Copy(*to, from)
}

// KeepNumbers makes the Compiler give identities the numbers that they have in a former Compiler's
// rule set, as far as they are the same. It has no effect once there are numbers. It is for a
// kernel that has those rules: where the world is the same, nothing must change, and a packet never
// meets a number with another meaning.
func (c *Compiler) KeepNumbers(former *ruleset.Ruleset) {
	if c.classes.lastID == unnumbered {
		c.classes.former = former
	}
}

// SetLocal says, with the next Commit, which addresses of pods are on this node. The kernel lets
// nothing through to an address whose pod the Compiler doesn't know.
func (c *Compiler) SetLocal(addrs []netip.Addr) {
	clear(c.pendingLocal)
	for addr := range c.local {
		c.pendingLocal[addr] = false
	}
	for _, addr := range addrs {
		c.pendingLocal[addr.Unmap()] = true
	}
}

// Commit returns what has changed in the kernel's rule set since the last Commit, as updates to be
// made one after the other.
//
// A packet can meet a change halfway: its number is looked up before an update, and the rules for
// its number after it. So that it is judged by the old rules or by the new, changes of rules can
// take several updates. First, addresses that new rules tell apart get different numbers, which
// mean the same as before. Then pods leave profiles whose rules change, the rules change, and pods
// join those profiles. Last, addresses that no rule tells apart any more get the same number. Most
// changes need only one update.
func (c *Compiler) Commit() []*ruleset.Update {
	var updates []*ruleset.Update
	u := &ruleset.Update{}
	next := func() {
		if !u.Empty() {
			updates = append(updates, u)
		}
		u = &ruleset.Update{}
	}
	c.applyPods()
	c.applyNodes()
	c.selectPolicies(c.applyPolicies())
	c.classify()
	learned := c.learn(c.criteria.settle())
	left, joined := c.exchange()
	if left || learned && c.anyLoaded() {
		c.emitClasses(u, false)
		next()
	}
	c.buildProfiles()
	c.emitPods(u, func(p *profile) bool { return p == nil || !p.rebuilt })
	if left {
		next()
	}
	c.emitClasses(u, false)
	if joined {
		next()
	}
	c.emitPods(u, func(*profile) bool { return true })
	c.removeProfiles(u)
	next()
	if gone := c.criteria.sweep(); len(gone) > 0 {
		c.forget(gone)
		c.emitClasses(u, true)
		next()
	}
	c.classes.sweep()
	return updates
}

// exchange reports whether pods that the kernel has leave or join profiles whose rules change.
func (c *Compiler) exchange() (left, joined bool) {
	changes := func(p *profile) bool { return p != nil && p.loaded && p.stale && p.pods > 0 }
	for _, l := range c.local {
		if !l.loaded {
			continue
		}
		for i, id := range [ends]ruleset.ProfileID{l.kernel.Ingress, l.kernel.Egress, l.kernel.Node} {
			if p := l.profiles[i]; p.name() != id {
				left = left || changes(c.profiles[id])
				joined = joined || changes(p)
			}
		}
	}
	return left, joined
}

// anyLoaded reports whether the kernel has a profile.
func (c *Compiler) anyLoaded() bool {
	for _, p := range c.profiles {
		if p.loaded {
			return true
		}
	}
	return false
}

// applyNodes makes the pending changes of nodes.
func (c *Compiler) applyNodes() {
	asked := len(c.pending.Nodes) > 0 && c.criteria.askForNodes()
	for name, next := range c.pending.Nodes {
		old := c.nodes[name]
		if next == nil {
			delete(c.nodes, name)
		} else {
			c.nodes[name] = next
		}
		if asked && (old == nil || next == nil || !maps.Equal(old.Labels, next.Labels) || !slices.Equal(old.Addresses, next.Addresses)) {
			c.recut = true
		}
	}
	c.pending.Nodes = nil
}

// applyPolicies makes the pending changes of policies and local addresses. It returns the policies
// that changed, by their names.
func (c *Compiler) applyPolicies() map[string]bool {
	changed := map[string]bool{}
	for name, next := range c.pending.Policies {
		old := c.policies[name]
		if old != nil && old.Policy == next {
			continue
		}
		changed[name] = true
		if old != nil {
			delete(c.subjects[old.Subject.Namespace], name)
			if len(c.subjects[old.Subject.Namespace]) == 0 {
				delete(c.subjects, old.Subject.Namespace)
			}
		}
		delete(c.policies, name)
		if next == nil {
			continue
		}
		s := newSource(next)
		c.policies[name] = s
		if c.subjects[next.Subject.Namespace] == nil {
			c.subjects[next.Subject.Namespace] = map[string]*source{}
		}
		c.subjects[next.Subject.Namespace][name] = s
	}
	c.pending.Policies = nil
	return changed
}

// selectPolicies finds the policies of local pods, and with them those that are in use.
func (c *Compiler) selectPolicies(changed map[string]bool) {
	for addr, isLocal := range c.pendingLocal {
		if isLocal && c.local[addr] == nil {
			c.local[addr] = &localPod{}
		}
	}
	for addr, l := range c.local {
		owner := c.addresses[addr].pod
		if local, ok := c.pendingLocal[addr]; ok && !local {
			owner = nil
		}
		if owner == nil {
			l.pod = nil
			c.assign(l, [ends][]*source{})
			continue
		}
		if l.pod == owner && !owner.dirty && !c.concerns(l, changed) {
			continue
		}
		l.pod = owner
		c.assign(l, c.selecting(owner))
	}
}

// concerns reports whether a change of policies can concern a local pod.
func (c *Compiler) concerns(l *localPod, changed map[string]bool) bool {
	for name := range changed {
		selects := func(s *source) bool { return s.Name == name }
		if slices.ContainsFunc(l.policies[ingress], selects) || slices.ContainsFunc(l.policies[egress], selects) {
			return true
		}
		if s := c.policies[name]; s != nil && c.selects(s, l.pod) {
			return true
		}
	}
	return false
}

func (c *Compiler) selects(s *source, p *pod) bool {
	return selectable(&s.Subject) && s.Subject.Selects(p.Namespace, c.namespaces[p.Namespace], p.Labels)
}

// selecting returns the policies of each end of a pod, in their order.
func (c *Compiler) selecting(p *pod) [ends][]*source {
	var out [ends][]*source
	for _, scope := range []string{p.Namespace, ""} {
		for _, s := range c.subjects[scope] {
			if !c.selects(s, p) {
				continue
			}
			for i, d := range directions {
				if s.Of(d) != nil {
					out[i] = append(out[i], s)
				}
			}
		}
		if p.Namespace == "" {
			break
		}
	}
	for i := range directions {
		slices.SortFunc(out[i], func(a, b *source) int { return a.Compare(b.Policy) })
	}
	for _, s := range out[egress] {
		if s.Tier == policy.Namespaced { // what comes after it isn't reached
			break
		}
		if s.nodes {
			out[toNode] = append(out[toNode], s)
		}
	}
	return out
}

// assign gives a local pod the profiles of its policies.
func (c *Compiler) assign(l *localPod, policies [ends][]*source) {
	l.policies = policies
	for i := range policies {
		var ports []policy.NamedPort
		if i == ingress && l.pod != nil {
			ports = relevant(policies[i], l.pod.Pod)
		}
		var next *profile
		if id := profileID(i, policies[i], ports); id != "" {
			if next = c.profiles[id]; next == nil {
				next = &profile{id: id, end: i, ports: ports}
				c.profiles[id] = next
			}
			next.pods++
			next.adopt(policies[i], &c.criteria)
		}
		if old := l.profiles[i]; old != nil {
			old.pods--
		}
		l.profiles[i] = next
	}
}

// buildProfiles makes the rules of new profiles and of those whose policies have changed, and
// ends the use of policies by those that have no pods any more.
func (c *Compiler) buildProfiles() {
	for _, p := range c.profiles {
		switch {
		case p.pods == 0:
			p.adopt(nil, &c.criteria)
		case p.stale:
			p.build(c.classes)
		}
	}
}

// emitClasses adds to an update what has changed in the numbers of addresses, and in what profiles
// that the kernel has allow them.
func (c *Compiler) emitClasses(u *ruleset.Update, forgotten bool) {
	if c.classes.renumbered {
		for addr := range c.addresses {
			c.emitAddress(u, addr)
		}
	} else {
		for addr := range c.touched {
			c.emitAddress(u, addr)
		}
	}
	empty(&c.touched)
	if c.cut || c.classes.renumbered {
		next := ranges(c.segments)
		u.RemoveRanges, u.AddRanges = missing(c.ranges, next), missing(next, c.ranges)
		c.ranges, c.cut = next, false
	}
	for _, p := range c.profiles {
		if p.loaded {
			p.emit(u, c.classes, forgotten)
		}
	}
	c.classes.settle(c.profiles)
}

func (c *Compiler) emitAddress(u *ruleset.Update, addr netip.Addr) {
	a := c.addresses[addr]
	id := ruleset.World
	if a.class != nil {
		id = a.class.id
	}
	if id != a.id {
		if u.Identities == nil {
			u.Identities = map[netip.Addr]Identity{}
		}
		u.Identities[addr] = id
		a.id = id
		c.addresses[addr] = a
	}
	if a.pod == nil {
		delete(c.addresses, addr)
	}
}

// missing returns the ranges of one list in order that aren't in another.
func missing(from, in []ruleset.Range) []ruleset.Range {
	var out []ruleset.Range
	for _, r := range from {
		for len(in) > 0 && in[0].First.Less(r.First) {
			in = in[1:]
		}
		if len(in) == 0 || in[0] != r {
			out = append(out, r)
		}
	}
	return out
}

// emitPods adds to an update the profiles that are new, and the local pods that change theirs, if
// their new ones are ready.
func (c *Compiler) emitPods(u *ruleset.Update, ready func(*profile) bool) {
	for _, p := range c.profiles {
		if !p.loaded && p.pods > 0 {
			p.load(u, c.classes)
		}
	}
	for addr, l := range c.local {
		next := ruleset.Pod{Addr: addr, Ingress: l.profiles[ingress].name(), Egress: l.profiles[egress].name(), Node: l.profiles[toNode].name()}
		switch {
		case l.pod == nil && l.loaded:
			u.RemovePods = append(u.RemovePods, addr)
			l.loaded = false
		case l.pod != nil && (!l.loaded || l.kernel != next) && !slices.ContainsFunc(l.profiles[:], func(p *profile) bool { return !ready(p) }):
			u.SetPods = append(u.SetPods, next)
			l.kernel, l.loaded = next, true
		}
	}
	for addr, local := range c.pendingLocal {
		if !local {
			delete(c.local, addr)
		}
	}
	clear(c.pendingLocal)
}

// removeProfiles adds to an update the profiles that no pod has any more.
func (c *Compiler) removeProfiles(u *ruleset.Update) {
	for id, p := range c.profiles {
		if p.pods > 0 {
			continue
		}
		if p.loaded {
			u.RemoveProfiles = append(u.RemoveProfiles, id)
		}
		delete(c.profiles, id)
	}
}
