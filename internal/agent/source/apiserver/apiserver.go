// Package apiserver delivers to the agent the pods that an API server has bound to this node, with
// the config maps, secrets and tokens that they reference.
//
// Pods stop only when the server marks them as deleted or no longer lists them. Any other answer,
// or no answer, leaves them unchanged.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/sysctl"
)

// Rules are what the node admits pods by, beside its registration.
type Rules struct {
	// Pressure returns the pressures that the node is under.
	Pressure func() []corev1.NodeConditionType
	// Sysctls are those that pods may set.
	Sysctls sysctl.Allowlist
	// AppArmor says that the node has it.
	AppArmor bool
	// Devices, if set, gives an admitted pod its devices. Without waiting, it returns false until that
	// is decided. Nudge must be called then.
	Devices func(pod *corev1.Pod) (decided bool, err error)
}

// Verdicts are called with what the node decides of the server's pods.
type Verdicts struct {
	// Rejected is called with a pod that the node doesn't admit. The pod has failed.
	Rejected func(pod *corev1.Pod, why admission.Refusal)
	// Refused is called with a pod that isn't run as the server has it, or has waited for something
	// from the server for a while, and with the reasons: by the names of ephemeral containers, or by
	// WholePod. It is called again when the reasons change. Without reasons nothing is refused any
	// more.
	Refused func(pod *corev1.Pod, why map[string]admission.Refusal)
	// Gone is called once a pod is no longer on the server. What was said of it by Rejected and
	// Refused holds until then, and is not repeated.
	Gone func(types.UID)
}

// Source watches an API server.
type Source struct {
	Client *cluster.Client
	// Node returns this node as it is registered: its name, labels and capacity.
	Node func() *corev1.Node
	Rules
	// Known returns the agent's pod with the UID, or nil.
	Known func(types.UID) *corev1.Pod
	// Deliver is called with the complete set once it is known and after each change.
	Deliver func(source.Set)
	Verdicts
	// Preempt evicts a pod of the agent to make room for a critical one.
	Preempt func(types.UID) error
	// Changed is called after each change of a pod on the server.
	Changed func()
	Log     *slog.Logger

	// waitReport is how long a pod waits for something from the server before the wait is logged.
	waitReport time.Duration

	wake     chan struct{}
	pods     *cluster.Cache[*corev1.Pod]
	services *cluster.Cache[*corev1.Service]
	classes  *cluster.Cache[*nodev1.RuntimeClass]
	watching map[string]*objectWatch // by ObjectKey
	tokens   tokens
	bound    map[types.UID]*bound
	last     summary
	group    sync.WaitGroup
}

// bound is a pod that the server has bound to this node.
type bound struct {
	location string
	raw      *corev1.Pod // as on the server
	pod      *corev1.Pod // as for the agent: the last version that was valid; nil if none was
	// tokens are those in the pod's volumes.
	tokens []tokenSpec
	// rejected and admitted are the node's decision about a pod that the agent didn't know.
	rejected, admitted bool
	// preempted are the pods that were evicted to make room for it.
	preempted []types.UID
	// refused is why the latest version of the pod, or some of its ephemeral containers, aren't run.
	// reported is what Refused was last called with.
	refused, reported map[string]admission.Refusal
	waitingSince      time.Time // since when it has waited for the server; zero if it doesn't
}

// waitError is the error of a pod that waits for something from the server. The reason is that of
// the kubelet's event.
type waitError struct {
	reason string
	error
}

// waitReport is the usual value of Source.waitReport.
const waitReport = 5 * time.Second

// summary is the part of a set that is compared to find changes.
type summary struct {
	pods    map[types.UID]member
	objects map[string]string // versions by ObjectKey
	unread  []string
}

type member struct {
	pod    *corev1.Pod
	ending time.Duration // deletion grace period; -1 if it isn't deleted
}

// Start starts watching the server, until ctx ends. It returns the cache of the server's pods.
func (s *Source) Start(ctx context.Context) *cluster.Cache[*corev1.Pod] {
	s.wake = make(chan struct{}, 1)
	if s.waitReport == 0 {
		s.waitReport = waitReport
	}
	s.watching, s.bound = map[string]*objectWatch{}, map[types.UID]*bound{}
	s.tokens = tokens{Client: s.Client, wake: s.Nudge, known: map[string]*token{}}
	s.pods = cluster.Watch[*corev1.Pod](ctx, s.Client, cluster.List{
		Path: "/api/v1/pods", Fields: "spec.nodeName=" + s.Node().Name, Item: &corev1.Pod{}, List: &corev1.PodList{},
	}, func() {
		s.Nudge()
		s.Changed()
	})
	s.services = cluster.Watch[*corev1.Service](ctx, s.Client, cluster.List{
		Path: "/api/v1/services", Item: &corev1.Service{}, List: &corev1.ServiceList{},
	}, s.Nudge)
	s.classes = cluster.Watch[*nodev1.RuntimeClass](ctx, s.Client, cluster.List{
		Path: "/apis/node.k8s.io/v1/runtimeclasses", Item: &nodev1.RuntimeClass{}, List: &nodev1.RuntimeClassList{},
	}, s.Nudge)
	return s.pods
}

// Run delivers sets until ctx ends. Start must have been called.
func (s *Source) Run(ctx context.Context) error {
	defer s.group.Wait()
	for ctx.Err() == nil {
		var alarm <-chan time.Time
		if next := s.pass(ctx); !next.IsZero() {
			alarm = time.After(time.Until(next))
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
		case <-alarm:
		}
	}
	return nil
}

// Nudge makes Run look at all pods again.
func (s *Source) Nudge() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// pass delivers the set if it has changed, and returns when the next pass is due. Zero means never.
func (s *Source) pass(ctx context.Context) (next time.Time) {
	if !s.pods.Synced() {
		return time.Time{}
	}
	set := source.Set{Kind: source.API, Objects: manifest.Objects{}}
	now := summary{pods: map[types.UID]member{}, objects: map[string]string{}}
	all := s.pods.All()
	slices.SortFunc(all, func(a, b *corev1.Pod) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(string(a.UID), string(b.UID))
	})
	needed := map[string]bool{}
	present := map[types.UID]bool{}
	for _, pod := range all {
		if cluster.IsMirror(pod) {
			continue
		}
		present[pod.UID] = true
		at := locationOf(pod)
		b, err := s.prepare(ctx, pod, needed)
		if late := s.bound[pod.UID].reportWaitAt(err, s.waitReport); late.IsZero() {
			s.Client.LogOnce(at, err)
			s.report(pod, err)
		} else if next.IsZero() || late.Before(next) {
			next = late
		}
		switch {
		case err != nil:
			set.Unread = append(set.Unread, at)
		case b != nil:
			p := source.Pod{Pod: b.pod, Location: at}
			m := member{b.pod, -1}
			if pod.DeletionTimestamp != nil {
				m.ending = deletionGrace(pod)
				p.DeletionGrace = &m.ending
			}
			set.Pods = append(set.Pods, p)
			now.pods[pod.UID] = m
		}
	}
	maps.DeleteFunc(s.bound, func(uid types.UID, b *bound) bool {
		if !present[uid] {
			s.Client.Forget(b.location)
			s.Gone(uid)
		}
		return !present[uid]
	})
	s.collectObjects(needed, set.Objects, now.objects)
	now.unread = set.Unread
	if s.last.pods == nil || !maps.Equal(s.last.pods, now.pods) || !maps.Equal(s.last.objects, now.objects) || !slices.Equal(s.last.unread, now.unread) {
		s.last = now
		s.Deliver(set)
	}
	if due := s.tokens.nextRequest(); next.IsZero() || !due.IsZero() && due.Before(next) {
		next = due
	}
	return next
}

// reportWaitAt returns when the wait of a pod should be reported, after delay. It is zero if it is
// due, or if err is not a waitError.
func (b *bound) reportWaitAt(err error, delay time.Duration) time.Time {
	if b == nil {
		return time.Time{}
	}
	if _, ok := errors.AsType[waitError](err); !ok {
		b.waitingSince = time.Time{}
		return time.Time{}
	}
	if b.waitingSince.IsZero() {
		b.waitingSince = time.Now()
	}
	if late := b.waitingSince.Add(delay); time.Now().Before(late) {
		return late
	}
	return time.Time{}
}

// report calls Refused if what is refused of the pod has changed, or what the pod waits for.
func (s *Source) report(pod *corev1.Pod, err error) {
	b := s.bound[pod.UID]
	if b == nil {
		return
	}
	why := b.refused
	if wait, ok := errors.AsType[waitError](err); ok {
		why = map[string]admission.Refusal{WholePod: {Reason: wait.reason, Message: cluster.OneLine(wait)}}
	}
	if !maps.Equal(b.reported, why) {
		b.reported = why
		s.Refused(pod, why)
	}
}

// locationOf returns the location of a pod. It contains the UID, so that a recreated pod of the
// same name has another location.
func locationOf(pod *corev1.Pod) string {
	return cluster.Pod(pod.Namespace, pod.Name) + "?uid=" + string(pod.UID)
}

// deletionGrace returns the grace period of a pod that is being deleted.
func deletionGrace(pod *corev1.Pod) time.Duration {
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		return time.Duration(max(*pod.DeletionGracePeriodSeconds, 0)) * time.Second
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(max(*pod.Spec.TerminationGracePeriodSeconds, 0)) * time.Second
	}
	return 0
}

// isOver reports whether a pod has ended according to its status on the server.
func isOver(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// prepare converts a pod for the agent. It returns nil if the agent should not run it. It returns
// an error if that isn't known at the moment; the agent's pod then stays as it is. prepare adds the
// objects that the pod references to needed.
func (s *Source) prepare(ctx context.Context, pod *corev1.Pod, needed map[string]bool) (*bound, error) {
	node := s.Node()
	if pod.Spec.NodeName != node.Name || pod.UID == "" {
		return nil, fmt.Errorf("pod %s/%s from the server has node %q and UID %q: it is not a pod of node %s", pod.Namespace, pod.Name, pod.Spec.NodeName, pod.UID, node.Name)
	}
	known := s.Known(pod.UID)
	if known == nil && (isOver(pod) || pod.DeletionTimestamp != nil) {
		return nil, nil
	}
	b := s.bound[pod.UID]
	if b == nil {
		b = &bound{location: locationOf(pod)}
		s.bound[pod.UID] = b
	}
	if pod.DeletionTimestamp != nil { // it ends whatever else has changed
		if b.pod == nil {
			b.raw, b.pod = pod, known
		}
		b.observe(pod)
		return b, nil
	}
	if known == nil && !s.admits(b, node, pod) {
		return nil, nil
	}
	if b.raw == nil || changed(b.raw, pod) {
		if err := s.translate(b, pod); err != nil {
			return nil, err
		}
	}
	switch _, refused := b.refused[WholePod]; {
	case known == nil && refused:
		return nil, nil
	case b.pod == nil:
		b.pod = known // it stays as it was before huskd's restart
	case !refused:
		b.observe(pod) // of a generation that differs in nothing that matters here
	}
	if known == nil && !s.services.Synced() {
		return nil, waitError{"CreateContainerConfigError", errors.New("the pod waits for the list of services, for its environment variables")}
	}
	return b, s.resolve(ctx, b, needed)
}

// observe gives the agent's pod the generation of the server's.
func (b *bound) observe(pod *corev1.Pod) {
	if b.pod.Generation != pod.Generation {
		next := *b.pod // the agent may have b.pod
		next.Generation = pod.Generation
		b.pod = &next
	}
}

// changed reports whether a change of a pod matters to the agent. Changes of its status don't.
func changed(before, after *corev1.Pod) bool {
	return before != after && (!equality.Semantic.DeepEqual(before.Spec, after.Spec) ||
		!maps.Equal(before.Labels, after.Labels) || !maps.Equal(before.Annotations, after.Annotations))
}

// handler returns the handler of the pod's runtime class.
func (s *Source) handler(pod *corev1.Pod) (string, error) {
	if pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName == "" {
		return "", nil
	}
	class, ok := s.classes.Get("", *pod.Spec.RuntimeClassName)
	if !ok {
		return "", waitError{"FailedCreatePodSandBox", fmt.Errorf("the pod waits for its runtime class %s: create it", *pod.Spec.RuntimeClassName)}
	}
	return class.Handler, nil
}
