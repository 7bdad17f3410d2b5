// Package declared brings the policies of manifests, the node's own pods, and what other nodes tell
// of theirs. Without an API server a namespace has the label of its name and those of its manifest,
// and no nodes are known.
package declared

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/network/policy"
)

// Source has the policies that were declared, and the pods of the node. It implements
// policy.Source.
type Source struct {
	pods func() []*policy.Pod
	wake chan struct{}

	mu       sync.Mutex
	declared map[string]Objects // by origin
	origins  []string
	others   []*policy.Pod // of other nodes
	awaited  bool          // they are not known yet
	known    func() Known
	kept     *kept // nil if nothing is in doubt, or nobody has asked yet
	// version counts the changes of declared, and seen is the last that Run has dealt with.
	version, seen uint64
	dealt         chan struct{} // closed and replaced when seen changes
}

var _ policy.Source = (*Source)(nil)

// Objects are what an origin declares.
type Objects struct {
	Policies map[string]*policy.Policy // by name
	// Namespaces are the labels of namespaces, by name.
	Namespaces map[string]map[string]string
	// Unread are the files whose policies and namespaces aren't known.
	Unread []string
	// Doubts say why the origin may lack policies and namespaces, or have older ones than the last.
	Doubts []string
}

// New returns the source of the policies of some origins, such as the directory of manifests. Of
// two policies with the same name, that of the earlier origin counts. The function pods returns the
// node's pods that run and have an address.
func New(pods func() []*policy.Pod, origins ...string) *Source {
	return &Source{pods: pods, wake: make(chan struct{}, 1), declared: map[string]Objects{}, origins: origins, dealt: make(chan struct{})}
}

// Declare makes objects those of an origin. The first update waits until all files are known: one
// that breaks while huskd is stopped opens nothing.
func (s *Source) Declare(origin string, objects Objects) {
	s.mu.Lock()
	s.declared[origin] = objects
	if s.kept != nil {
		_, unsure, sure := s.doubts()
		s.kept.forget(unsure, sure)
	}
	s.version++
	s.mu.Unlock()
	s.Changed()
}

// Settle returns once Run has dealt with all that was declared or has ended, or once ctx has ended.
func (s *Source) Settle(ctx context.Context) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for want := s.version; s.seen < want && ctx.Err() == nil; {
		dealt := s.dealt
		s.mu.Unlock()
		select {
		case <-dealt:
		case <-ctx.Done():
		}
		s.mu.Lock()
	}
}

// settled notes that Run has dealt with a version.
func (s *Source) settled(version uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = version
	close(s.dealt)
	s.dealt = make(chan struct{})
}

// Changed tells the source that a pod has changed. It doesn't block.
func (s *Source) Changed() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// AwaitOthers makes policies wait until the pods of other nodes are known. It is called before Run.
func (s *Source) AwaitOthers() { s.awaited = true }

// Others says which pods other nodes have.
func (s *Source) Others(pods []*policy.Pod) {
	s.mu.Lock()
	s.others, s.awaited = pods, false
	s.mu.Unlock()
	s.Changed()
}

// Run implements policy.Source.
func (s *Source) Run(ctx context.Context, update func(policy.Changes), waiting func(error)) error {
	s.Changed()
	var last *policy.Changes
	reason := ""
	for {
		select {
		case <-ctx.Done():
			s.settled(math.MaxUint64)
			return nil
		case <-s.wake:
		}
		now, version, err, doubt := s.state()
		if err != nil && last == nil {
			if err.Error() != reason {
				waiting(err)
				reason = err.Error()
			}
			s.settled(version)
			continue
		}
		if last == nil {
			update(now)
		} else if changes := difference(*last, now); len(changes.Policies)+len(changes.Namespaces)+len(changes.Pods) > 0 {
			update(changes)
		}
		waiting(doubt)
		last = &now
		s.settled(version)
	}
}

// state returns everything, the version of what is declared, why something is not known, and what
// is kept from before because of a doubt.
func (s *Source) state() (_ policy.Changes, _ uint64, unread, doubt error) {
	out := policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: map[string]labels.Set{}, Pods: map[string]*policy.Pod{}}
	var unknown []error
	s.mu.Lock()
	for _, origin := range slices.Backward(s.origins) {
		d, ok := s.declared[origin]
		if !ok {
			unknown = append(unknown, fmt.Errorf("policies: %s has not been read yet", origin))
		}
		if len(d.Unread) > 0 {
			unknown = append(unknown, fmt.Errorf("policies: %s has mistakes and may have policies: correct or remove it; the log names the mistakes", strings.Join(d.Unread, ", ")))
		}
		maps.Copy(out.Policies, d.Policies)
		for name, of := range d.Namespaces {
			set := maps.Clone(labels.Set(of))
			if set == nil {
				set = labels.Set{}
			}
			set[corev1.LabelMetadataName] = name
			out.Namespaces[name] = set
		}
	}
	if len(unknown) == 0 {
		keeping, err := s.keep(&out)
		doubt = keeping
		if err != nil {
			unknown = append(unknown, err)
		}
	}
	if s.awaited && len(out.Policies) > 0 {
		unknown = append(unknown, errors.New("policies: the store of nodes has not answered yet about their pods"))
	}
	for _, p := range s.others {
		out.Pods[p.Key()] = p
		addNamespace(out.Namespaces, p.Namespace)
	}
	version := s.version
	s.mu.Unlock()
	for _, p := range out.Policies {
		addNamespace(out.Namespaces, p.Subject.Namespace)
	}
	for _, p := range s.pods() {
		out.Pods[p.Key()] = p
		addNamespace(out.Namespaces, p.Namespace)
	}
	return out, version, errors.Join(unknown...), doubt
}

func addNamespace(to map[string]labels.Set, name string) {
	if name != "" && to[name] == nil {
		to[name] = labels.Set{corev1.LabelMetadataName: name}
	}
}

// difference returns the changes from one state to the next.
func difference(from, to policy.Changes) policy.Changes {
	return policy.Changes{
		Policies: changed(from.Policies, to.Policies), Namespaces: changed(from.Namespaces, to.Namespaces), Pods: changed(from.Pods, to.Pods),
	}
}

func changed[V any](from, to map[string]V) map[string]V {
	out := map[string]V{}
	for key, value := range to {
		if last, had := from[key]; !had || !reflect.DeepEqual(last, value) {
			out[key] = value
		}
	}
	for key := range from {
		if _, ok := to[key]; !ok {
			out[key] = *new(V)
		}
	}
	return out
}
