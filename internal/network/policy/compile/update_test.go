package compile

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

func clone(r *ruleset.Ruleset) *ruleset.Ruleset {
	out := ruleset.New()
	out.Apply(r.All())
	return out
}

// endOf is a rule set with one local pod, so that it judges one end.
func endOf(r *ruleset.Ruleset, addr netip.Addr) *ruleset.Ruleset {
	out := *r
	out.Pods = map[netip.Addr]ruleset.Pod{}
	if p, ok := r.Pods[addr]; ok {
		out.Pods[addr] = p
	}
	return &out
}

// TestPacketsBetweenUpdates checks the verdicts while a change is made in several updates, and
// those of packets whose identity or profile was looked up before an update, and the rest after it.
// Each is judged as before the change or as after it, or dropped.
func TestPacketsBetweenUpdates(t *testing.T) {
	several := 0
	for seed := range uint64(100) {
		l := newLab(1000 + seed)
		for range 150 {
			l.change(l.IntN(3) == 0)
		}
		l.commit(t)
		for range 40 {
			l.change(l.IntN(2) == 0)
			first := clone(l.rules)
			states := []*ruleset.Ruleset{first}
			for _, u := range l.compiler.Commit() {
				l.rules.Apply(u)
				states = append(states, clone(l.rules))
			}
			if len(states) > 2 {
				several++
			}
			last := l.rules
			for range 40 {
				f := l.flow()
				for _, end := range []netip.Addr{f.From, f.To} {
					if _, ok := first.Pods[end]; !ok {
						continue
					}
					if _, ok := last.Pods[end]; !ok {
						continue
					}
					was, is := endOf(first, end).Allows(f), endOf(last, end).Allows(f)
					for i, state := range states {
						if got := endOf(state, end).Allows(f); got != was && got != is {
							t.Fatalf("seed %d: %+v is allowed: %v, then %v, then %v", seed, f, was, got, is)
						}
						if i == 0 {
							continue
						}
						before := states[i-1]
						oldIdentity := endOf(state, end)
						oldIdentity.Identities, oldIdentity.Ranges = before.Identities, before.Ranges
						oldProfile := endOf(before, end)
						oldProfile.Profiles = state.Profiles
						if (oldIdentity.Allows(f) || oldProfile.Allows(f)) && !was && !is {
							t.Fatalf("seed %d: update %d lets %+v through, which is never allowed", seed, i, f)
						}
					}
				}
			}
		}
	}
	if several < 100 {
		t.Errorf("only %d changes took several updates", several)
	}
}

func parse(t *testing.T, s string) labels.Selector {
	t.Helper()
	out, err := labels.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// TestUpdatesAreMinimal checks the whole updates of changes in a small world, in which pod 1 is
// local.
func TestUpdatesAreMinimal(t *testing.T) {
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}) }
	pod := func(i int, set labels.Set) *policy.Pod {
		return &policy.Pod{Namespace: "n", Name: fmt.Sprint(i), Labels: set, Addresses: []netip.Addr{addr(i)}, Ports: []policy.NamedPort{{Name: "web", Protocol: policy.TCP, Port: 80}}}
	}
	allow := func(from string, ports ...policy.Port) *policy.Policy {
		return &policy.Policy{
			Name: "p", Tier: policy.Namespaced, Subject: policy.PodSelector{Namespace: "n", Pods: parse(t, "app=server")},
			Ingress: &policy.Rules{Rules: []policy.Rule{{Action: policy.Accept, Peers: []policy.Peer{{Pods: &policy.PodSelector{Namespace: "n", Pods: parse(t, from)}}}, Ports: ports}}},
		}
	}
	port := func(first, last uint16) policy.Port {
		return policy.Port{Protocol: policy.TCP, First: first, Last: last}
	}
	c := New()
	commit := func(changes policy.Changes) []*ruleset.Update {
		c.Change(changes)
		return c.Commit()
	}
	pods := func(pods ...*policy.Pod) policy.Changes {
		out := policy.Changes{Pods: map[string]*policy.Pod{}}
		for _, p := range pods {
			out.Pods[p.Key()] = p
		}
		return out
	}
	policies := func(p *policy.Policy) policy.Changes {
		return policy.Changes{Policies: map[string]*policy.Policy{"p": p}}
	}
	want := func(what string, got []*ruleset.Update, want ...*ruleset.Update) {
		t.Helper()
		if len(got) != len(want) {
			t.Fatalf("%s: %d updates, want %d: %+v", what, len(got), len(want), got)
		}
		for i := range want {
			if len(got[i].Identities) == 0 {
				got[i].Identities = nil
			}
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Fatalf("%s: update %d is\n%+v, want\n%+v", what, i, got[i], want[i])
			}
		}
	}
	id := profileID(ingress, []*source{newSource(allow("app=client"))}, nil)
	const first, second = ruleset.FirstPod, ruleset.FirstPod + 1
	match := func(identity ruleset.Identity, first, last uint16) ruleset.Match {
		return ruleset.Match{Identity: identity, Protocol: ruleset.Protocol(policy.TCP), First: first, Last: last}
	}
	matches := func(m ...ruleset.Match) map[ruleset.ProfileID][]ruleset.Match {
		return map[ruleset.ProfileID][]ruleset.Match{id: m}
	}

	c.SetLocal([]netip.Addr{addr(1)})
	want("a local pod that isn't known", c.Commit())
	server, client := labels.Set{"app": "server"}, labels.Set{"app": "client"}
	want("a local pod that is", commit(pods(pod(1, server))), &ruleset.Update{SetPods: []ruleset.Pod{{Addr: addr(1)}}})
	want("other pods", commit(pods(pod(2, client), pod(3, client), pod(4, client), pod(5, nil))))
	want("a policy", commit(policies(allow("app=client", port(80, 80), port(90, 99)))), &ruleset.Update{
		AddProfiles: []ruleset.Profile{{ID: id, Direction: policy.Ingress, Policies: []string{"p"}, Allow: map[ruleset.Match]struct{}{match(first, 80, 80): {}, match(first, 90, 99): {}}}},
		Identities:  map[netip.Addr]Identity{addr(2): first, addr(3): first, addr(4): first},
		SetPods:     []ruleset.Pod{{Addr: addr(1), Ingress: id}},
	})
	want("labels that no rule asks for", commit(pods(pod(4, labels.Set{"app": "client", "other": "x"}), pod(5, labels.Set{"other": "y"}))))
	want("a pod that is selected", commit(pods(pod(5, client))), &ruleset.Update{Identities: map[netip.Addr]Identity{addr(5): first}})
	want("a pod that no longer is", commit(pods(pod(5, nil))), &ruleset.Update{Identities: map[netip.Addr]Identity{addr(5): 0}})
	want("the same again", commit(policies(allow("app=client", port(80, 80), port(90, 99)))))
	want("other ports", commit(policies(allow("app=client", port(80, 80), port(90, 98)))), &ruleset.Update{Disallow: matches(match(first, 90, 99)), Allow: matches(match(first, 90, 98))})
	want("a narrower selector", commit(policies(allow("app=client,other!=x", port(80, 80), port(90, 98)))),
		&ruleset.Update{Identities: map[netip.Addr]Identity{addr(4): second}, Allow: matches(match(second, 80, 80), match(second, 90, 98))},
		&ruleset.Update{Disallow: matches(match(second, 80, 80), match(second, 90, 98))},
		&ruleset.Update{Identities: map[netip.Addr]Identity{addr(4): 0}})
	want("a pod that is gone", commit(policy.Changes{Pods: map[string]*policy.Pod{"n/2": nil}}), &ruleset.Update{Identities: map[netip.Addr]Identity{addr(2): 0}})
	want("a local pod's labels", commit(pods(pod(1, nil))),
		&ruleset.Update{SetPods: []ruleset.Pod{{Addr: addr(1)}}, RemoveProfiles: []ruleset.ProfileID{id}},
		&ruleset.Update{Identities: map[netip.Addr]Identity{addr(3): 0}})
	want("a local address that is given up", func() []*ruleset.Update { c.SetLocal(nil); return c.Commit() }(), &ruleset.Update{RemovePods: []netip.Addr{addr(1)}})
}

// TestNumbersAreKept checks that a Compiler which takes over from another, in the same world, makes
// the same rule set, and that it keeps the numbers of what stays the same in another world.
func TestNumbersAreKept(t *testing.T) {
	kept, all := 0, 0
	for seed := range uint64(100) {
		l := newLab(2000 + seed)
		for range 200 {
			l.change(l.IntN(3) == 0)
			l.commit(t)
		}
		start := func() *ruleset.Ruleset {
			c, r := New(), ruleset.New()
			c.KeepNumbers(l.rules)
			if l.IntN(2) == 0 {
				c.Commit() // before anything is known
			}
			c.Change(l.all())
			c.SetLocal(l.localAddresses())
			for _, u := range c.Commit() {
				r.Apply(u)
			}
			return r
		}
		if got := start(); !reflect.DeepEqual(got, l.rules) {
			t.Fatalf("seed %d: the rule set was\n%+v, and is\n%+v", seed, l.rules, got)
		}
		old := l.rules
		l.change(false)
		l.rules = start()
		l.check(t, 100)
		for addr, id := range l.rules.Identities {
			if all++; id == old.Identities[addr] {
				kept++
			}
		}
	}
	if all < 200 || kept < all*8/10 {
		t.Errorf("%d of %d identities have kept their numbers", kept, all)
	}
}

// FuzzChanges makes random changes of worlds with nonsense. The specification can't judge selectors
// and peers that are missing; they select nothing.
func FuzzChanges(f *testing.F) {
	for seed := range uint64(40) {
		f.Add(seed, seed%2 == 0)
	}
	f.Fuzz(func(t *testing.T, seed uint64, incomplete bool) {
		l := newLab(seed)
		l.nonsense, l.incomplete = true, incomplete
		for range 40 {
			for range 1 + l.IntN(6) {
				l.change(l.IntN(3) == 0)
			}
			l.commit(t)
			if !incomplete {
				l.check(t, 60)
			}
		}
		l.compareWithNew(t)
	})
}
