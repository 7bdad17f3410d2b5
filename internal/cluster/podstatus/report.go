// Package podstatus tells an API server of the pods of this node: how they are,
// which of them have ended as they were asked to, which were declared elsewhere,
// and what happened to them.
package podstatus

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/manifest/criconfig"
)

// Agent has the pods.
type Agent interface {
	List() []agent.Pod
	Get(uid string) (agent.Pod, error)
}

// Config is what a reporter works with.
type Config struct {
	Client *cluster.Client
	Agent  Agent
	// Pods are the server's, of this node.
	Pods *cluster.Cache[*corev1.Pod]
	// Node is this node as it is registered, and CRI what its pods see of it.
	Node   func() *corev1.Node
	CRI    func() criconfig.Node
	Events *event.Log
}

// Reporter tells the API server of the agent's pods.
type Reporter struct {
	Config
	wake chan struct{}
	mark uint64 // of the events before

	mu      sync.Mutex
	refused map[types.UID]refusal

	// told is what the server was last told of a pod. It and mirrors are Run's.
	told map[types.UID]told
	// mirrors were created, and are not among Pods yet: when, by their names.
	mirrors map[string]time.Time
}

type refusal struct {
	pod             *corev1.Pod
	reason, message string
}

// told is a status, and what it was made of.
type told struct {
	pod    *corev1.Pod
	newer  <-chan struct{}
	status corev1.PodStatus
	gone   bool // it was deleted
}

const (
	// breath is how long changes are gathered before the server is told.
	breath = 50 * time.Millisecond
	// again is when what failed is tried again, resync when all is looked at.
	again  = 2 * time.Second
	resync = time.Minute
)

// New returns a reporter. It reports once it runs.
func New(cfg Config) *Reporter {
	_, mark, _ := cfg.Events.After(^uint64(0))
	return &Reporter{
		Config: cfg, wake: make(chan struct{}, 1), mark: mark,
		refused: map[types.UID]refusal{}, told: map[types.UID]told{}, mirrors: map[string]time.Time{},
	}
}

// Nudge has the reporter look at the pods. It doesn't block.
func (r *Reporter) Nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Reject has a pod that this node won't run be told to have failed.
func (r *Reporter) Reject(pod *corev1.Pod, reason, message string) {
	r.mu.Lock()
	r.refused[pod.UID] = refusal{pod, reason, message}
	r.mu.Unlock()
	r.Nudge()
}

// Run reports until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	events := sync.WaitGroup{}
	defer events.Wait()
	events.Go(func() { r.tellEvents(ctx) })
	for {
		wait := resync
		if r.Pods.Synced() && !r.pass(ctx) {
			wait = again
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-time.After(wait):
			clear(r.told)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(breath):
		}
	}
}

// pass tells the server all that is new, and says whether it took it.
func (r *Reporter) pass(ctx context.Context) bool {
	good := true
	try := func(what string, err error) {
		r.Client.LogOnce(what, err)
		good = good && err == nil
	}
	node := r.Node().Name
	present, mirrors := map[types.UID]bool{}, map[string]*corev1.Pod{}
	for _, pod := range r.Pods.All() {
		if ctx.Err() != nil {
			return false
		}
		if pod.Spec.NodeName != node || pod.UID == "" {
			continue
		}
		present[pod.UID] = true
		if cluster.IsMirror(pod) {
			mirrors[pod.Namespace+"/"+pod.Name] = pod
			continue
		}
		p, err := r.Agent.Get(string(pod.UID))
		try("status of pod "+pod.Namespace+"/"+pod.Name, r.tell(ctx, pod, p, err == nil))
	}
	for _, p := range r.Agent.List() {
		if ctx.Err() != nil {
			return false
		}
		if strings.HasPrefix(p.Source, string(source.API)) {
			continue
		}
		name := p.Manifest.Namespace + "/" + mirrorName(p.Manifest, node)
		try("mirror of pod "+p.Name(), r.mirror(ctx, mirrors[name], p))
		delete(mirrors, name)
	}
	for name, pod := range mirrors { // of pods that are gone
		try("mirror pod "+name, r.Client.Delete(ctx, cluster.Pod(pod.Namespace, pod.Name), pod.UID))
	}
	for uid := range r.told {
		if !present[uid] {
			delete(r.told, uid)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for uid := range r.refused {
		if !present[uid] {
			delete(r.refused, uid)
		}
	}
	return good
}

// tell tells the server how a pod of its own is, and deletes it there once it
// has ended as the server asked.
func (r *Reporter) tell(ctx context.Context, pod *corev1.Pod, p agent.Pod, known bool) error {
	last := r.told[pod.UID]
	if last.gone || last.pod == pod && last.newer == p.Newer {
		return nil
	}
	next := told{pod: pod, newer: p.Newer}
	r.mu.Lock()
	refused, isRefused := r.refused[pod.UID]
	r.mu.Unlock()
	ended := false
	switch {
	case known:
		next.status = statusOf(pod, p, r.CRI(), time.Now())
		ended = p.Finished && p.Want != podplan.Run
	case pod.DeletionTimestamp != nil:
		next.status, ended = pod.Status, true
	case isRefused:
		next.status = refused.status(time.Now())
	default:
		return nil
	}
	if err := r.patch(ctx, pod, &last, next.status); err != nil {
		return err
	}
	if ended && pod.DeletionTimestamp != nil {
		if err := r.Client.Delete(ctx, cluster.Pod(pod.Namespace, pod.Name), pod.UID); err != nil {
			return err
		}
		next.gone = true
	}
	r.told[pod.UID] = next
	return nil
}

// status is that of a pod that is not run.
func (r refusal) status(now time.Time) corev1.PodStatus {
	s := *r.pod.Status.DeepCopy()
	s.Phase, s.Reason, s.Message = corev1.PodFailed, r.reason, r.message
	s.ObservedGeneration = r.pod.Generation
	if s.StartTime == nil {
		s.StartTime = stamp(now)
	}
	return s
}

// patch makes the status on the server be another one, unless it is that or was
// told so last.
func (r *Reporter) patch(ctx context.Context, pod *corev1.Pod, last *told, status corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(pod.Status, status) || last.pod != nil && equality.Semantic.DeepEqual(last.status, status) && last.pod == pod {
		return nil
	}
	patch, err := statusPatch(pod, status)
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = r.Client.Patch(ctx, cluster.Pod(pod.Namespace, pod.Name)+"/status", patch, &corev1.Pod{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // it is gone, or another, which the next change of the list says
	}
	return err
}

// mirror has the server show a pod that was declared elsewhere.
func (r *Reporter) mirror(ctx context.Context, pod *corev1.Pod, p agent.Pod) error {
	name := p.Manifest.Namespace + "/" + mirrorName(p.Manifest, r.Node().Name)
	kind, _, _ := strings.Cut(p.Source, ":")
	switch {
	case pod != nil && (pod.Annotations[cluster.MirrorAnnotation] != string(p.Manifest.UID) || pod.DeletionTimestamp != nil):
		return r.Client.Delete(ctx, cluster.Pod(pod.Namespace, pod.Name), pod.UID)
	case pod != nil:
		delete(r.mirrors, name)
		last := r.told[pod.UID]
		if last.pod == pod && last.newer == p.Newer {
			return nil
		}
		next := told{pod: pod, newer: p.Newer, status: statusOf(pod, p, r.CRI(), time.Now())}
		if err := r.patch(ctx, pod, &last, next.status); err != nil {
			return err
		}
		r.told[pod.UID] = next
		return nil
	case p.Want == podplan.Remove || time.Since(r.mirrors[name]) < resync:
		return nil
	}
	node := r.Node()
	if node.UID == "" {
		return errors.New("the node isn't registered yet")
	}
	err := r.Client.Create(ctx, cluster.Pods(p.Manifest.Namespace), mirrorOf(p, kind, node))
	if err == nil || apierrors.IsAlreadyExists(err) {
		r.mirrors[name] = time.Now()
		return nil
	}
	return err
}
