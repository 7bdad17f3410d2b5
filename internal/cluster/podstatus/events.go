package podstatus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
)

// component is the component that events name as their source. Tools filter by the kubelet's.
// ownComponent is that of events for whose reasons the kubelet has no event.
const (
	component    = "kubelet"
	ownComponent = "huskd"
)

var ownReasons = map[string]bool{"NotRun": true, "NodePathLost": true, "NodePathRestored": true, "NodePathChanged": true, "NodeStoreLoss": true}

// inStatus are the reasons of events that say what the pod's status says, and of which the kubelet
// has none. They are for husk events: on the server each would be a write for every pod.
var inStatus = map[string]bool{
	"SandboxReady": true, "Ended": true, "Ready": true, "Unready": true, "PodSucceeded": true, "PodFailed": true, "PodStopped": true, "Ignored": true,
}

// A node in trouble must not flood the server with events. The limits, the first per second, are
// the kubelet's.
const (
	eventRate  = 50
	eventBurst = 100
)

// A container whose probe fails each second must not take the rate of all others. The limits, for
// events that differ only in their message and count, are those that the kubelet has for all events
// of a pod.
const (
	kindPause = 5 * time.Minute
	kindBurst = 25
)

// Events that differ only in their message are reported as one that counts up, once there were
// maxSimilar messages with less than similarTime between two of them. The limits are client-go's.
const (
	maxSimilar  = 9
	similarTime = 10 * time.Minute
)

// eventKinds bounds the events of each pod, container and reason.
type eventKinds map[eventKind]*similarEvents

type eventKind struct{ uid, container, reason string }

type similarEvents struct {
	limit    *rate.Limiter
	messages map[string]bool // of those that were reported each by itself
	last     time.Time
	// combined is how many were reported as one since first.
	combined int
	first    time.Time
}

// eventReport is an event as it is reported. Those with the same id are one object on the server.
type eventReport struct {
	event.Event
	id string
}

// next returns how an event is reported, or false if it isn't. Then the report of a later one has
// its count.
func (k eventKinds) next(e event.Event) (eventReport, bool) {
	kind := eventKind{e.UID, e.Container, e.Reason}
	s := k[kind]
	if s == nil {
		if len(k)%event.Max == 0 {
			maps.DeleteFunc(k, func(_ eventKind, s *similarEvents) bool { return s.limit.TokensAt(e.Last) >= kindBurst })
		}
		s = &similarEvents{limit: rate.NewLimiter(rate.Every(kindPause), kindBurst)}
		k[kind] = s
	}
	if e.Last.Sub(s.last) > similarTime {
		s.messages, s.combined = map[string]bool{}, 0
	}
	s.last = e.Last
	out := eventReport{e, e.Message}
	switch {
	case s.messages[e.Message]:
	case len(s.messages) < maxSimilar:
		s.messages[e.Message] = true
	default:
		if s.combined++; s.combined == 1 {
			s.first = e.Last
		}
		out.First, out.Count, out.id = s.first, s.combined, "since "+s.first.Format(time.RFC3339Nano)
		out.Message = "(combined from similar events): " + e.Message
	}
	return out, s.limit.AllowN(e.Last, 1)
}

// reportEvents reports the events of a log after a position, until ctx ends. An event that the
// server doesn't accept is lost: events are for people, who have husk events too.
func (r *Reporter) reportEvents(ctx context.Context, log *event.Log, mark uint64) {
	limit, kinds := flowcontrol.NewTokenBucketRateLimiter(eventRate, eventBurst), eventKinds{}
	for {
		var events []event.Event
		var newer <-chan struct{}
		events, mark, newer = log.After(mark)
		for _, e := range events {
			if inStatus[e.Reason] {
				continue
			}
			report, ok := kinds.next(e)
			if !ok {
				continue
			}
			if limit.Wait(ctx) != nil {
				return
			}
			r.Client.LogOnce("events", r.reportEvent(ctx, report))
		}
		select {
		case <-ctx.Done():
			return
		case <-newer:
		}
	}
}

func (r *Reporter) reportEvent(ctx context.Context, e eventReport) error {
	about, ok := r.subject(e.Event)
	if !ok {
		return nil
	}
	namespace, source := about.Namespace, component
	if ownReasons[e.Reason] {
		source = ownComponent
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(about.UID), e.Container, e.Reason, e.id}, "\x00")))
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	node := r.Node().Name
	object := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: about.Name + "." + hex.EncodeToString(sum[:8]), Namespace: namespace},
		InvolvedObject: about, Reason: e.Reason, Message: e.Message, Type: kind, Count: int32(e.Count),
		Source: corev1.EventSource{Component: source, Host: node}, ReportingController: source, ReportingInstance: node,
		FirstTimestamp: *stamp(e.First), LastTimestamp: *stamp(e.Last),
	}
	path := "/api/v1/namespaces/" + namespace + "/events"
	if e.Count > 1 {
		patch, err := json.Marshal(map[string]any{"count": e.Count, "message": e.Message, "lastTimestamp": object.LastTimestamp})
		if err != nil {
			return err
		}
		if err := r.Client.Patch(ctx, path+"/"+object.Name, patch, &corev1.Event{}); !apierrors.IsNotFound(err) {
			return err
		}
	}
	if err := r.Client.Create(ctx, path, object); !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return err
	}
	return nil // it was reported before a restart, or its namespace is being deleted
}

// subject returns what an event is about: the server's pod, the mirror of a pod that was declared
// elsewhere, or the node.
func (r *Reporter) subject(e event.Event) (corev1.ObjectReference, bool) {
	node := r.Node().Name
	if e.Pod == "" { // like the kubelet's, it is in the default namespace, and its UID is the name
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Node", Namespace: metav1.NamespaceDefault, Name: node, UID: types.UID(node)}, true
	}
	namespace, name, _ := strings.Cut(e.Pod, "/")
	var pod *corev1.Pod
	if p, err := r.Agent.Get(e.UID); err == nil && strings.HasPrefix(p.Source, string(source.API)) {
		pod = p.Manifest
	} else if onServer, ok := r.Pods.Get(namespace, name); ok && string(onServer.UID) == e.UID {
		pod = onServer
	} else if mirror, ok := r.Pods.Get(namespace, name+"-"+node); ok && mirror.Annotations[hashAnnotation] == e.UID {
		pod = mirror
	} else {
		return corev1.ObjectReference{}, false
	}
	about := corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID}
	if e.Container != "" {
		about.FieldPath = listOf(pod, e.Container) + "{" + e.Container + "}"
	}
	return about, true
}

// listOf returns the field of a pod that has a container.
func listOf(pod *corev1.Pod, name string) string {
	switch {
	case slices.ContainsFunc(pod.Spec.InitContainers, func(c corev1.Container) bool { return c.Name == name }):
		return "spec.initContainers"
	case slices.ContainsFunc(pod.Spec.EphemeralContainers, func(c corev1.EphemeralContainer) bool { return c.Name == name }):
		return "spec.ephemeralContainers"
	}
	return "spec.containers"
}
