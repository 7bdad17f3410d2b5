package compile

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// lab is a random world, a Compiler of it, and the rule set that its updates made.
type lab struct {
	*rand.Rand
	policies   map[string]*policy.Policy
	namespaces map[string]labels.Set
	pods       map[string]*policy.Pod
	nodes      map[string]*policy.Node
	local      map[netip.Addr]bool
	compiler   *Compiler
	rules      *ruleset.Ruleset
	// nonsense makes objects have what no API server accepts, and that the specification can judge;
	// incomplete, what it can't.
	nonsense, incomplete bool
}

func newLab(seed uint64) *lab {
	return &lab{
		Rand: rand.New(rand.NewPCG(seed, 1)), policies: map[string]*policy.Policy{}, namespaces: map[string]labels.Set{}, pods: map[string]*policy.Pod{},
		nodes: map[string]*policy.Node{}, local: map[netip.Addr]bool{}, compiler: New(), rules: ruleset.New(),
	}
}

func pick[T any](l *lab, from []T) T { return from[l.IntN(len(from))] }

func some[T any](l *lab, most int, f func() T) []T {
	out := []T{}
	for range l.IntN(most + 1) {
		out = append(out, f())
	}
	return out
}

// podAddresses are few, so that pods claim the same.
func podAddresses() []netip.Addr {
	var out []netip.Addr
	for i := range 9 {
		out = append(out, netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", 250+i%6-i/6*250)), netip.MustParseAddr(fmt.Sprintf("fd00::%x", i)))
	}
	return out
}

var otherAddresses = []netip.Addr{
	netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("198.51.100.7"), netip.MustParseAddr("0.0.0.0"), netip.MustParseAddr("255.255.255.255"),
	netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("::"), netip.MustParseAddr("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"), netip.MustParseAddr("9.255.255.255"), netip.MustParseAddr("10.1.0.0"),
}

var prefixes = []string{
	"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.252/30", "10.0.0.3/32", "128.0.0.0/1", "192.0.2.0/24", "192.0.2.1/32", "255.255.255.255/32",
	"fd00::/64", "fd00::4/126", "2001:db8::/32", "ffff::/16", "::ffff:10.0.0.0/104", "10.0.0.77/24",
}

// maybe reports true seldom, if there is nonsense.
func (l *lab) maybe() bool { return l.nonsense && l.IntN(8) == 0 }

func (l *lab) labels() labels.Set {
	if l.maybe() {
		return nil
	}
	out := labels.Set{}
	for _, key := range []string{"app", "tier", "x"} {
		if l.IntN(3) > 0 {
			out[key] = pick(l, []string{"a", "b", "c"})
		}
	}
	return out
}

func (l *lab) selector() labels.Selector {
	if l.incomplete && l.IntN(8) == 0 {
		return nil
	}
	s, err := labels.Parse(pick(l, []string{"", "app=a", "app=b", "app in (a,b)", "app notin (a)", "tier", "!tier", "app=a,tier=b", "x!=c", "x in (a,b,c),tier=a"}))
	if err != nil {
		panic(err)
	}
	if l.IntN(40) == 0 {
		return labels.Nothing()
	}
	return s
}

var namespaceNames = []string{"n1", "n2", "n3"}

func (l *lab) podSelector() *policy.PodSelector {
	if l.IntN(2) == 0 {
		return &policy.PodSelector{Namespace: pick(l, namespaceNames), Pods: l.selector()}
	}
	return &policy.PodSelector{Namespaces: l.selector(), Pods: l.selector()}
}

func (l *lab) peer() policy.Peer {
	if l.incomplete && l.IntN(8) == 0 {
		return policy.Peer{}
	}
	switch l.IntN(6) {
	case 0:
		return policy.Peer{Nodes: l.selector()}
	case 1, 2:
		prefix := func() netip.Prefix {
			if l.maybe() {
				return netip.Prefix{}
			}
			return netip.MustParsePrefix(pick(l, prefixes))
		}
		return policy.Peer{Networks: &policy.Networks{Prefix: prefix(), Except: some(l, 2, prefix)}}
	}
	return policy.Peer{Pods: l.podSelector()}
}

var portNumbers = []uint16{0, 1, 80, 81, 443, 8080, 65534, 65535}

func (l *lab) protocol() policy.Protocol {
	if l.maybe() {
		return pick(l, []policy.Protocol{0, 1, 255})
	}
	return pick(l, []policy.Protocol{policy.TCP, policy.TCP, policy.UDP, policy.SCTP})
}

func (l *lab) port() policy.Port {
	switch l.IntN(4) {
	case 0:
		p := policy.Port{Name: pick(l, []string{"web", "dns"}), Protocol: l.protocol()}
		if l.IntN(3) == 0 {
			p.Protocol = 0
		}
		return p
	case 1:
		return policy.Port{Protocol: l.protocol(), Last: 65535}
	}
	return policy.Port{Protocol: l.protocol(), First: pick(l, portNumbers), Last: pick(l, portNumbers)}
}

func (l *lab) randomRules(tier policy.Tier) *policy.Rules {
	if l.IntN(4) == 0 {
		return nil
	}
	return &policy.Rules{Rules: some(l, 4, func() policy.Rule {
		r := policy.Rule{Action: policy.Accept}
		if tier != policy.Namespaced || l.maybe() {
			r.Action = pick(l, []policy.Action{policy.Accept, policy.Deny, policy.Pass})
		}
		if l.maybe() {
			r.Action = "unknown"
		}
		if l.IntN(5) > 0 {
			r.Peers = append(some(l, 2, l.peer), l.peer())[l.IntN(8)/7:]
		}
		if l.IntN(3) > 0 {
			r.Ports = some(l, 3, l.port)
		}
		return r
	})}
}

func (l *lab) policy(name string) *policy.Policy {
	p := &policy.Policy{Name: name, Tier: pick(l, []policy.Tier{policy.Admin, policy.Namespaced, policy.Namespaced, policy.Baseline}), Priority: int32(l.IntN(2)), Subject: *l.podSelector()}
	if l.IntN(2) == 0 {
		p.Subject.Pods = labels.Everything()
	}
	if l.maybe() {
		p.Tier = policy.Tier(l.IntN(9) - 3)
	}
	p.Ingress, p.Egress = l.randomRules(p.Tier), l.randomRules(p.Tier)
	return p
}

func (l *lab) pod(namespace, name string) *policy.Pod {
	return &policy.Pod{
		Namespace: namespace, Name: name, Labels: l.labels(), Started: time.Unix(int64(l.IntN(3)), 0),
		Addresses: some(l, 3, func() netip.Addr {
			if l.maybe() {
				return pick(l, []netip.Addr{{}, netip.MustParseAddr("::ffff:10.0.0.1"), netip.MustParseAddr("fe80::1%eth0"), netip.MustParseAddr("192.0.2.1")})
			}
			return pick(l, podAddresses())
		}),
		Ports: some(l, 2, func() policy.NamedPort {
			return policy.NamedPort{Name: pick(l, []string{"web", "dns", "unasked"}), Protocol: l.protocol(), Port: pick(l, portNumbers)}
		}),
	}
}

// change makes a random change, of policies or of the rest, and commits nothing.
func (l *lab) change(ofPolicies bool) {
	gone := l.IntN(4) == 0
	switch kind := l.IntN(10); {
	case ofPolicies:
		name := fmt.Sprintf("policy %d", l.IntN(12))
		p := l.policy(name)
		if old := l.policies[name]; old != nil && l.IntN(2) == 0 { // only its rules
			p.Tier, p.Priority, p.Subject = old.Tier, old.Priority, old.Subject
		}
		set(l.policies, name, p, gone)
		l.compiler.Change(policy.Changes{Policies: map[string]*policy.Policy{name: l.policies[name]}})
	case kind < 1:
		name := pick(l, namespaceNames)
		if gone {
			delete(l.namespaces, name)
		} else {
			l.namespaces[name] = l.labels()
		}
		l.compiler.Change(policy.Changes{Namespaces: map[string]labels.Set{name: l.namespaces[name]}})
	case kind < 2:
		name := fmt.Sprintf("node %d", l.IntN(3))
		n := &policy.Node{Name: name, Labels: l.labels(), Addresses: some(l, 2, func() netip.Addr {
			if l.IntN(3) == 0 {
				return pick(l, podAddresses())
			}
			return pick(l, otherAddresses)
		})}
		set(l.nodes, name, n, gone)
		l.compiler.Change(policy.Changes{Nodes: map[string]*policy.Node{name: l.nodes[name]}})
	case kind < 4:
		addr := pick(l, podAddresses())
		l.local[addr] = !gone || l.IntN(2) == 0
		l.compiler.SetLocal(l.localAddresses())
	default:
		namespace, name := pick(l, namespaceNames), fmt.Sprintf("pod %d", l.IntN(8))
		p := l.pod(namespace, name)
		if old := l.pods[p.Key()]; old != nil && l.IntN(2) == 0 { // only its labels
			p.Addresses, p.Ports, p.Started = old.Addresses, old.Ports, old.Started
		}
		set(l.pods, p.Key(), p, gone)
		l.compiler.Change(policy.Changes{Pods: map[string]*policy.Pod{p.Key(): l.pods[p.Key()]}})
	}
}

func set[V any](m map[string]*V, key string, value *V, gone bool) {
	if gone {
		delete(m, key)
	} else {
		m[key] = value
	}
}

func (l *lab) localAddresses() []netip.Addr {
	var out []netip.Addr
	for addr, is := range l.local {
		if is {
			out = append(out, addr)
		}
	}
	return out
}

// all is every object, as one change.
func (l *lab) all() policy.Changes {
	return policy.Changes{Policies: l.policies, Namespaces: l.namespaces, Pods: l.pods, Nodes: l.nodes}
}

func (l *lab) world() *policy.World {
	w := &policy.World{Namespaces: l.namespaces}
	for _, p := range l.policies {
		w.Policies = append(w.Policies, *p)
	}
	for _, key := range slices.Sorted(maps.Keys(l.pods)) {
		w.Pods = append(w.Pods, *l.pods[key])
	}
	for _, n := range l.nodes {
		w.Nodes = append(w.Nodes, *n)
	}
	return w
}

// flow returns a random connection. Its ports are those of rules, and those beside them.
func (l *lab) flow() policy.Flow {
	end := func() netip.Addr {
		if l.IntN(4) == 0 {
			return pick(l, otherAddresses)
		}
		return pick(l, podAddresses())
	}
	f := policy.Flow{From: end(), To: end(), Protocol: pick(l, []policy.Protocol{policy.TCP, policy.TCP, policy.UDP, policy.SCTP, 1})}
	if f.Protocol.HasPorts() {
		f.Port = pick(l, portNumbers) + pick(l, []uint16{0, 0, 1, 65535})
	}
	f.ToNode = l.IntN(4) == 0
	for _, p := range l.pods {
		f.ToNode = f.ToNode && !slices.Contains(p.Addresses, f.To)
	}
	return f
}

// check compares the rule set with what the specification decides.
func (l *lab) check(t *testing.T, flows int) {
	t.Helper()
	w := l.world()
	for addr := range l.local {
		p, ok := l.rules.Pods[addr]
		if known := w.PodAt(addr) != nil; ok != (known && l.local[addr]) {
			t.Fatalf("local %v, known %v: %s has profiles %+v", l.local[addr], known, addr, p)
		}
	}
	for range flows {
		f := l.flow()
		want := true
		if d := w.Decide(f); f.From != f.To {
			if _, ok := l.rules.Pods[f.From]; ok {
				want = d.Egress.Allowed
			}
			if _, ok := l.rules.Pods[f.To]; ok {
				want = want && d.Ingress.Allowed
			}
		}
		if got := l.rules.Allows(f); got != want {
			d := w.Decide(f)
			t.Fatalf("%+v is allowed: %v, want %v\negress %+v\ningress %+v", f, got, want, d.Egress, d.Ingress)
		}
	}
}

// commit applies what the Compiler has changed, one update after the other.
func (l *lab) commit(t *testing.T) {
	t.Helper()
	for _, u := range l.compiler.Commit() {
		validate(t, l.rules, u)
		l.rules.Apply(u)
	}
}

// validate checks that each part of an update changes something, and names nothing twice.
func validate(t *testing.T, r *ruleset.Ruleset, u *ruleset.Update) {
	t.Helper()
	if u.Empty() {
		t.Fatal("an update is empty")
	}
	stays := func(id ruleset.ProfileID) bool {
		_, ok := r.Profiles[id]
		return ok && !slices.Contains(u.RemoveProfiles, id)
	}
	for _, p := range u.AddProfiles {
		if _, ok := r.Profiles[p.ID]; ok {
			t.Fatalf("profile %s is added twice", p.ID)
		}
	}
	for id, matches := range u.Allow {
		for i, m := range matches {
			if _, ok := r.Profiles[id].Allow[m]; ok || !stays(id) || slices.Contains(matches[:i], m) {
				t.Fatalf("%s is allowed %+v twice, or is gone", id, m)
			}
		}
	}
	for id, matches := range u.Disallow {
		for _, m := range matches {
			if _, ok := r.Profiles[id].Allow[m]; !ok || !stays(id) || slices.Contains(u.Allow[id], m) {
				t.Fatalf("%s isn't allowed %+v that is taken", id, m)
			}
		}
	}
	for addr, id := range u.Identities {
		if r.Identities[addr] == id {
			t.Fatalf("%s is %d already", addr, id)
		}
	}
	for _, n := range u.RemoveRanges {
		if r.Ranges[n.First] != n || slices.Contains(u.AddRanges, n) {
			t.Fatalf("range %v doesn't exist or is added again", n)
		}
	}
	for _, p := range u.SetPods {
		if old, ok := r.Pods[p.Addr]; ok && old == p || slices.Contains(u.RemovePods, p.Addr) {
			t.Fatalf("pod %v is the same or is removed", p)
		}
	}
	for _, id := range u.RemoveProfiles {
		if _, ok := r.Profiles[id]; !ok {
			t.Fatalf("profile %s doesn't exist", id)
		}
	}
}

// TestChanges makes random changes of random worlds. After each Commit, the rule set allows what
// the specification does, and it is the one that a Compiler makes that sees the world for the first
// time.
func TestChanges(t *testing.T) {
	for seed := range uint64(150) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := newLab(seed)
			for range 60 {
				for range 1 + l.IntN(3)*l.IntN(4) {
					l.change(l.IntN(3) == 0)
				}
				l.commit(t)
				l.check(t, 60)
			}
			l.check(t, 2000)
			l.compareWithNew(t)
		})
	}
}

// compareWithNew checks that the rule set is the one that a new Compiler makes, but for the numbers
// of identities.
func (l *lab) compareWithNew(t *testing.T) {
	t.Helper()
	c, r := New(), ruleset.New()
	c.Change(l.all())
	c.SetLocal(l.localAddresses())
	for _, u := range c.Commit() {
		r.Apply(u)
	}
	number := map[ruleset.Identity]ruleset.Identity{0: 0} // the same identity in the new one
	for _, g := range groups {
		number[g] = g
	}
	same := func(what any, old, id ruleset.Identity) {
		if known, ok := number[old]; ok && known != id {
			t.Fatalf("%v is %d, which is both %d and %d anew", what, old, known, id)
		}
		number[old] = id
	}
	if len(r.Identities) != len(l.rules.Identities) || len(r.Ranges) != len(l.rules.Ranges) || !maps.Equal(r.Pods, l.rules.Pods) || len(r.Profiles) != len(l.rules.Profiles) {
		t.Fatalf("anew there is\n%+v, not\n%+v", r, l.rules)
	}
	for addr, id := range l.rules.Identities {
		same(addr, id, r.Identities[addr])
	}
	for first, n := range l.rules.Ranges {
		if r.Ranges[first].Last != n.Last {
			t.Fatalf("the range %v is %v anew", n, r.Ranges[first])
		}
		same(n, n.Identity, r.Ranges[first].Identity)
	}
	for id, p := range l.rules.Profiles {
		renumbered := map[ruleset.Match]struct{}{}
		for m := range p.Allow {
			anew, ok := number[m.Identity]
			if !ok {
				t.Fatalf("profile %s has identity %d, which nothing has", id, m.Identity)
			}
			m.Identity = anew
			renumbered[m] = struct{}{}
		}
		if !maps.Equal(renumbered, r.Profiles[id].Allow) {
			t.Fatalf("profile %s of %v allows %v, and %v anew", id, p.Policies, renumbered, r.Profiles[id].Allow)
		}
	}
	if n := c.Commit(); len(n) > 0 {
		t.Fatalf("without a change there is an update: %+v", n[0])
	}
}
