package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/claim"
	"github.com/huskd/husk/internal/workload"
)

// node has the pods of a test, which are ready at once. The tests of test/e2e run the controller
// with the agent.
type node struct {
	mu      sync.Mutex
	pods    map[string]agent.Pod // by UID
	objects map[string]manifest.Objects
	refuse  error
}

func (n *node) List() (out []agent.Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pods {
		out = append(out, p)
	}
	return out
}

func (n *node) Apply(_ context.Context, pod *corev1.Pod, objects manifest.Objects, from string) (agent.Pod, bool, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refuse != nil {
		return agent.Pod{}, false, n.refuse
	}
	p := agent.Pod{Manifest: pod, Source: from, Want: podplan.Run, Created: time.Now(), Status: podplan.Status{Phase: podplan.PhaseRunning, Ready: true}}
	n.pods[string(pod.UID)], n.objects[pod.Name] = p, objects
	return p, false, nil
}

func (n *node) Delete(uid string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.pods[uid]; !ok {
		return errdefs.ErrNotFound
	}
	delete(n.pods, uid)
	return nil
}

func (n *node) names() (out []string) {
	for _, p := range n.List() {
		out = append(out, p.Manifest.Name)
	}
	slices.Sort(out)
	return out
}

// lab is a controller that a test drives step by step.
type lab struct {
	*Controller
	t       *testing.T
	node    *node
	journal *journal.Journal
	volumes volume.Volumes
	events  *event.Log
}

func newLab(t *testing.T) *lab {
	t.Helper()
	j, _, err := journal.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	l := &lab{t: t, node: &node{pods: map[string]agent.Pod{}, objects: map[string]manifest.Objects{}}, journal: j, volumes: volume.Volumes{Root: t.TempDir(), State: t.TempDir()}, events: event.NewLog()}
	l.restart()
	return l
}

// restart begins again with what the journal has, as the next huskd does.
func (l *lab) restart() {
	l.t.Helper()
	l.Controller = New(Config{Journal: l.journal, Pods: l.node, Claims: l.volumes, Events: l.events, Log: slog.New(slog.DiscardHandler)})
	if bad := l.Load(); len(bad) > 0 {
		l.t.Fatal(bad)
	}
}

// settle decides and acts until there is nothing to do.
func (l *lab) settle() {
	l.t.Helper()
	for range 100 {
		w, _ := l.decide(time.Now())
		if len(w.create)+len(w.remove) == 0 {
			return
		}
		l.act(l.t.Context(), w)
		if l.node.refuse != nil {
			return
		}
	}
	l.t.Fatal("the controller doesn't settle:", l.node.names())
}

func (l *lab) parse(text string) (*workload.Workload, manifest.Objects) {
	l.t.Helper()
	f, err := manifest.Parse([]byte(text), manifest.Origin{File: "f", Node: "n"})
	if err != nil {
		l.t.Fatal(err)
	}
	return f.Workloads[0], f.Objects
}

func (l *lab) said(reason, part string) bool {
	all, _, _ := l.events.After(0)
	return slices.ContainsFunc(all, func(e event.Event) bool { return e.Reason == reason && strings.Contains(e.Message, part) })
}

const web = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: %d
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}}, spec: {containers: [{name: c, image: "example.com/a:%s"}]}}
`

var webRef = workload.Ref{Kind: workload.Deployment, Namespace: "default", Name: "web"}

func TestDeployment(t *testing.T) {
	l := newLab(t)
	apply := func(replicas int, version string) bool {
		t.Helper()
		w, objects := l.parse(fmt.Sprintf(web, replicas, version))
		unchanged, err := l.Apply(t.Context(), w, objects, "run", false)
		if err != nil {
			t.Fatal(err)
		}
		l.settle()
		return unchanged
	}
	apply(2, "1")
	first := l.node.names()
	if v, err := l.Get(webRef); err != nil || len(first) != 2 || v.Status.Phase != workload.Available || !v.Status.Done {
		t.Fatalf("%v, %+v, %v", first, v.Status, err)
	}
	if !apply(2, "1") {
		t.Error("the same manifest changes something")
	}
	l.restart()
	l.settle()
	if got := l.node.names(); !slices.Equal(got, first) {
		t.Errorf("after a restart the pods are %v instead of %v", got, first)
	}
	if err := l.Scale(t.Context(), webRef, 3); err != nil {
		t.Fatal(err)
	}
	l.restart()
	l.settle()
	if v, err := l.Get(webRef); err != nil || len(l.node.names()) != 3 || v.Replicas != 3 {
		t.Errorf("scaled: %v, %+v, %v", l.node.names(), v, err)
	}
	apply(2, "2")
	if got := l.node.names(); len(got) != 2 || slices.Contains(first, got[0]) {
		t.Errorf("after a change the pods are %v, before they were %v", got, first)
	}
	if err := l.Scale(t.Context(), workload.Ref{Kind: workload.DaemonSet, Namespace: "default", Name: "none"}, 3); !errdefs.IsNotFound(err) {
		t.Errorf("scaling what isn't there: %v", err)
	}

	removed := make(chan error)
	go func() { removed <- l.Remove(t.Context(), webRef) }()
	for len(l.node.names())+len(l.List()) > 0 {
		l.settle()
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	l.restart()
	if left := l.List(); len(left) > 0 {
		t.Errorf("%v is left in the journal", left)
	}
}

// TestRefusedPods checks that pods that can't be created are reported once and tried again.
func TestRefusedPods(t *testing.T) {
	l := newLab(t)
	l.node.refuse = errors.New("the disk is full")
	w, objects := l.parse(fmt.Sprintf(web, 1, "1"))
	if _, err := l.Apply(t.Context(), w, objects, "run", false); err != nil {
		t.Fatal(err)
	}
	l.settle()
	now := time.Now()
	work, next := l.decide(now)
	if v, _ := l.Get(webRef); len(work.create) > 0 || next.Before(now) || !strings.Contains(v.Status.Message, "the disk is full") || !l.said("FailedCreate", "the disk is full") {
		t.Errorf("%+v, next %v, %+v", work, next, v.Status)
	}
	l.node.refuse = nil
	work, _ = l.decide(next.Add(time.Millisecond))
	l.act(t.Context(), work)
	l.settle()
	if v, _ := l.Get(webRef); v.Status.Phase != workload.Available {
		t.Errorf("%+v", v.Status)
	}
}

// TestDeclared checks that workloads follow their source, and stay while a file can't be read.
func TestDeclared(t *testing.T) {
	l := newLab(t)
	declare := func(text string, unread ...string) {
		t.Helper()
		set := source.NewSet(source.File)
		set.Unread = unread
		if text != "" {
			w, _ := l.parse(text)
			set.Workloads = []source.Workload{{Workload: w, Location: "/m/web.yaml"}}
		}
		l.Declare(set)
		l.settle()
		l.settle() // what waits for a removal
	}
	w, objects := l.parse(fmt.Sprintf(web, 1, "1"))
	if _, err := l.Apply(t.Context(), w, objects, "run", false); err != nil {
		t.Fatal(err)
	}
	l.settle()
	declare(fmt.Sprintf(web, 2, "1"))
	if len(l.node.names()) != 1 || !l.said("NotRun", "exists already, from run") {
		t.Errorf("a second source: %v", l.node.names())
	}
	go func() { _ = l.Remove(t.Context(), webRef) }()
	for len(l.node.names()) != 2 { // the other source's
		l.settle()
	}
	if err := l.Remove(t.Context(), webRef); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("removing what a file declares: %v", err)
	}
	declare("", "/m/web.yaml")
	if len(l.node.names()) != 2 {
		t.Error("a file that can't be read has removed its pods")
	}
	declare("")
	if names := l.node.names(); len(names)+len(l.List()) > 0 {
		t.Errorf("%v are left of a file that is gone", names)
	}
}

const db = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  replicas: 2
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: c, image: "example.com/a:1", volumeMounts: [{name: data, mountPath: /data}]}]}}
  volumeClaimTemplates: [{metadata: {name: data}, spec: {storageClassName: local, accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: disk}
spec: {storageClassName: local, capacity: {storage: 2Gi}, accessModes: [ReadWriteOnce], local: {path: /mnt/disk}}
`

// TestClaims checks that pods of a StatefulSet get claims of their own, with a volume that fits,
// and that these go with the set if it says so.
func TestClaims(t *testing.T) {
	l := newLab(t)
	w, objects := l.parse(db)
	if _, err := l.Apply(t.Context(), w, objects, "run", false); err != nil {
		t.Fatal(err)
	}
	if l.settle(); len(l.node.names()) > 0 {
		t.Errorf("%v run before the volumes are known", l.node.names())
	}
	l.Share(objects)
	l.settle()
	for name, want := range map[string]string{"db-0": "/mnt/disk", "db-1": ""} {
		c, err := claim.Decode[claim.Claim](l.node.objects[name][manifest.ObjectKey(manifest.KindClaim, "default", "data-"+name)])
		if err != nil || c.Path != want || c.Size.String() != "1Gi" {
			t.Errorf("%s has the claim %+v, %v", name, c, err)
		}
	}
	var uid string
	for _, p := range l.node.List() {
		p.Manifest.Spec.SecurityContext = &corev1.PodSecurityContext{}
		if name := p.Manifest.Name; name == "db-1" {
			uid = string(p.Manifest.UID)
			if _, err := l.volumes.SetUpClaim(p.Manifest, "data-"+name, l.node.objects[name][manifest.ObjectKey(manifest.KindClaim, "default", "data-"+name)]); err != nil {
				t.Fatal(err)
			}
		}
	}
	other := &corev1.Pod{}
	other.Namespace, other.Name, other.UID, other.Spec.SecurityContext = "default", "own", "uid", &corev1.PodSecurityContext{}
	if _, err := l.volumes.SetUpClaim(other, "data-own", claim.Encode(claim.Claim{})); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(l.volumes.TearDown(uid), l.volumes.TearDown("uid")); err != nil {
		t.Fatal(err)
	}
	removed := make(chan error)
	go func() { removed <- l.Remove(t.Context(), w.Ref) }()
	for len(l.List()) > 0 {
		l.settle()
	}
	if err := <-removed; err != nil {
		t.Error(err)
	}
	if left, err := l.volumes.Claims(); err != nil || len(left) != 1 || left[0].Name != "data-own" {
		t.Errorf("the claims %+v are left, %v", left, err)
	}
}
