// Package declared owns the Services that manifests declare on a node without a cluster. It gives
// them addresses and node ports, which the journal keeps, and finds their endpoints among the
// node's own pods.
package declared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/network/ipam"
	"github.com/huskd/husk/internal/network/service"
	"github.com/huskd/husk/internal/network/service/accept"
	"github.com/huskd/husk/internal/network/service/endpoints"
	"github.com/huskd/husk/internal/network/service/placement"
	"github.com/huskd/husk/internal/pod"
)

// Config is what Services work with.
type Config struct {
	Journal *journal.Journal
	// Subnets have the addresses of Services, at most one of each family. The first one's family is
	// that of Services that name none.
	Subnets []netip.Prefix
	// PodSubnets have the addresses of pods, which no Service can have.
	PodSubnets []netip.Prefix
	// Places returns where the node's own addresses, networks and gateways are, and Others where
	// other nodes and DNS servers are.
	Places func() ([]placement.Place, error)
	Others func() []placement.Place
	// Listener returns where a process of the node listens that would get the packets to a port.
	Listener func(pod.PortMapping) (where netip.AddrPort, listens bool, err error)
	// Node is the name of the node.
	Node string
	// Pods returns the pods of the node.
	Pods func() []agent.Pod
	// Report adds an event.
	Report func(event.Event)
	// Changed is called with all that Run says, before it says so. It doesn't block.
	Changed func(service.Changes)
	Log     *slog.Logger
}

// Services owns Services. It implements service.Source. Its methods may be called concurrently.
type Services struct {
	cfg     Config
	records journal.Table[record]
	wake    chan struct{} // of capacity 1: nudges add up to one

	// effective are the Services with what they got. It is read without mu, since agent and network
	// read it with their own locks held.
	effective atomic.Pointer[[]*corev1.Service]

	// Invariant: mu guards what follows.
	mu        sync.Mutex
	entries   map[string]*entry // by the keys of their objects
	declared  map[source.Kind]map[string]*declaration
	addresses map[bool]*ipam.Allocator // by whether they are IPv6
	last      *service.Changes         // all that there is, as Run or Start has last said it
	// unselective is since when Services have no pods; zero once that was reported.
	unselective map[string]time.Time
}

var _ service.Source = (*Services)(nil)

// Object is one of a manifest: a Service, or endpoints.
type Object struct {
	Service *corev1.Service `json:"service,omitempty"`
	Slice   *service.Slice  `json:"slice,omitempty"`
}

// key is the key of the object's record in the journal.
func (o Object) key() string {
	if o.Service != nil {
		return serviceKey(o.Service.Namespace, o.Service.Name)
	}
	return "slice/" + o.Slice.Key()
}

func serviceKey(namespace, name string) string { return "service/" + namespace + "/" + name }

// String returns the object as it appears in messages.
func (o Object) String() string {
	if o.Service != nil {
		return "Service " + o.Service.Namespace + "/" + o.Service.Name
	}
	return "EndpointSlice " + o.Slice.Key()
}

// record is what the journal keeps of an object.
type record struct {
	Object
	Source string `json:"source"` // "run", or where it is declared: "file:/path"
	assignment
}

// assignment is what a Service got.
type assignment struct {
	// Families are set of a Service with endpoints, the first one's address is its clusterIP.
	Families  []corev1.IPFamily `json:"families,omitempty"`
	Addresses []netip.Addr      `json:"addresses,omitempty"`
	NodePorts []int32           `json:"nodePorts,omitempty"` // one of each port, 0 without
}

type entry struct {
	record
	// effective is the Service with what it got, and words what the kernel and names need of it.
	effective *corev1.Service
	words     *service.Service
}

// New returns an owner without Services. Load adds the recorded ones.
func New(cfg Config) (*Services, error) {
	s := &Services{
		cfg: cfg, records: journal.NewTable[record](cfg.Journal, "service"),
		wake: make(chan struct{}, 1), entries: map[string]*entry{}, declared: map[source.Kind]map[string]*declaration{},
		addresses: map[bool]*ipam.Allocator{}, unselective: map[string]time.Time{},
	}
	for _, subnet := range cfg.Subnets {
		a, err := ipam.New(ipam.DefaultQuarantine, subnet)
		if err != nil {
			return nil, err
		}
		s.addresses[subnet.Addr().Is6()] = a
	}
	return s, nil
}

// Load adopts the recorded Services. It sets unreadable records aside and returns their errors.
func (s *Services) Load() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	bad := s.records.Load(func(key string, rec record) error {
		if rec.Service == nil && rec.Slice == nil || rec.key() != key {
			return errors.New("not the record of a Service")
		}
		if err := s.adopt(key, rec.Addresses); err != nil {
			return err
		}
		s.entries[key] = newEntry(rec)
		return nil
	})
	s.publish()
	return bad
}

func newEntry(rec record) *entry {
	e := &entry{record: rec}
	if rec.Service != nil {
		e.effective = rec.effective(rec.Service)
		words, _ := accept.Service(e.effective) // package manifest has reported the problems
		e.words = &words
	}
	return e
}

// nudge makes Run look again.
func (s *Services) nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// PodChanged says that pods may have changed. It doesn't block.
func (s *Services) PodChanged() { s.nudge() }

// Effective returns the Services with their addresses and node ports. They must not be changed.
func (s *Services) Effective() []*corev1.Service {
	if all := s.effective.Load(); all != nil {
		return *all
	}
	return nil
}

// publish makes Effective return what there is. The caller holds s.mu.
func (s *Services) publish() {
	var all []*corev1.Service
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		if e := s.entries[key]; e.effective != nil {
			all = append(all, e.effective)
		}
	}
	s.effective.Store(&all)
	s.nudge()
}

// Start says what there is before Run does, so that names are known before anybody asks for them.
func (s *Services) Start() {
	now, _ := s.observe(time.Now())
	s.mu.Lock()
	s.last = &now
	s.mu.Unlock()
	s.cfg.Changed(now)
}

// Run implements service.Source.
func (s *Services) Run(ctx context.Context, update func(service.Changes), waiting func(error)) error {
	s.mu.Lock()
	last := s.last
	s.mu.Unlock()
	if last != nil {
		update(*last)
		waiting(nil)
	}
	s.nudge()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-s.wake:
		case <-timer.C:
		}
		now, next := s.observe(time.Now())
		changes := now
		if last != nil {
			changes = difference(*last, now)
		}
		if last == nil || len(changes.Services)+len(changes.Slices) > 0 {
			s.cfg.Changed(changes)
			update(changes)
		}
		if last == nil {
			waiting(nil)
		}
		last = &now
		timer.Stop()
		if next > 0 {
			timer.Reset(next)
		}
	}
}

// selectTime is how long a Service may have no pods before an event says so: those of the same
// files may have to be started.
const selectTime = 10 * time.Second

// observe returns all that there is, and after what time to look again, if nothing changes before.
func (s *Services) observe(now time.Time) (out service.Changes, next time.Duration) {
	pods := s.pods()
	s.mu.Lock()
	defer s.mu.Unlock()
	out = service.Changes{
		Services: map[string]*service.Service{}, Slices: map[string]*service.Slice{}, Node: &service.Node{Name: s.cfg.Node},
	}
	for _, key := range slices.Sorted(maps.Keys(s.entries)) {
		e := s.entries[key]
		if e.Slice != nil {
			if to := s.entries[serviceKey(e.Slice.Namespace, e.Slice.Service)]; to == nil || len(to.Service.Spec.Selector) == 0 {
				out.Slices[e.Slice.Key()] = e.Slice
			}
			continue
		}
		out.Services[e.words.Key()] = e.words
		if len(e.Service.Spec.Selector) == 0 || e.Service.Spec.Type == corev1.ServiceTypeExternalName {
			continue
		}
		chosen := endpoints.Select(e.effective, pods)
		if wait := s.expectPods(key, len(chosen) > 0, now); wait > 0 && (next == 0 || wait < next) {
			next = wait
		}
		for _, slice := range endpoints.Slices(e.effective, chosen, s.cfg.Node) {
			out.Slices[slice.Key()] = slice
		}
	}
	return out, next
}

// expectPods reports a Service that selects no pod for some time. It returns after what time to
// look again. The caller holds s.mu.
func (s *Services) expectPods(key string, has bool, now time.Time) time.Duration {
	since, waits := s.unselective[key]
	switch {
	case has:
		delete(s.unselective, key)
	case !waits:
		s.unselective[key] = now
		return selectTime
	case since.IsZero():
	case now.Sub(since) < selectTime:
		return selectTime - now.Sub(since)
	default:
		s.unselective[key] = time.Time{}
		e := s.entries[key]
		s.report(e.Object, event.Event{Warning: true, Reason: "NoPods", Message: fmt.Sprintf(
			"no pod in namespace %s has the labels %s, which its selector wants", e.Service.Namespace, labels.Set(e.Service.Spec.Selector))})
	}
	return 0
}

// EventName returns the name in the events of a Service.
func EventName(namespace, name string) string { return namespace + "/service/" + name }

// report adds an event about an object.
func (s *Services) report(o Object, e event.Event) {
	if o.Service != nil {
		e.Pod = EventName(o.Service.Namespace, o.Service.Name)
	}
	s.cfg.Report(e)
	if e.Warning {
		s.cfg.Log.Warn("services: "+e.Message, "object", o.String(), "reason", e.Reason)
	}
}

// difference returns the changes from one state to the next.
func difference(from, to service.Changes) service.Changes {
	return service.Changes{Services: changed(from.Services, to.Services), Slices: changed(from.Slices, to.Slices)}
}

func changed[V any](from, to map[string]*V) map[string]*V {
	out := map[string]*V{}
	for key, value := range to {
		if last := from[key]; last == nil || last != value && !reflect.DeepEqual(last, value) {
			out[key] = value
		}
	}
	for key := range from {
		if to[key] == nil {
			out[key] = nil
		}
	}
	return out
}

// declares reports whether a source declares what there should be, unlike husk run.
func declares(name string) bool {
	return strings.HasPrefix(name, string(source.File)) || strings.HasPrefix(name, string(source.Web))
}
