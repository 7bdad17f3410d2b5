// Package podstatus reports this node's pods to an API server: their status and events, the
// deletion of those that have ended as requested, and mirrors of those that were declared
// elsewhere.
package podstatus

import (
	"context"
	"errors"
	"fmt"
	"maps"
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

// Agent is the part of agent.Agent that is used here.
type Agent interface {
	List() []agent.Pod
	Get(uid string) (agent.Pod, error)
}

// Config configures a Reporter.
type Config struct {
	Client *cluster.Client
	Agent  Agent
	// Pods are the server's pods of this node.
	Pods *cluster.Cache[*corev1.Pod]
	// Node returns this node as it is registered, and CRI as its pods see it.
	Node func() *corev1.Node
	CRI  func() criconfig.Node
	// Events are those of the pods, NodeEvents those of the node.
	Events, NodeEvents *event.Log
}

// Reporter reports the agent's pods to the API server.
type Reporter struct {
	Config
	wake chan struct{}
	mark uint64 // position in Events before which events were reported

	mu      sync.Mutex
	refused map[types.UID]*refusal

	// reported is the last reported state of each pod.
	// Invariant: only Run uses reported and mirrors.
	reported map[types.UID]report
	// mirrors are the times at which mirror pods were created that are not in Pods yet, by name.
	mirrors map[string]time.Time
}

// report is a reported status, and the versions of the pod from which it was made.
type report struct {
	pod     *corev1.Pod
	newer   <-chan struct{}
	refused *refusal
	status  corev1.PodStatus
	deleted bool
}

const (
	// batchTime is how long changes are gathered before they are reported.
	batchTime = 50 * time.Millisecond
	// retryTime is the time until a failed report is retried.
	retryTime = 2 * time.Second
	// resyncTime is the time after which all pods are compared again.
	resyncTime = time.Minute
)

// New returns a reporter. It reports nothing until Run.
func New(cfg Config) *Reporter {
	_, mark, _ := cfg.Events.After(^uint64(0))
	return &Reporter{
		Config: cfg, wake: make(chan struct{}, 1), mark: mark,
		refused: map[types.UID]*refusal{}, reported: map[types.UID]report{}, mirrors: map[string]time.Time{},
	}
}

// Nudge makes the reporter compare the pods soon. It doesn't block.
func (r *Reporter) Nudge() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Run reports pods and events until ctx ends.
func (r *Reporter) Run(ctx context.Context) error {
	events := sync.WaitGroup{}
	defer events.Wait()
	events.Go(func() { r.reportEvents(ctx, r.Events, r.mark) })
	events.Go(func() { r.reportEvents(ctx, r.NodeEvents, 0) })
	for {
		wait := resyncTime
		if r.Pods.Synced() && !r.reportAll(ctx) {
			wait = retryTime
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-time.After(wait):
			clear(r.reported)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(batchTime):
		}
	}
}

// reportAll reports all changes, and returns whether the server has accepted them.
func (r *Reporter) reportAll(ctx context.Context) bool {
	ok := true
	check := func(subject string, err error) {
		r.Client.LogOnce(subject, err)
		ok = ok && err == nil
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
		check("status of pod "+pod.Namespace+"/"+pod.Name, r.reportPod(ctx, pod, p, err == nil))
	}
	for _, p := range r.Agent.List() {
		if ctx.Err() != nil {
			return false
		}
		if strings.HasPrefix(p.Source, string(source.API)) {
			continue
		}
		name := p.Manifest.Namespace + "/" + mirrorName(p.Manifest, node)
		check("mirror of pod "+p.Name(), r.reportMirror(ctx, mirrors[name], p))
		delete(mirrors, name)
	}
	for name, pod := range mirrors { // their pods are gone
		check("mirror pod "+name, r.Client.Delete(ctx, cluster.Pod(pod.Namespace, pod.Name), pod.UID))
	}
	for uid := range r.reported {
		if !present[uid] {
			delete(r.reported, uid)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.refused, func(uid types.UID, _ *refusal) bool { return !present[uid] })
	return ok
}

// reportPod reports the status of one of the server's pods, and deletes the pod there once it has
// ended as the server requested.
func (r *Reporter) reportPod(ctx context.Context, pod *corev1.Pod, p agent.Pod, known bool) error {
	r.mu.Lock()
	refused := r.refused[pod.UID]
	r.mu.Unlock()
	last := r.reported[pod.UID]
	if last.deleted || last.pod == pod && last.newer == p.Newer && last.refused == refused {
		return nil
	}
	next := report{pod: pod, newer: p.Newer, refused: refused}
	var ok bool
	if next.status, ok = r.status(pod, p, known, refused); !ok {
		return nil
	}
	ended := !known || p.Finished && p.Want != podplan.Run
	if err := r.patch(ctx, pod, &last, next.status); err != nil {
		return err
	}
	if ended && pod.DeletionTimestamp != nil {
		if err := r.Client.Delete(ctx, cluster.Pod(pod.Namespace, pod.Name), pod.UID); err != nil {
			return err
		}
		next.deleted = true
	}
	r.reported[pod.UID] = next
	return nil
}

// status returns the status of one of the server's pods. It returns false if this node doesn't know
// the pod yet.
func (r *Reporter) status(pod *corev1.Pod, p agent.Pod, known bool, refused *refusal) (corev1.PodStatus, bool) {
	switch {
	case known:
		s := statusOf(pod, p, r.CRI(), time.Now())
		s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, refused.ephemeral(pod)...)
		return s, true
	case pod.DeletionTimestamp != nil:
		return pod.Status, true
	case refused.wholePod():
		return refused.status(pod, time.Now()), true
	}
	return pod.Status, false
}

// patch changes the status on the server, unless the server has it already or it was just reported.
func (r *Reporter) patch(ctx context.Context, pod *corev1.Pod, last *report, status corev1.PodStatus) error {
	if equality.Semantic.DeepEqual(pod.Status, status) || last.pod != nil && equality.Semantic.DeepEqual(last.status, status) && last.pod == pod {
		return nil
	}
	patch, err := statusPatch(pod, status)
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = r.Client.Patch(ctx, cluster.Pod(pod.Namespace, pod.Name)+"/status", patch, &corev1.Pod{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the pod is gone or was replaced: the next change of the list says so
	}
	return err
}

// reportMirror keeps the mirror of a pod that was declared elsewhere up to date on the server.
func (r *Reporter) reportMirror(ctx context.Context, pod *corev1.Pod, p agent.Pod) error {
	name := p.Manifest.Namespace + "/" + mirrorName(p.Manifest, r.Node().Name)
	kind, _, _ := strings.Cut(p.Source, ":")
	switch {
	case pod != nil && (pod.Annotations[cluster.MirrorAnnotation] != string(p.Manifest.UID) || pod.DeletionTimestamp != nil):
		return r.Client.Delete(ctx, cluster.Pod(pod.Namespace, pod.Name), pod.UID)
	case pod != nil:
		delete(r.mirrors, name)
		last := r.reported[pod.UID]
		if last.pod == pod && last.newer == p.Newer {
			return nil
		}
		next := report{pod: pod, newer: p.Newer, status: statusOf(pod, p, r.CRI(), time.Now())}
		if err := r.patch(ctx, pod, &last, next.status); err != nil {
			return err
		}
		r.reported[pod.UID] = next
		return nil
	case p.Want == podplan.Remove || time.Since(r.mirrors[name]) < resyncTime:
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
