package compile

import (
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/ruleset"
)

// The cluster of the benchmarks.
const (
	clusterPods       = 10_000
	clusterNamespaces = 100
	clusterPolicies   = 1_000
	clusterLocal      = 110
)

func clusterPod(i int) *policy.Pod {
	app := i / clusterNamespaces % 20
	return &policy.Pod{
		Namespace: fmt.Sprintf("team-%d", i%clusterNamespaces), Name: fmt.Sprintf("pod-%d", i),
		Labels:    labels.Set{"app": fmt.Sprintf("app-%d", app), "tier": []string{"front", "back", "db"}[app%3], "version": fmt.Sprint(i % 7), "hash": fmt.Sprint(i), "managed-by": "helm"},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})},
		Ports:     []policy.NamedPort{{Name: "http", Protocol: policy.TCP, Port: 8080}},
	}
}

// clusterPolicy returns one of ten policies that each namespace has.
func clusterPolicy(tb testing.TB, i int) *policy.Policy {
	sel := func(s string) labels.Selector {
		out, err := labels.Parse(s)
		if err != nil {
			tb.Fatal(err)
		}
		return out
	}
	namespace := fmt.Sprintf("team-%d", i%clusterNamespaces)
	pods := func(s string) policy.Peer {
		return policy.Peer{Pods: &policy.PodSelector{Namespace: namespace, Pods: sel(s)}}
	}
	namespaces := func(s string) policy.Peer {
		return policy.Peer{Pods: &policy.PodSelector{Namespaces: sel(s), Pods: labels.Everything()}}
	}
	network := func(s string, except ...string) policy.Peer {
		n := &policy.Networks{Prefix: netip.MustParsePrefix(s)}
		for _, e := range except {
			n.Except = append(n.Except, netip.MustParsePrefix(e))
		}
		return policy.Peer{Networks: n}
	}
	port := func(n uint16) []policy.Port { return []policy.Port{{Protocol: policy.TCP, First: n, Last: n}} }
	rules := func(peers []policy.Peer, ports []policy.Port) *policy.Rules {
		return &policy.Rules{Rules: []policy.Rule{{Action: policy.Accept, Peers: peers, Ports: ports}}}
	}
	p := &policy.Policy{Name: fmt.Sprintf("NetworkPolicy %s/%d", namespace, i), Tier: policy.Namespaced, Subject: policy.PodSelector{Namespace: namespace, Pods: labels.Everything()}}
	kind := i / clusterNamespaces
	switch kind {
	case 0: // deny all
		p.Ingress, p.Egress = &policy.Rules{}, &policy.Rules{}
	case 1: // the namespace to itself
		p.Ingress = rules([]policy.Peer{pods("")}, nil)
		p.Egress = rules([]policy.Peer{pods("")}, nil)
	case 2: // DNS
		p.Egress = rules(nil, []policy.Port{{Protocol: policy.UDP, First: 53, Last: 53}})
	case 3: // the front is for everybody
		p.Subject.Pods = sel("tier=front")
		p.Ingress = rules(nil, []policy.Port{{Protocol: policy.TCP, Name: "http"}})
	case 4: // monitoring
		p.Ingress = rules([]policy.Peer{namespaces("purpose=monitoring")}, port(9090))
	case 5: // a network outside
		p.Egress = rules([]policy.Peer{network("0.0.0.0/0", "10.0.0.0/8", fmt.Sprintf("192.168.%d.0/24", i%clusterNamespaces))}, port(443))
	default: // another team
		p.Subject.Pods = sel(fmt.Sprintf("app=app-%d", kind))
		p.Ingress = rules([]policy.Peer{{Pods: &policy.PodSelector{Namespaces: sel(fmt.Sprintf("name in (team-%d,team-%d)", (i+kind)%clusterNamespaces, (i+2*kind)%clusterNamespaces)), Pods: sel(fmt.Sprintf("app in (app-%d,app-%d)", kind, kind+1))}}}, []policy.Port{{Protocol: policy.TCP, First: 8000, Last: 8080}})
	}
	return p
}

// cluster returns the objects of the benchmarks, and the local addresses.
func cluster(tb testing.TB) (policy.Changes, []netip.Addr) {
	w := policy.Changes{Pods: map[string]*policy.Pod{}, Namespaces: map[string]labels.Set{}, Policies: map[string]*policy.Policy{}}
	var local []netip.Addr
	for i := range clusterPods {
		p := clusterPod(i)
		w.Pods[p.Key()] = p
		if i%91 == 0 && len(local) < clusterLocal { // in all namespaces
			local = append(local, p.Addresses[0])
		}
	}
	for i := range clusterNamespaces {
		name := fmt.Sprintf("team-%d", i)
		w.Namespaces[name] = labels.Set{"name": name, "purpose": []string{"monitoring", "work", "work", "work"}[i%4]}
	}
	for i := range clusterPolicies {
		p := clusterPolicy(tb, i)
		w.Policies[p.Name] = p
	}
	return w, local
}

func loaded(w policy.Changes, local []netip.Addr) (*Compiler, []*ruleset.Update) {
	c := New()
	c.Change(w)
	c.SetLocal(local)
	return c, c.Commit()
}

// BenchmarkLoad is a start: everything that there is, at once. The heap is what the Compiler keeps
// beyond the objects.
func BenchmarkLoad(b *testing.B) {
	w, local := cluster(b)
	heap := func() int {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc)
	}
	before := heap()
	c, updates := loaded(w, local)
	matches := 0
	for _, p := range updates[0].AddProfiles {
		matches += len(p.Allow)
	}
	b.Logf("%d profiles, %d classes, %d identities, %d ranges, %d matches", len(c.profiles), len(c.classes.byID), len(updates[0].Identities), len(c.ranges), matches)
	clear(updates)
	kept := float64(heap()-before) / (1 << 20)
	runtime.KeepAlive(c)
	b.ReportAllocs()
	for b.Loop() {
		loaded(w, local)
	}
	b.ReportMetric(kept, "heap-MB")
	runtime.KeepAlive(w)
}

// BenchmarkRelabel changes the labels of pods, to and fro, so that other rules are for them.
func BenchmarkRelabel(b *testing.B) {
	for _, count := range []int{1, 1000} {
		b.Run(fmt.Sprint(count), func(b *testing.B) {
			w, local := cluster(b)
			c, _ := loaded(w, local)
			to, fro := policy.Changes{Pods: map[string]*policy.Pod{}}, policy.Changes{Pods: map[string]*policy.Pod{}}
			for i := 0; len(to.Pods) < count; i++ {
				p, q := clusterPod(i), clusterPod(i)
				if q.Labels["app"] = "app-7"; slices.Contains(local, q.Addresses[0]) {
					continue
				}
				change := policy.Changes{Pods: map[string]*policy.Pod{p.Key(): q}}
				if c.Change(change); count > 1 || len(c.Commit()) > 0 {
					to.Pods[p.Key()], fro.Pods[p.Key()] = q, p
				}
			}
			c.Commit()
			b.ReportAllocs()
			elements, i := 0, 0
			for b.Loop() {
				c.Change(fro)
				for _, u := range c.Commit() {
					elements += len(u.Identities)
				}
				to, fro = fro, to
				i++
			}
			b.ReportMetric(float64(elements)/float64(i), "elements/op")
		})
	}
}

// BenchmarkPolicy deletes a policy and creates it again.
func BenchmarkPolicy(b *testing.B) {
	for kind, name := range []string{"deny", "namespace", "dns", "front", "monitoring", "network", "team"} {
		b.Run(name, func(b *testing.B) {
			w, local := cluster(b)
			c, _ := loaded(w, local)
			p := clusterPolicy(b, kind*clusterNamespaces)
			b.ReportAllocs()
			for b.Loop() {
				c.Change(policy.Changes{Policies: map[string]*policy.Policy{p.Name: nil}})
				c.Commit()
				c.Change(policy.Changes{Policies: map[string]*policy.Policy{p.Name: p}})
				c.Commit()
			}
		})
	}
}

// BenchmarkAdmit makes a pod local and removes it again.
func BenchmarkAdmit(b *testing.B) {
	w, local := cluster(b)
	c, _ := loaded(w, local)
	p := clusterPod(7)
	p.Name, p.Addresses = "new", []netip.Addr{netip.MustParseAddr("10.2.0.1")}
	b.ReportAllocs()
	for b.Loop() {
		c.Change(policy.Changes{Pods: map[string]*policy.Pod{p.Key(): p}})
		c.SetLocal(append(local, p.Addresses[0]))
		c.Commit()
		c.Change(policy.Changes{Pods: map[string]*policy.Pod{p.Key(): nil}})
		c.SetLocal(local)
		c.Commit()
	}
}
