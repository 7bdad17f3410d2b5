// Package podstatus reports this node's pods to an API server: their status and events, the
// deletion of those that have ended as requested, and mirrors of those that were declared
// elsewhere.
package podstatus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
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
	// The usual values of resync and retry are resyncTime and retryTime.
	resync, retry time.Duration

	mu      sync.Mutex
	refused map[types.UID]*refusal // until Forget

	// reported is the last report of each pod, until the pod is gone.
	// Invariant: only Run uses reported and mirrors.
	reported map[types.UID]report
	// mirrors are the times at which mirror pods were created that are not in Pods yet, by name.
	mirrors map[string]time.Time
}

// report is a reported status, and the versions of the pod from which it was made. Without a pod,
// the status must be made again and compared with the server's.
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
	// resyncTime is how often the status of every pod is compared with the server's, as often as
	// the kubelet does it, however much else there is to report.
	resyncTime = 10 * time.Second
	// mirrorTime is how long a mirror pod that was created may be missing in the list.
	mirrorTime = time.Minute
)

// errOutdated says that the server didn't take a status although the node's list has the pod: the
// pod is gone or was replaced, which the list will say, or others changed it at the same time.
var errOutdated = errors.New("the server has another version of the pod")

// New returns a reporter. It reports nothing until Run.
func New(cfg Config) *Reporter {
	_, mark, _ := cfg.Events.After(^uint64(0))
	return &Reporter{
		Config: cfg, wake: make(chan struct{}, 1), mark: mark, resync: resyncTime, retry: retryTime,
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
	due := time.Now().Add(r.resync)
	for {
		compare := !time.Now().Before(due)
		if compare {
			r.compareAll()
			r.remind(time.Now())
		}
		accepted := !r.Pods.Synced() || r.reportAll(ctx)
		if compare {
			due = time.Now().Add(r.resync)
		}
		wait := time.Until(due)
		if !accepted {
			wait = min(wait, r.retry)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-r.wake:
		case <-time.After(wait):
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(batchTime):
		}
	}
}

// compareAll makes the next reportAll compare the status of every pod with the server's.
func (r *Reporter) compareAll() {
	for uid, last := range r.reported {
		last.pod, last.deleted = nil, false
		r.reported[uid] = last
	}
}

// reportAll reports all changes, and returns whether the server has accepted them.
func (r *Reporter) reportAll(ctx context.Context) bool {
	ok := true
	check := func(subject string, err error) {
		ok = ok && err == nil
		if !errors.Is(err, errOutdated) {
			r.Client.LogOnce(subject, err)
		}
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
		// Patches of other pods take time, in which the server may have deleted this one: pod must be
		// at least as new as what made the agent stop it.
		if newer, ok := r.Pods.Get(pod.Namespace, pod.Name); ok && newer.UID == pod.UID {
			pod = newer
		}
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
	maps.DeleteFunc(r.reported, func(uid types.UID, _ report) bool { return !present[uid] })
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
	if next.status, ok = r.status(last.onto(pod), p, known, refused); !ok {
		return nil
	}
	ended := !known || p.Finished && p.Want != podplan.Run
	if err := r.patch(ctx, pod, last, next.status); err != nil {
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

// onto returns the pod with the times that were last reported, which the server may not show yet.
func (last report) onto(pod *corev1.Pod) *corev1.Pod {
	from := *pod // only its status is replaced
	from.Status = *pod.Status.DeepCopy()
	if last.status.StartTime != nil {
		from.Status.StartTime = last.status.StartTime
	}
	for _, c := range last.status.Conditions {
		if !own(c.Type) {
			continue
		}
		i := slices.IndexFunc(from.Status.Conditions, func(o corev1.PodCondition) bool { return o.Type == c.Type })
		if i < 0 {
			from.Status.Conditions = append(from.Status.Conditions, c)
		} else {
			from.Status.Conditions[i] = c
		}
	}
	return &from
}

// status returns the status of one of the server's pods. It returns false if this node doesn't know
// the pod yet.
func (r *Reporter) status(pod *corev1.Pod, p agent.Pod, known bool, refused *refusal) (corev1.PodStatus, bool) {
	switch {
	case known:
		s := statusOf(pod, p, r.CRI(), time.Now())
		s.EphemeralContainerStatuses = append(s.EphemeralContainerStatuses, refused.ephemeral(pod)...)
		return s, true
	case refused.wholePod() && (refused.failed || pod.DeletionTimestamp == nil):
		return refused.status(pod, r.CRI(), time.Now()), true
	case pod.DeletionTimestamp != nil:
		return neverRan(pod), true
	}
	return pod.Status, false
}

// patch changes the status on the server, unless the server has it already.
func (r *Reporter) patch(ctx context.Context, pod *corev1.Pod, last report, status corev1.PodStatus) error {
	before := pod.Status
	if last.pod == pod { // the list doesn't show the last report yet
		before = last.status
	}
	if equality.Semantic.DeepEqual(before, status) {
		return nil
	}
	patch, err := statusPatch(pod.UID, before, status)
	if err != nil {
		return fmt.Errorf("status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if patch == nil {
		return nil
	}
	err = r.Client.Patch(ctx, cluster.Pod(pod.Namespace, pod.Name)+"/status", patch, &corev1.Pod{})
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return errOutdated
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
		next := report{pod: pod, newer: p.Newer, status: statusOf(last.onto(pod), p, r.CRI(), time.Now())}
		if err := r.patch(ctx, pod, last, next.status); err != nil {
			return err
		}
		r.reported[pod.UID] = next
		return nil
	case p.Want == podplan.Remove || time.Since(r.mirrors[name]) < mirrorTime:
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
