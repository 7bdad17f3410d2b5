package podstatus

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/container"
)

// TestList: pods are listed as the server has them, with the status that this node sees; mirrors
// are listed as the pods that they mirror.
func TestList(t *testing.T) {
	f := start(t)
	pod := parse(t, web)
	owned := onServer(pod)
	owned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: "rs-uid"}}
	rejected, waiting := onServer(parse(t, strings.ReplaceAll(web, "web", "rejected"))), onServer(parse(t, strings.ReplaceAll(web, "web", "waiting")))
	waiting.Status.Phase = corev1.PodPending
	theirs := onServer(parse(t, strings.ReplaceAll(web, "web", "theirs")))
	theirs.Spec.NodeName = "there"
	mirror := onServer(parse(t, strings.ReplaceAll(web, "web", "static-here")))
	mirror.Annotations = map[string]string{cluster.MirrorAnnotation: "uid-static"}
	for _, p := range []*corev1.Pod{owned, rejected, waiting, theirs, mirror} {
		f.Put(list, p)
	}
	now := time.Now()
	status := podplan.Status{Phase: podplan.PhaseRunning, IPs: []string{"10.0.0.2"}, Containers: []podplan.ContainerStatus{{Name: "c", State: podplan.Running, Started: now}}}
	run := container.Status{ID: "id", Started: now, Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: "c"}}}
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run, Status: status, Containers: []container.Status{run}})
	f.pods.set(agent.Pod{Manifest: parse(t, strings.ReplaceAll(web, "web", "static")), Source: "file:/x", Want: podplan.Run, Status: status, Created: now})
	clustertest.Eventually(t, func() string {
		if n := len(f.Pods.All()); n < 5 {
			return "not all pods are known"
		}
		return ""
	})
	f.Reject(rejected, admission.Refusal{Reason: "OutOfcpu", Message: "there is none"})

	got := f.List()
	var names []string
	for _, p := range got {
		names = append(names, p.Name)
	}
	if strings.Join(names, " ") != "rejected static-here waiting web" {
		t.Fatalf("%v", names)
	}
	if p := got[0]; p.Status.Phase != corev1.PodFailed || p.Status.Reason != "OutOfcpu" {
		t.Errorf("%+v", p.Status)
	}
	if p := got[1]; p.UID != "uid-static" || cluster.IsMirror(&p) || len(p.OwnerReferences) > 0 || p.Annotations[sourceAnnotation] != "file" || p.Spec.NodeName != "here" || p.Status.Phase != corev1.PodRunning || p.CreationTimestamp.IsZero() {
		t.Errorf("%+v", p)
	}
	if p := got[2]; p.Status.Phase != corev1.PodPending {
		t.Errorf("%+v", p.Status)
	}
	p := got[3]
	if p.UID != "uid-web" || len(p.OwnerReferences) != 1 || p.OwnerReferences[0].UID != "rs-uid" || p.Generation != 3 || p.Status.Phase != corev1.PodRunning || p.Status.PodIP != "10.0.0.2" {
		t.Errorf("%+v", p)
	}
	if c := p.Status.ContainerStatuses; len(c) != 1 || c[0].ContainerID != "husk://id" || c[0].State.Running == nil {
		t.Errorf("%+v", c)
	}
}
