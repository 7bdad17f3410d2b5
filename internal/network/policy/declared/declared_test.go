package declared

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
	"github.com/huskd/husk/internal/network/policy/apisource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what a source has said.
type world struct {
	mu      sync.Mutex
	updates int
	last    policy.Changes
	state   policy.Changes
	waiting string
}

// start runs a source until the test ends.
func start(t *testing.T, s policy.Source) *world {
	w := &world{state: policy.Changes{Policies: map[string]*policy.Policy{}, Namespaces: map[string]labels.Set{}, Pods: map[string]*policy.Pod{}}}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- s.Run(ctx, func(c policy.Changes) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.updates++
			w.last = c
			merge(w.state.Policies, c.Policies)
			merge(w.state.Namespaces, c.Namespaces)
			merge(w.state.Pods, c.Pods)
		}, func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.waiting = fmt.Sprint(err)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return w
}

func merge[V any](to, from map[string]V) {
	for key, value := range from {
		if to[key] = value; reflect.ValueOf(value).IsNil() {
			delete(to, key)
		}
	}
}

func (w *world) eventually(t *testing.T, want string) {
	t.Helper()
	clustertest.Eventually(t, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		got := fmt.Sprint(slices.Sorted(maps.Keys(w.state.Policies)), w.state.Namespaces, slices.Sorted(maps.Keys(w.state.Pods)), " waiting for ", w.waiting)
		if got != want {
			return fmt.Sprintf("got  %s\nwant %s", got, want)
		}
		return ""
	})
}

func namespaced(namespace, name string) *policy.Policy {
	p, _ := accept.Namespaced(&networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}})
	return &p
}

func named(policies ...*policy.Policy) map[string]*policy.Policy {
	out := map[string]*policy.Policy{}
	for _, p := range policies {
		out[p.Name] = p
	}
	return out
}

func TestSource(t *testing.T) {
	var mu sync.Mutex
	var pods []*policy.Pod
	set := func(now ...*policy.Pod) {
		mu.Lock()
		defer mu.Unlock()
		pods = now
	}
	s := New(func() []*policy.Pod {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(pods)
	}, "the directory", "the URL")
	a := &policy.Pod{Namespace: "x", Name: "a", Addresses: []netip.Addr{netip.MustParseAddr("10.0.0.1")}}
	set(a)
	w := start(t, s)
	w.eventually(t, "[] map[] [] waiting for policies: the URL has not been read yet\npolicies: the directory has not been read yet")
	s.Declare("the directory", Objects{Unread: []string{"/etc/husk/p.yaml"}})
	s.Declare("the URL", Objects{Policies: named(namespaced("y", "p"))})
	w.eventually(t, "[] map[] [] waiting for policies: /etc/husk/p.yaml has mistakes and may have policies: correct or remove it; the log names the mistakes")
	s.Declare("the directory", Objects{Policies: named(namespaced("x", "p"))})
	w.eventually(t, "[NetworkPolicy x/p NetworkPolicy y/p] map[x:kubernetes.io/metadata.name=x y:kubernetes.io/metadata.name=y] [x/a] waiting for <nil>")

	// Only what changes is said, and a file that breaks later keeps its policies.
	s.Declare("the directory", Objects{Policies: named(namespaced("x", "p")), Unread: []string{"/etc/husk/q.yaml"}})
	b := *a
	b.Name = "b"
	set(a, &b)
	s.Changed()
	w.eventually(t, "[NetworkPolicy x/p NetworkPolicy y/p] map[x:kubernetes.io/metadata.name=x y:kubernetes.io/metadata.name=y] [x/a x/b] waiting for <nil>")
	w.mu.Lock()
	if w.updates != 2 || len(w.last.Pods) != 1 || len(w.last.Policies)+len(w.last.Namespaces) > 0 {
		t.Errorf("update %d: %+v", w.updates, w.last)
	}
	w.mu.Unlock()

	// A relabelled pod, and what is removed.
	relabelled := *a
	relabelled.Labels = labels.Set{"a": "b"}
	set(&relabelled)
	s.Declare("the URL", Objects{Namespaces: map[string]map[string]string{"x": {"team": "a"}}})
	w.eventually(t, "[NetworkPolicy x/p] map[x:kubernetes.io/metadata.name=x,team=a] [x/a] waiting for <nil>")
	w.mu.Lock()
	defer w.mu.Unlock()
	if got := w.state.Pods["x/a"].Labels.String(); got != "a=b" {
		t.Errorf("labels %s", got)
	}
}

// TestSameAsServer checks that files and a server that say the same make the same world.
func TestSameAsServer(t *testing.T) {
	object := networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "p"},
		Spec: networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}, Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{}}}}}},
	}
	pod := corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "a", Labels: map[string]string{"a": "b"}, CreationTimestamp: metav1.Unix(1, 0)},
		Spec:   corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}},
	}
	server := clustertest.New(t)
	server.Put("/apis/networking.k8s.io/v1/networkpolicies", &object)
	server.Put("/api/v1/pods", &pod)
	server.Put("/api/v1/namespaces", &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: "x", Labels: map[string]string{corev1.LabelMetadataName: "x"}}})
	client, err := cluster.New(server.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		server.CloseConnections()
		client.Close()
	})
	api := &apisource.Source{Connect: func(context.Context) (*cluster.Client, error) { return client, nil }, Mistaken: func(string, []accept.Problem) {}}
	accepted, _ := accept.Namespaced(&object)
	file := New(func() []*policy.Pod { return []*policy.Pod{accept.Pod(&pod)} }, "files")
	file.Declare("files", Objects{Policies: named(&accepted)})
	const want = "[NetworkPolicy x/p] map[x:kubernetes.io/metadata.name=x] [x/a] waiting for <nil>"
	fromServer, fromFile := start(t, api), start(t, file)
	fromServer.eventually(t, want)
	fromFile.eventually(t, want)
	for _, w := range []*world{fromServer, fromFile} {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.state.Pods["x/a"].Started = w.state.Pods["x/a"].Started.UTC()
	}
	if !reflect.DeepEqual(fromServer.state, fromFile.state) {
		t.Errorf("server %+v\nfile   %+v", fromServer.state, fromFile.state)
	}
}
