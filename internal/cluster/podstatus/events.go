package podstatus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/cluster"
)

// component is the component that events name as their source.
const component = "huskd"

// eventPause is the least time between two events, so that a node in trouble doesn't flood the
// server.
const eventPause = 50 * time.Millisecond

// reportEvents reports events until ctx ends. An event that the server doesn't accept is lost:
// events are for people, who have husk events too.
func (r *Reporter) reportEvents(ctx context.Context) {
	for {
		var events []event.Event
		var newer <-chan struct{}
		events, r.mark, newer = r.Events.After(r.mark)
		for _, e := range events {
			select {
			case <-ctx.Done():
				return
			case <-time.After(eventPause):
			}
			r.Client.LogOnce("events", r.reportEvent(ctx, e))
		}
		select {
		case <-ctx.Done():
			return
		case <-newer:
		}
	}
}

func (r *Reporter) reportEvent(ctx context.Context, e event.Event) error {
	namespace, name, _ := strings.Cut(e.Pod, "/")
	about, ok := r.subject(namespace, name)
	if !ok {
		return nil
	}
	if e.Container != "" {
		about.FieldPath = "spec.containers{" + e.Container + "}"
	}
	sum := sha256.Sum256([]byte(strings.Join([]string{string(about.UID), e.Container, e.Reason, e.Message}, "\x00")))
	kind := corev1.EventTypeNormal
	if e.Warning {
		kind = corev1.EventTypeWarning
	}
	node := r.Node().Name
	object := &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: about.Name + "." + hex.EncodeToString(sum[:8]), Namespace: namespace},
		InvolvedObject: about, Reason: e.Reason, Message: e.Message, Type: kind, Count: int32(e.Count),
		Source: corev1.EventSource{Component: component, Host: node}, ReportingController: component, ReportingInstance: node,
		FirstTimestamp: *stamp(e.First), LastTimestamp: *stamp(e.Last),
	}
	path := "/api/v1/namespaces/" + namespace + "/events"
	if e.Count > 1 {
		patch, err := json.Marshal(map[string]any{"count": e.Count, "lastTimestamp": object.LastTimestamp})
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

// subject returns the server's pod, or mirror pod, of a pod of the agent, or the server's pod that
// the agent doesn't run.
func (r *Reporter) subject(namespace, name string) (corev1.ObjectReference, bool) {
	ref := func(name string, uid types.UID) (corev1.ObjectReference, bool) {
		return corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: namespace, Name: name, UID: uid}, true
	}
	for _, p := range r.Agent.List() {
		if p.Name() != namespace+"/"+name {
			continue
		}
		if strings.HasPrefix(p.Source, string(source.API)) {
			return ref(name, p.Manifest.UID)
		}
		if mirror, ok := r.Pods.Get(namespace, mirrorName(p.Manifest, r.Node().Name)); ok {
			return ref(mirror.Name, mirror.UID)
		}
	}
	if pod, ok := r.Pods.Get(namespace, name); ok && !cluster.IsMirror(pod) {
		return ref(name, pod.UID)
	}
	return corev1.ObjectReference{}, false
}
