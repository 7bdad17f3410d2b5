// Package apisource follows the Services and EndpointSlices of an API server, and the zone of this
// node. It keeps only what leads connections to endpoints.
package apisource

import (
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
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
)

// Source follows an API server. It implements service.Source.
type Source struct {
	// Connect returns a client of the API server once the node has a certificate for it, or the
	// error of ctx.
	Connect func(ctx context.Context) (*cluster.Client, error)
	Node    string // the name of this node
	// Mistaken is called with each problem of an object when it is read. It must not block.
	Mistaken func(accept.Problem)
}

var _ service.Source = (*Source)(nil)

const servicesName, slicesName, nodesName = "Services", "EndpointSlices", "nodes"

// Run implements service.Source.
func (s *Source) Run(ctx context.Context, update func(service.Changes), waiting func(error)) error {
	waiting(errors.New("services: the API server has not answered yet"))
	client, err := s.Connect(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	r := &run{
		Source: s, client: client, wake: make(chan struct{}, 1), pending: newChanges(),
		unknown: map[string]bool{servicesName: true, slicesName: true, nodesName: true}, requests: map[string]func() error{},
	}
	r.follow(ctx)
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

// run is one call of Run.
type run struct {
	*Source
	client *cluster.Client
	wake   chan struct{}

	mu       sync.Mutex
	pending  service.Changes
	changed  bool                    // whether something is pending
	unknown  map[string]bool         // the lists that have not arrived yet
	requests map[string]func() error // why those of a list fail, or nil
}

func newChanges() service.Changes {
	return service.Changes{Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}}
}

// take returns what is pending once all lists have arrived, and why requests fail.
func (r *run) take() (*service.Changes, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for _, list := range slices.Sorted(maps.Keys(r.requests)) {
		if failed := r.requests[list](); failed != nil {
			err = fmt.Errorf("services: the API server does not answer about %s: %s", list, cluster.OneLine(failed))
			if apierrors.IsForbidden(failed) {
				err = errdefs.ErrPermissionDenied.WithMessage(fmt.Sprintf("services: the API server forbids this node to read %s: bind the ClusterRole system:node-proxier to the group system:nodes", list))
			}
			break
		}
	}
	if len(r.unknown) > 0 {
		if err == nil {
			err = fmt.Errorf("services: the API server has not answered yet about %s", strings.Join(slices.Sorted(maps.Keys(r.unknown)), ", "))
		}
		return nil, err
	}
	if !r.changed {
		return nil, err
	}
	out := r.pending
	r.pending, r.changed = newChanges(), false
	return &out, err
}

// add makes changes pending. The list has arrived.
func (r *run) add(list string, to func(*service.Changes)) {
	r.mu.Lock()
	to(&r.pending)
	r.changed = true
	delete(r.unknown, list)
	r.mu.Unlock()
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

// record adds what has changed to changes by their keys.
func record[V any](to map[string]*V, d cluster.Difference[*V]) {
	maps.Copy(to, d.Set)
	for _, key := range d.Gone {
		to[key] = nil
	}
}

func (r *run) follow(ctx context.Context) {
	serviceList := cluster.List{Path: "/api/v1/services", Item: &corev1.Service{}, List: &corev1.ServiceList{}}
	r.observe(servicesName, cluster.Follow(ctx, r.client, serviceList, cluster.Follower[*corev1.Service, *service.Service]{
		Keep: func(from *corev1.Service) (*service.Service, bool) {
			s, problems := accept.Service(from)
			r.mistaken(problems)
			return &s, !accept.OtherProxy(from)
		},
		Equal: func(a, b *service.Service) bool { return reflect.DeepEqual(a, b) },
		Changed: func(d cluster.Difference[*service.Service]) {
			r.add(servicesName, func(c *service.Changes) { record(c.Services, d) })
		},
	}).Err)
	sliceList := cluster.List{Path: "/apis/discovery.k8s.io/v1/endpointslices", Item: &discoveryv1.EndpointSlice{}, List: &discoveryv1.EndpointSliceList{}}
	r.observe(slicesName, cluster.Follow(ctx, r.client, sliceList, cluster.Follower[*discoveryv1.EndpointSlice, *service.Slice]{
		Keep: func(from *discoveryv1.EndpointSlice) (*service.Slice, bool) {
			s, problems := accept.Slice(from)
			r.mistaken(problems)
			return &s, !accept.ForDNS(from)
		},
		Equal: func(a, b *service.Slice) bool { return reflect.DeepEqual(a, b) },
		Changed: func(d cluster.Difference[*service.Slice]) {
			r.add(slicesName, func(c *service.Changes) { record(c.Slices, d) })
		},
	}).Err)
	nodeList := cluster.List{Path: "/api/v1/nodes", Fields: "metadata.name=" + r.Node, Item: &corev1.Node{}, List: &corev1.NodeList{}}
	r.observe(nodesName, cluster.Follow(ctx, r.client, nodeList, cluster.Follower[*corev1.Node, service.Node]{
		Keep:  func(n *corev1.Node) (service.Node, bool) { return accept.Node(n), true },
		Equal: service.Node.Equal,
		Changed: func(d cluster.Difference[service.Node]) {
			node := &service.Node{Name: r.Node}
			for _, n := range d.Set {
				*node = n
			}
			r.add(nodesName, func(c *service.Changes) { c.Node = node })
		},
	}).Err)
}

func (r *run) mistaken(problems []accept.Problem) {
	for _, p := range problems {
		r.Mistaken(p)
	}
}
