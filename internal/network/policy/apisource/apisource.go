// Package apisource follows the policies of an API server, and what they select: namespaces, pods
// of all nodes, and nodes. It keeps only what policies need of each object.
package apisource

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
)

// Source follows an API server. It implements policy.Source.
type Source struct {
	// Connect returns a client of the API server once the node has a certificate for it, or the
	// error of ctx.
	Connect func(ctx context.Context) (*cluster.Client, error)
	// Mistaken is called with the problems of each policy that has some, and with none once it has
	// no more or is gone. It must not block.
	Mistaken func(policy string, problems []accept.Problem)
	// Recheck is how often to look whether the server has ClusterNetworkPolicies, if this node can't
	// watch their definition. It is 30 s if 0.
	Recheck time.Duration
	// Linger is how long to follow what policies select after the last policy is gone. It is a minute
	// if 0.
	Linger time.Duration
}

var _ policy.Source = (*Source)(nil)

const clusterPlural = "clusternetworkpolicies"

// The lists.
var (
	namespacedList = cluster.List{Path: "/apis/networking.k8s.io/v1/networkpolicies", Item: &networkingv1.NetworkPolicy{}, List: &networkingv1.NetworkPolicyList{}}
	clusterList    = cluster.List{Path: "/apis/policy.networking.k8s.io/v1alpha2/" + clusterPlural, Item: &accept.ClusterNetworkPolicy{}, List: &accept.ClusterNetworkPolicyList{}}
	namespaceList  = cluster.List{Path: "/api/v1/namespaces", Item: &corev1.Namespace{}, List: &corev1.NamespaceList{}}
	nodeList       = cluster.List{Path: "/api/v1/nodes", Item: &corev1.Node{}, List: &corev1.NodeList{}}
	// definitionList has the definition of ClusterNetworkPolicies. Its metadata change with its
	// status.
	definitionList = cluster.List{
		Path: "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", Fields: "metadata.name=" + clusterPlural + "." + accept.ClusterVersion.Group,
		Item: &metav1.PartialObjectMetadata{}, List: &metav1.PartialObjectMetadataList{}, Metadata: true,
	}
	podList = cluster.List{Path: "/api/v1/pods", Fields: "status.phase!=Succeeded,status.phase!=Failed", Item: &corev1.Pod{}, List: &corev1.PodList{}}
)

// Run implements policy.Source.
func (s *Source) Run(ctx context.Context, update func(policy.Changes), waiting func(error)) error {
	waiting(errors.New("policies: the API server has not answered yet"))
	client, err := s.Connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r := &run{
		Source: s, client: client, wake: make(chan struct{}, 1), pending: newChanges(),
		unknown: map[string]bool{namespacedName: true, clusterName: true}, policies: map[string]bool{},
		requests: map[string]func() error{}, mistakes: map[string][]accept.Problem{},
	}
	r.followNamespaced(ctx)
	var follower sync.WaitGroup
	follower.Go(func() { r.followWhileServed(ctx) })
	defer follower.Wait()
	tick := time.NewTicker(errorInterval)
	defer tick.Stop()
	last := "" // why requests fail, as text
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-r.wake:
		}
		r.followWhilePolicies(ctx)
		changes, err := r.take()
		if changes != nil {
			update(*changes)
		}
		if now := fmt.Sprint(err); now != last {
			waiting(err)
			last = now
		}
	}
}

// errorInterval is how often Run looks whether requests fail.
const errorInterval = time.Second

// recheck is the default of Source.Recheck.
const recheck = 30 * time.Second

// A server serves a kind soon after its definition, and stops soon after that is gone. It is asked
// settleChecks times after a change, after firstSettle at first and then after twice the last wait.
const (
	firstSettle  = 250 * time.Millisecond
	settleChecks = 8
)

// rewatch is when a node that may not watch the definition tries again.
const rewatch = 10 * time.Minute

// linger is the default of Source.Linger.
const linger = time.Minute

// run is one call of Run.
type run struct {
	*Source
	client *cluster.Client
	wake   chan struct{}
	// The fields until mu are only used by Run itself.
	stopObjects func()    // ends the following of what policies select; nil without
	unneeded    time.Time // since when there is no policy, while that is still followed
	said        bool      // the first update was made
	incomplete  bool      // of the last update

	mu       sync.Mutex
	pending  policy.Changes
	changed  bool                        // whether something is pending
	unknown  map[string]bool             // the lists that have not arrived yet
	policies map[string]bool             // the policies that there are
	requests map[string]func() error     // why those of a list fail, or nil
	mistakes map[string][]accept.Problem // by policy
}

func newChanges() policy.Changes {
	return policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: map[string]labels.Set{}, Pods: map[string]*policy.Pod{}, Nodes: map[string]*policy.Node{}}
}

// take returns what is pending once all lists that are needed have arrived, and why requests fail.
func (r *run) take() (*policy.Changes, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for _, list := range slices.Sorted(maps.Keys(r.requests)) {
		if failed := r.requests[list](); failed != nil {
			err = fmt.Errorf("policies: the API server does not answer about %s: %s", list, cluster.OneLine(failed))
			if apierrors.IsForbidden(failed) {
				err = errdefs.ErrPermissionDenied.WithMessage(fmt.Sprintf("policies: the API server forbids this node to read %s: bind the ClusterRole of docs/policy.md to the group system:nodes", list))
			}
			break
		}
	}
	if unknown := r.awaited(); len(unknown) > 0 {
		if err == nil {
			err = fmt.Errorf("policies: the API server has not answered yet about %s", strings.Join(unknown, ", "))
		}
		if r.said && !r.incomplete { // the first policy has appeared
			r.incomplete = true
			return &policy.Changes{Incomplete: true}, err
		}
		return nil, err
	}
	if !r.changed && !r.incomplete {
		return nil, err
	}
	out := r.pending
	r.pending, r.changed, r.said, r.incomplete = newChanges(), false, true, false
	return &out, err
}

// awaited returns the lists without which the policies can't be in force. The caller holds mu.
func (r *run) awaited() (out []string) {
	for _, list := range slices.Sorted(maps.Keys(r.unknown)) {
		if list == namespacedName || list == clusterName || len(r.policies) > 0 {
			out = append(out, list)
		}
	}
	return out
}

// add makes changes pending. The list has arrived.
func (r *run) add(list string, to func(policy.Changes)) {
	r.mu.Lock()
	to(r.pending)
	for name, p := range r.pending.Policies {
		if r.policies[name] = true; p == nil {
			delete(r.policies, name)
		}
	}
	r.changed = true
	delete(r.unknown, list)
	r.mu.Unlock()
	r.notify()
}

func (r *run) notify() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// observe makes Run report why requests about the list fail.
func (r *run) observe(list string, err func() error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.requests[list] = err
}

// record adds what has changed to changes by their keys. Prefix is that of the keys.
func record[V any](to map[string]V, prefix string, d cluster.Difference[V]) {
	for key, value := range d.Set {
		to[prefix+strings.TrimPrefix(key, "/")] = value
	}
	for _, key := range d.Gone {
		to[prefix+strings.TrimPrefix(key, "/")] = *new(V)
	}
}

// The names of the lists in messages.
const (
	namespacedName, clusterName         = "NetworkPolicies", "ClusterNetworkPolicies"
	namespacesName, nodesName, podsName = "namespaces", "nodes", "pods"
)

// The beginnings of the names of policies.
const namespacedPrefix, clusterPrefix = "NetworkPolicy ", "ClusterNetworkPolicy "

// followed is a list that is followed.
type followed[T cluster.Object, V any] struct {
	name   string // in messages
	prefix string // of the keys in changes
	list   cluster.List
	keep   func(T) (V, bool)
	same   func(a, b V) bool
	in     func(policy.Changes) map[string]V
	gone   func(key string) // takes what is gone; nil if unused
}

// follow follows a list until ctx ends or stop is called, which removes all that the list has
// brought.
func follow[T cluster.Object, V any](ctx context.Context, r *run, f followed[T, V]) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	stopped := false // guarded by mu
	removed := func(keys []string) {
		for _, key := range keys {
			if f.gone != nil {
				f.gone(f.prefix + strings.TrimPrefix(key, "/"))
			}
		}
	}
	objects := cluster.Follow(ctx, r.client, f.list, cluster.Follower[T, V]{
		Keep: f.keep, Equal: f.same,
		Changed: func(d cluster.Difference[V]) {
			removed(d.Gone)
			r.add(f.name, func(c policy.Changes) {
				if !stopped {
					record(f.in(c), f.prefix, d)
				}
			})
		},
	})
	r.observe(f.name, objects.Err)
	return func() {
		cancel()
		r.observe(f.name, func() error { return nil })
		var keys []string
		r.add(f.name, func(c policy.Changes) {
			stopped, keys = true, objects.Keys()
			record(f.in(c), f.prefix, cluster.Difference[V]{Gone: keys})
		})
		removed(keys)
	}
}

func changedPolicies(c policy.Changes) map[string]*policy.Policy { return c.Policies }

// followNamespaced follows NetworkPolicies.
func (r *run) followNamespaced(ctx context.Context) {
	follow(ctx, r, followed[*networkingv1.NetworkPolicy, *policy.Policy]{
		name: namespacedName, prefix: namespacedPrefix, list: namespacedList, same: samePolicy, in: changedPolicies, gone: r.forget,
		keep: func(p *networkingv1.NetworkPolicy) (*policy.Policy, bool) {
			return r.accepted(accept.Namespaced(p)), true
		},
	})
}

// followWhilePolicies follows what policies select from the first policy on, until there has been
// none for some time: without policies, a node doesn't hold the cluster's pods.
func (r *run) followWhilePolicies(ctx context.Context) {
	r.mu.Lock()
	needed := len(r.policies) > 0
	if needed && r.stopObjects == nil {
		r.unknown[namespacesName], r.unknown[nodesName], r.unknown[podsName] = true, true, true
	}
	r.mu.Unlock()
	switch {
	case needed:
		r.unneeded = time.Time{}
		if r.stopObjects == nil {
			r.stopObjects = r.followObjects(ctx)
		}
	case r.stopObjects == nil:
	case r.unneeded.IsZero():
		r.unneeded = time.Now()
	case time.Since(r.unneeded) >= cmp.Or(r.Linger, linger):
		r.stopObjects()
		r.stopObjects, r.unneeded = nil, time.Time{}
	}
}

// followObjects follows what policies select until stop is called, which forgets it.
func (r *run) followObjects(ctx context.Context) (stop func()) {
	shared := interner{}
	stops := []func(){
		follow(ctx, r, followed[*corev1.Namespace, labels.Set]{
			name: namespacesName, list: namespaceList, same: sameLabels, in: func(c policy.Changes) map[string]labels.Set { return c.Namespaces },
			keep: func(n *corev1.Namespace) (labels.Set, bool) { return nonNil(n.Labels), true },
		}),
		follow(ctx, r, followed[*corev1.Node, *policy.Node]{
			name: nodesName, list: nodeList, same: sameNode, in: func(c policy.Changes) map[string]*policy.Node { return c.Nodes },
			keep: func(n *corev1.Node) (*policy.Node, bool) { return accept.Node(n), true },
		}),
		follow(ctx, r, followed[*corev1.Pod, *policy.Pod]{
			name: podsName, list: podList, same: samePod, in: func(c policy.Changes) map[string]*policy.Pod { return c.Pods }, keep: shared.keep,
		}),
	}
	return func() {
		for _, stop := range stops {
			stop()
		}
	}
}

// followWhileServed follows ClusterNetworkPolicies as long as the server has them, until ctx ends.
// Their definition may be installed at any time. A node watches it: with thousands of nodes, asking
// for what isn't there each half a minute, as one must that may not watch, is hundreds of requests
// a second.
func (r *run) followWhileServed(ctx context.Context) {
	wait := cmp.Or(r.Recheck, recheck)
	d := definition{changed: make(chan struct{}, 1), stop: func() {}}
	var stop func() // nil if they aren't followed
	for checks := 0; ; checks++ {
		next, watched := wait, d.watched(ctx, r.client)
		if watched {
			next = min(next, firstSettle<<min(checks, settleChecks))
		}
		if !watched || checks < settleChecks {
			served, err := r.client.Serves(ctx, accept.ClusterVersion, clusterPlural)
			switch {
			case ctx.Err() != nil:
				return
			case err != nil && stop == nil:
				r.observe(clusterName, func() error { return err })
				r.notify()
			case err != nil: // what is followed may still be served
			case served && stop == nil:
				stop = r.followCluster(ctx)
			case !served:
				if stop != nil {
					stop()
					stop = nil
				}
				r.observe(clusterName, func() error { return nil })
				r.add(clusterName, func(policy.Changes) {})
			}
			if err != nil {
				next, checks = min(next, errorInterval), -1
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-d.changed:
			checks = -1
		case <-time.After(next):
		}
	}
}

// definition watches the definition of ClusterNetworkPolicies.
type definition struct {
	changed chan struct{} // of capacity 1
	cache   *cluster.Cache[string]
	stop    func()
	tried   time.Time // when the watch was last begun
}

// watched reports whether changes of the definition arrive. It begins to watch until ctx ends. A
// watch that the server refuses is given up and tried again after a while.
func (d *definition) watched(ctx context.Context, client *cluster.Client) bool {
	if d.cache == nil && time.Since(d.tried) >= rewatch {
		own, cancel := context.WithCancel(ctx)
		d.stop, d.tried = cancel, time.Now()
		d.cache = cluster.Follow(own, client, definitionList, cluster.Follower[*metav1.PartialObjectMetadata, string]{
			Keep:  func(o *metav1.PartialObjectMetadata) (string, bool) { return o.ResourceVersion, true },
			Equal: func(a, b string) bool { return a == b },
			Changed: func(cluster.Difference[string]) {
				select {
				case d.changed <- struct{}{}:
				default:
				}
			},
		})
	}
	if d.cache == nil {
		return false
	}
	err := d.cache.Err()
	if apierrors.IsForbidden(err) || apierrors.IsNotFound(err) {
		d.stop()
		d.cache = nil
	}
	return err == nil && d.cache.Synced()
}

// followCluster follows ClusterNetworkPolicies until stop is called, which removes them all.
func (r *run) followCluster(ctx context.Context) (stop func()) {
	return follow(ctx, r, followed[*accept.ClusterNetworkPolicy, *policy.Policy]{
		name: clusterName, prefix: clusterPrefix, list: clusterList, same: samePolicy, in: changedPolicies, gone: r.forget,
		keep: func(p *accept.ClusterNetworkPolicy) (*policy.Policy, bool) {
			return r.accepted(accept.Cluster(p)), true
		},
	})
}

// accepted reports the problems of a policy, unless they are those that it had.
func (r *run) accepted(p policy.Policy, problems []accept.Problem) *policy.Policy {
	r.mistaken(p.Name, problems)
	return &p
}

func (r *run) mistaken(name string, problems []accept.Problem) {
	r.mu.Lock()
	same := slices.Equal(r.mistakes[name], problems)
	if r.mistakes[name] = problems; len(problems) == 0 {
		delete(r.mistakes, name)
	}
	r.mu.Unlock()
	if !same {
		r.Mistaken(name, problems)
	}
}

// forget reports that a policy that is gone has no problems.
func (r *run) forget(name string) { r.mistaken(name, nil) }

func samePolicy(a, b *policy.Policy) bool { return reflect.DeepEqual(a, b) }

func sameLabels(a, b labels.Set) bool { return maps.Equal(a, b) }

func sameNode(a, b *policy.Node) bool {
	return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Addresses, b.Addresses)
}

func samePod(a, b *policy.Pod) bool {
	return maps.Equal(a.Labels, b.Labels) && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.Ports, b.Ports) && a.Started.Equal(b.Started)
}

// nonNil returns labels that are not nil: nil would be a namespace that is gone.
func nonNil(set labels.Set) labels.Set {
	if set == nil {
		return labels.Set{}
	}
	return set
}

// interner makes equal values of pods the same. The pods of a ReplicaSet have the same labels, and
// a map of labels is the largest part of a pod.
type interner map[string]*policy.Pod

// maxInterned bounds the values that are kept for pods that may be gone.
const maxInterned = 4096

// keep returns what policies need of a pod. It is called by one goroutine.
func (i interner) keep(from *corev1.Pod) (*policy.Pod, bool) {
	p := accept.Pod(from)
	if p == nil {
		return nil, false
	}
	i.intern(p)
	return p, true
}

func (i interner) intern(p *policy.Pod) {
	var key strings.Builder
	key.WriteString(p.Namespace)
	for _, label := range slices.Sorted(maps.Keys(p.Labels)) {
		key.WriteString("\x00" + label + "=" + p.Labels[label])
	}
	for _, port := range p.Ports {
		fmt.Fprintf(&key, "\x00%d:%d:%s", port.Protocol, port.Port, port.Name)
	}
	same, ok := i[key.String()]
	if !ok {
		if len(i) >= maxInterned {
			clear(i)
		}
		i[key.String()] = &policy.Pod{Namespace: p.Namespace, Labels: p.Labels, Ports: p.Ports}
		return
	}
	p.Namespace, p.Labels, p.Ports = same.Namespace, same.Labels, same.Ports
}
