package firewall

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
)

// world holds the source's objects.
type world struct {
	policies   map[string]*policy.Policy
	namespaces map[string]labels.Set
	pods       map[string]*policy.Pod
	nodes      map[string]*policy.Node
}

func newWorld() world {
	return world{map[string]*policy.Policy{}, map[string]labels.Set{}, map[string]*policy.Pod{}, map[string]*policy.Node{}}
}

func (w *world) change(c policy.Changes) {
	merge(w.policies, c.Policies, func(p *policy.Policy) bool { return p == nil })
	merge(w.namespaces, c.Namespaces, func(l labels.Set) bool { return l == nil })
	merge(w.pods, c.Pods, func(p *policy.Pod) bool { return p == nil })
	merge(w.nodes, c.Nodes, func(n *policy.Node) bool { return n == nil })
}

// complete adds to the source's first changes, which bring everything that there is, the removal of
// what it doesn't have any more.
func (w *world) complete(c *policy.Changes) {
	complete(w.policies, &c.Policies)
	complete(w.namespaces, &c.Namespaces)
	complete(w.pods, &c.Pods)
	complete(w.nodes, &c.Nodes)
}

func complete[V any](objects map[string]V, changes *map[string]V) {
	if *changes == nil {
		*changes = map[string]V{}
	}
	var gone V
	for key := range objects {
		if _, ok := (*changes)[key]; !ok {
			(*changes)[key] = gone
		}
	}
}

func merge[V any](objects, changes map[string]V, removed func(V) bool) {
	for key, v := range changes {
		if removed(v) {
			delete(objects, key)
			continue
		}
		objects[key] = v
	}
}

// World returns everything that decides about connections, as far as it is known.
func (f *Firewall) World() *policy.World {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := &policy.World{Namespaces: maps.Clone(f.world.namespaces)}
	for _, p := range f.world.policies {
		w.Policies = append(w.Policies, *p)
	}
	for _, n := range f.world.nodes {
		w.Nodes = append(w.Nodes, *n)
	}
	for key, p := range f.world.pods {
		if _, ok := f.local[key]; !ok {
			w.Pods = append(w.Pods, *p)
		}
	}
	for key := range f.local {
		if p := f.known(key); p != nil {
			w.Pods = append(w.Pods, *p)
		}
	}
	slices.SortFunc(w.Policies, func(a, b policy.Policy) int { return a.Compare(&b) })
	return w
}
