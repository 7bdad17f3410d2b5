package apisource

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/network/policy"
	"github.com/huskd/husk/internal/network/policy/accept"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is what a source has said.
type world struct {
	mu       sync.Mutex
	updates  int
	policies map[string]*policy.Policy
	labels   map[string]string // of namespaces
	pods     map[string]string
	nodes    map[string]string
	waiting  string
	problems map[string]string
	awaited  int // updates that were incomplete
}

func (w *world) update(c policy.Changes) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.updates++; c.Incomplete {
		w.awaited++
	}
	for name, p := range c.Policies {
		if w.policies[name] = p; p == nil {
			delete(w.policies, name)
		}
	}
	for name, l := range c.Namespaces {
		if w.labels[name] = l.String(); l == nil {
			delete(w.labels, name)
		}
	}
	for key, p := range c.Pods {
		if delete(w.pods, key); p != nil {
			w.pods[key] = fmt.Sprint(p.Labels, p.Addresses)
		}
	}
	for name, n := range c.Nodes {
		if delete(w.nodes, name); n != nil {
			w.nodes[name] = fmt.Sprint(n.Labels, n.Addresses)
		}
	}
}

func (w *world) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return fmt.Sprint(slices.Sorted(maps.Keys(w.policies)), w.labels, w.pods, w.nodes)
}

// eventually waits until the source has said all of it.
func (w *world) eventually(t *testing.T, want string) {
	t.Helper()
	clustertest.Eventually(t, func() string {
		if got := w.String(); got != want {
			return fmt.Sprintf("got  %s\nwant %s", got, want)
		}
		return ""
	})
}

// start runs a source of the server until the test ends.
func start(t testing.TB, s *clustertest.Server) *world {
	t.Helper()
	w := &world{policies: map[string]*policy.Policy{}, labels: map[string]string{}, pods: map[string]string{}, nodes: map[string]string{}, problems: map[string]string{}}
	runSource(t, s, w.update, w, 20*time.Millisecond)
	return w
}

func runSource(t testing.TB, s *clustertest.Server, update func(policy.Changes), w *world, recheck time.Duration) {
	t.Helper()
	client, err := cluster.New(s.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	source := &Source{
		Connect: func(context.Context) (*cluster.Client, error) { return client, nil },
		Recheck: recheck, Linger: 10 * time.Millisecond,
		Mistaken: func(name string, problems []accept.Problem) {
			w.mu.Lock()
			defer w.mu.Unlock()
			if delete(w.problems, name); len(problems) > 0 {
				w.problems[name] = fmt.Sprint(problems)
			}
		},
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		ended <- source.Run(ctx, update, func(err error) {
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
		s.CloseConnections()
		client.Close()
	})
}

func namespace(name, label string) *corev1.Namespace {
	return &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}}}
}

func pod(name, label, ip string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, Labels: map[string]string{"l": label}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

func node(name, label, ip string) *corev1.Node {
	return &corev1.Node{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"l": label}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: ip}}},
	}
}

func namespacedPolicy(name string, types ...networkingv1.PolicyType) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name},
		Spec: networkingv1.NetworkPolicySpec{PolicyTypes: types},
	}
}

func clusterPolicy(name, tier string) *accept.ClusterNetworkPolicy {
	return &accept.ClusterNetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: accept.ClusterVersion.String(), Kind: "ClusterNetworkPolicy"}, ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: accept.ClusterNetworkPolicySpec{Tier: tier, Subject: accept.ClusterSubject{Namespaces: &metav1.LabelSelector{}}},
	}
}

func TestEverythingThenChanges(t *testing.T) {
	s := clustertest.New(t)
	s.Put(namespaceList.Path, namespace("n", "1"))
	s.Put(podList.Path, pod("a", "1", "10.0.0.1"))
	s.Put(podList.Path, pod("b", "1", ""))
	host := pod("host", "1", "192.0.2.1")
	host.Spec.HostNetwork = true
	s.Put(podList.Path, host)
	s.Put(nodeList.Path, node("m", "1", "192.0.2.1"))
	s.Put(namespacedList.Path, namespacedPolicy("p"))
	s.Put(clusterList.Path, clusterPolicy("c", "Admin"))
	w := start(t, s)
	const first = "[ClusterNetworkPolicy c NetworkPolicy n/p] map[n:l=1] map[n/a:l=1 [10.0.0.1] n/b:l=1 []] map[m:l=1 [192.0.2.1]]"
	clustertest.Eventually(t, func() string {
		if w.mu.Lock(); w.updates == 0 {
			w.mu.Unlock()
			return "no update"
		}
		w.mu.Unlock()
		if got := w.String(); got != first {
			t.Fatalf("the first update:\ngot  %s\nwant %s", got, first)
		}
		return ""
	})

	s.Put(podList.Path, pod("b", "2", "10.0.0.2"))
	w.eventually(t, strings.Replace(first, "n/b:l=1 []", "n/b:l=2 [10.0.0.2]", 1))
	s.Put(podList.Path, pod("a", "2", "10.0.0.3"))
	w.eventually(t, strings.NewReplacer("n/a:l=1 [10.0.0.1]", "n/a:l=2 [10.0.0.3]", "n/b:l=1 []", "n/b:l=2 [10.0.0.2]").Replace(first))
	s.Put(podList.Path, pod("a", "1", "10.0.0.1"))
	over := pod("b", "2", "10.0.0.2")
	over.Status.Phase = corev1.PodSucceeded
	s.Put(podList.Path, over)
	rest := strings.Replace(first, " n/b:l=1 []", "", 1)
	w.eventually(t, rest)
	s.Put(nodeList.Path, node("m", "2", "192.0.2.2"))
	w.eventually(t, strings.Replace(rest, "m:l=1 [192.0.2.1]", "m:l=2 [192.0.2.2]", 1))
	s.Put(nodeList.Path, node("m", "1", "192.0.2.1"))
	s.Put(namespaceList.Path, namespace("n", "2"))
	w.eventually(t, strings.Replace(rest, "n:l=1]", "n:l=2]", 1))

	// A namespace without labels is there; one that is removed isn't.
	bare := namespace("n", "")
	bare.Labels = nil
	s.Put(namespaceList.Path, bare)
	w.eventually(t, strings.Replace(rest, "n:l=1]", "n:]", 1))
	for _, gone := range []struct{ list, namespace, name string }{
		{namespaceList.Path, "", "n"}, {podList.Path, "n", "a"}, {nodeList.Path, "", "m"}, {namespacedList.Path, "n", "p"}, {clusterList.Path, "", "c"},
	} {
		s.Remove(gone.list, gone.namespace, gone.name)
	}
	w.eventually(t, "[] map[] map[] map[]")
}

// TestWithoutPolicies checks that what policies select is read from the first policy on, that pods
// wait for it, and that it is forgotten after the last one.
func TestWithoutPolicies(t *testing.T) {
	s := clustertest.New(t)
	s.Put(namespaceList.Path, namespace("n", "1"))
	s.Put(podList.Path, pod("a", "1", "10.0.0.1"))
	s.Put(nodeList.Path, node("m", "1", "192.0.2.1"))
	held := make(chan struct{})
	var asked sync.Once
	wanted := make(chan struct{})
	s.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == podList.Path {
			asked.Do(func() { close(wanted) })
			<-held
		}
		return false
	})
	w := start(t, s)
	said := func(updates, awaited int) string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.updates < updates || w.awaited != awaited {
			return fmt.Sprintf("%d updates, %d of them incomplete, want %d and %d", w.updates, w.awaited, updates, awaited)
		}
		return ""
	}
	clustertest.Eventually(t, func() string { return said(1, 0) })
	select {
	case <-wanted:
		t.Error("pods are read without a policy")
	default:
	}
	s.Put(namespacedList.Path, namespacedPolicy("p"))
	clustertest.Eventually(t, func() string { return said(2, 1) })
	w.eventually(t, "[] map[] map[] map[]")
	clustertest.Eventually(t, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiting != "policies: the API server has not answered yet about pods" {
			return w.waiting
		}
		return ""
	})
	close(held)
	const all = "[NetworkPolicy n/p] map[n:l=1] map[n/a:l=1 [10.0.0.1]] map[m:l=1 [192.0.2.1]]"
	w.eventually(t, all)
	s.Remove(namespacedList.Path, "n", "p")
	w.eventually(t, "[] map[] map[] map[]")
	s.Put(clusterList.Path, clusterPolicy("c", "Admin"))
	w.eventually(t, strings.Replace(all, "NetworkPolicy n/p", "ClusterNetworkPolicy c", 1))
	if problem := said(0, 2); problem != "" {
		t.Error(problem)
	}
}

// TestNothingNew checks that objects that change in something else cause no update.
func TestNothingNew(t *testing.T) {
	s := clustertest.New(t)
	s.Put(podList.Path, pod("a", "1", "10.0.0.1"))
	s.Put(nodeList.Path, node("m", "1", "192.0.2.1"))
	s.Put(namespacedList.Path, namespacedPolicy("p"))
	w := start(t, s)
	w.eventually(t, "[NetworkPolicy n/p] map[] map[n/a:l=1 [10.0.0.1]] map[m:l=1 [192.0.2.1]]")
	w.mu.Lock()
	before := w.updates
	w.mu.Unlock()
	busy, beat, same := pod("a", "1", "10.0.0.1"), node("m", "1", "192.0.2.1"), namespacedPolicy("p")
	busy.Status.Message, beat.Status.Phase, same.Annotations = "busy", "x", map[string]string{"x": "y"}
	s.Put(podList.Path, busy)
	s.Put(nodeList.Path, beat)
	s.Put(namespacedList.Path, same)
	s.CloseConnections() // all lists anew
	s.Put(podList.Path, pod("b", "1", "10.0.0.2"))
	w.eventually(t, "[NetworkPolicy n/p] map[] map[n/a:l=1 [10.0.0.1] n/b:l=1 [10.0.0.2]] map[m:l=1 [192.0.2.1]]")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.updates != before+1 {
		t.Errorf("%d updates, want 1", w.updates-before)
	}
}

// TestClusterNetworkPoliciesInstalledLater checks a server that gets and loses the definition.
func TestClusterNetworkPoliciesInstalledLater(t *testing.T) {
	s := clustertest.New(t)
	s.SetMissing(clusterPlural, true)
	s.Put(namespacedList.Path, namespacedPolicy("p"))
	w := start(t, s)
	for range 2 {
		w.eventually(t, "[NetworkPolicy n/p] map[] map[] map[]")
		s.SetMissing(clusterPlural, false)
		s.Put(clusterList.Path, clusterPolicy("c", "Admin"))
		w.eventually(t, "[ClusterNetworkPolicy c NetworkPolicy n/p] map[] map[] map[]")
		s.SetMissing(clusterPlural, true)
	}
	w.eventually(t, "[NetworkPolicy n/p] map[] map[] map[]")
}

// TestMissingKindIsNotAskedFor: a server without ClusterNetworkPolicies isn't asked for them again
// and again by a node that may watch their definition. It is by one that may not.
func TestMissingKindIsNotAskedFor(t *testing.T) {
	const recheck = 20 * time.Millisecond
	for name, mayWatch := range map[string]bool{"may watch": true, "may not": false} {
		t.Run(name, func(t *testing.T) {
			s := clustertest.New(t)
			s.SetMissing(clusterPlural, true)
			s.Put(namespacedList.Path, namespacedPolicy("p"))
			var asked, refused atomic.Int32
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == "/apis/policy.networking.k8s.io/v1alpha2" {
					asked.Add(1)
				}
				if mayWatch || r.URL.Path != definitionList.Path {
					return false
				}
				refused.Add(1)
				clustertest.RespondError(w, http.StatusForbidden, metav1.StatusReasonForbidden)
				return true
			})
			w := &world{policies: map[string]*policy.Policy{}, labels: map[string]string{}, pods: map[string]string{}, nodes: map[string]string{}, problems: map[string]string{}}
			runSource(t, s, w.update, w, recheck)
			w.eventually(t, "[NetworkPolicy n/p] map[] map[] map[]")
			quiet := false
			for range 20 {
				before := asked.Load()
				time.Sleep(10 * recheck)
				if quiet = asked.Load() == before; quiet {
					break
				}
			}
			if quiet != mayWatch {
				t.Errorf("the server was asked %d times, and is no longer: %t", asked.Load(), quiet)
			}
			if n := refused.Load(); n > 3 {
				t.Errorf("a watch that is refused was tried %d times", n)
			}
			s.Put(clusterList.Path, clusterPolicy("c", "Admin"))
			s.SetMissing(clusterPlural, false)
			w.eventually(t, "[ClusterNetworkPolicy c NetworkPolicy n/p] map[] map[] map[]")
			s.SetMissing(clusterPlural, true)
			w.eventually(t, "[NetworkPolicy n/p] map[] map[] map[]")
		})
	}
}

// TestWaits checks that nothing is said before everything is known, and that the reason is.
func TestWaits(t *testing.T) {
	for name, path := range map[string]string{
		"policies": namespacedList.Path, "cluster policies": clusterList.Path, "their definition": "/apis/policy.networking.k8s.io/v1alpha2",
		"namespaces": namespaceList.Path, "nodes": nodeList.Path, "pods": podList.Path,
	} {
		t.Run(name, func(t *testing.T) {
			s := clustertest.New(t)
			s.Put(namespaceList.Path, namespace("n", "1"))
			s.Put(namespacedList.Path, namespacedPolicy("p"))
			s.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == path {
					clustertest.RespondError(w, http.StatusForbidden, metav1.StatusReasonForbidden)
				}
				return r.URL.Path == path
			})
			w := start(t, s)
			clustertest.Eventually(t, func() string {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.updates > 0 {
					t.Fatal("an update before everything is known")
				}
				if !strings.HasPrefix(w.waiting, "policies: the API server forbids this node to read ") || !strings.Contains(w.waiting, "bind the ClusterRole of docs/policy.md") {
					return "waiting for " + w.waiting
				}
				return ""
			})
			s.Intercept(nil)
			w.eventually(t, "[NetworkPolicy n/p] map[n:l=1] map[] map[]")
			clustertest.Eventually(t, func() string {
				w.mu.Lock()
				defer w.mu.Unlock()
				if w.waiting != "<nil>" {
					return "still waiting for " + w.waiting
				}
				return ""
			})
		})
	}
}

// TestServerAway checks that what is known stays while the server is away, that this is reported,
// and that what changed meanwhile is found.
func TestServerAway(t *testing.T) {
	s := clustertest.New(t)
	s.Put(podList.Path, pod("a", "1", "10.0.0.1"))
	s.Put(podList.Path, pod("b", "1", "10.0.0.2"))
	s.Put(namespacedList.Path, namespacedPolicy("p"))
	w := start(t, s)
	w.eventually(t, "[NetworkPolicy n/p] map[] map[n/a:l=1 [10.0.0.1] n/b:l=1 [10.0.0.2]] map[]")
	s.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		clustertest.RespondError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return true
	})
	clustertest.Eventually(t, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !strings.Contains(w.waiting, "ServiceUnavailable") {
			return "waiting for " + w.waiting
		}
		return ""
	})
	s.Remove(podList.Path, "n", "a")
	s.Put(podList.Path, pod("c", "1", "10.0.0.3"))
	w.eventually(t, "[NetworkPolicy n/p] map[] map[n/a:l=1 [10.0.0.1] n/b:l=1 [10.0.0.2]] map[]")
	s.Intercept(nil)
	w.eventually(t, "[NetworkPolicy n/p] map[] map[n/b:l=1 [10.0.0.2] n/c:l=1 [10.0.0.3]] map[]")
	clustertest.Eventually(t, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.waiting != "<nil>" {
			return "still waiting for " + w.waiting
		}
		return ""
	})
}

func TestMistakes(t *testing.T) {
	s := clustertest.New(t)
	w := start(t, s)
	problems := func(want string) {
		t.Helper()
		clustertest.Eventually(t, func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			if got := fmt.Sprint(w.problems); got != want {
				return "problems " + got + ", want " + want
			}
			return ""
		})
	}
	const wrong = `NetworkPolicy n/p:[NetworkPolicy n/p: spec.policyTypes[0]: "Both" is unknown: use Ingress or Egress]`
	const tier = `ClusterNetworkPolicy c:[ClusterNetworkPolicy c: spec.tier: "Middle" is unknown: use Admin or Baseline]`
	s.Put(namespacedList.Path, namespacedPolicy("p", "Both"))
	problems("map[" + wrong + "]")
	s.Put(clusterList.Path, clusterPolicy("c", "Middle"))
	problems("map[" + tier + " " + wrong + "]")
	s.Put(namespacedList.Path, namespacedPolicy("p", "Ingress"))
	problems("map[" + tier + "]")
	s.Remove(clusterList.Path, "", "c")
	problems("map[]")
	w.eventually(t, "[NetworkPolicy n/p] map[] map[] map[]")
}

// TestHostileObjects checks that objects with absurd contents stop nothing, that policies among
// them deny what they can't say, and that the others are as they were.
func TestHostileObjects(t *testing.T) {
	s := clustertest.New(t)
	port := func(n int) *intstr.IntOrString { p := intstr.FromInt(n); return &p }
	many := func(n int, rule networkingv1.NetworkPolicyIngressRule) []networkingv1.NetworkPolicyIngressRule {
		return slices.Repeat([]networkingv1.NetworkPolicyIngressRule{rule}, n)
	}
	from := func(p networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
		return networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{p}}
	}
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	long := strings.Repeat("x", 100_000)
	huge := &metav1.LabelSelector{}
	for i := range 10_000 {
		huge.MatchExpressions = append(huge.MatchExpressions, metav1.LabelSelectorRequirement{Key: fmt.Sprint("l", i), Operator: metav1.LabelSelectorOpDoesNotExist})
	}
	hostile := map[string][]networkingv1.NetworkPolicyIngressRule{
		"rules":    many(10_000, from(block("192.0.2.0/24"))),
		"empty":    many(10_000, from(networkingv1.NetworkPolicyPeer{})),
		"cidr":     {from(block("not a network"))},
		"nul":      {from(block("10.0.0.0/8\x00"))},
		"long":     {from(block(long))},
		"wide":     {from(block("10.0.0.0/99"))},
		"except":   {from(block("10.0.0.0/8", "0.0.0.0/0"))},
		"port":     {{Ports: []networkingv1.NetworkPolicyPort{{Port: port(1 << 20)}}}},
		"negative": {{Ports: []networkingv1.NetworkPolicyPort{{Port: port(-1)}}}},
		"range":    {{Ports: []networkingv1.NetworkPolicyPort{{Port: port(100), EndPort: new(int32)}}}},
		"operator": {from(networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}})},
		"key":      {from(networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{long: long}}})},
	}
	put := func(name string, rules ...networkingv1.NetworkPolicyIngressRule) {
		p := namespacedPolicy(name, networkingv1.PolicyTypeIngress)
		if _, bad := hostile[name]; bad {
			p.Namespace = "hostile"
		}
		p.Spec.Ingress = rules
		s.Put(namespacedList.Path, p)
	}
	for name, rules := range hostile {
		put(name, rules...)
	}
	put("good", from(networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}))
	put("selector", from(networkingv1.NetworkPolicyPeer{PodSelector: huge})) // large, and valid
	odd := pod("odd", "1", "10.0.0.300")
	odd.Status.PodIPs = append(odd.Status.PodIPs, corev1.PodIP{IP: long}, corev1.PodIP{IP: "fe80::1%eth0"}, corev1.PodIP{IP: "10.0.0.2"})
	odd.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: long, ContainerPort: -1}, {Name: "p", ContainerPort: 1 << 20, Protocol: "ICMP"}}}}
	s.Put(podList.Path, odd)
	strange := node("strange", "1", "not an address")
	strange.Spec.PodCIDRs = []string{"", long, "255.255.255.255/32"}
	s.Put(nodeList.Path, strange)
	s.Put(namespaceList.Path, namespace("n", "1"))
	s.Put(namespaceList.Path, namespace("hostile", "1"))

	w := start(t, s)
	arrived := func(want int) {
		t.Helper()
		clustertest.Eventually(t, func() string {
			w.mu.Lock()
			defer w.mu.Unlock()
			if len(w.policies) != want || len(w.pods) != 1 || len(w.nodes) != 1 {
				return fmt.Sprintf("%d policies, %d pods, %d nodes", len(w.policies), len(w.pods), len(w.nodes))
			}
			return ""
		})
	}
	arrived(len(hostile) + 2)
	w.mu.Lock()
	for name := range hostile {
		name = "NetworkPolicy hostile/" + name
		p := w.policies[name]
		if p == nil || w.problems[name] == "" || len(w.problems[name]) > 10_000 {
			t.Errorf("%s: %v, problems of %d bytes", name, p != nil, len(w.problems[name]))
			continue
		}
		if !p.Subject.Selects("hostile", nil, nil) || p.Ingress == nil {
			t.Errorf("%s isolates nothing", name)
		}
		for _, r := range p.Ingress.Rules {
			if r.Peers == nil || len(r.Peers) > 0 {
				t.Errorf("%s allows something: %+v", name, r)
				break
			}
		}
	}
	for _, name := range []string{"NetworkPolicy n/good", "NetworkPolicy n/selector"} {
		if p := w.policies[name]; p == nil || w.problems[name] != "" || len(p.Ingress.Rules) != 1 || len(p.Ingress.Rules[0].Peers) != 1 {
			t.Errorf("%s is %+v, with problems %q", name, p, w.problems[name])
		}
	}
	w.mu.Unlock()

	// The namespace goes, and then its policies: the others stay.
	s.Remove(namespaceList.Path, "", "hostile")
	for name := range hostile {
		s.Remove(namespacedList.Path, "hostile", name)
	}
	arrived(2)
	clustertest.Eventually(t, func() string {
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(w.problems) > 0 || len(w.labels) != 1 {
			return fmt.Sprint(w.labels, len(w.problems))
		}
		return ""
	})
}

// TestMemory checks what is kept of 10,000 pods of 200 ReplicaSets.
func TestMemory(t *testing.T) {
	const pods, limit = 10_000, 4 << 20
	s := clustertest.New(t)
	for i := range pods {
		p := pod(fmt.Sprintf("web-%d-6d4cf56db6-%05d", i%200, i), "1", fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
		p.Namespace = fmt.Sprint("namespace-", i%50)
		p.Labels = map[string]string{"app.kubernetes.io/name": fmt.Sprint("web-", i%200), "pod-template-hash": "6d4cf56db6", "tier": "front"}
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "registry.example/web:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}, Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 500)}}}}
		s.Put(podList.Path, p)
	}
	heap := func() int64 {
		for range 3 { // the server's pool of encoders as well
			runtime.GC()
		}
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	w := &world{problems: map[string]string{}}
	kept := map[string]*policy.Pod{} // as the compiler keeps them
	var mu sync.Mutex
	runSource(t, s, func(c policy.Changes) {
		mu.Lock()
		defer mu.Unlock()
		w.updates++
		maps.Copy(kept, c.Pods)
	}, w, time.Hour)
	clustertest.Eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		if w.updates == 0 {
			return "no update"
		}
		return ""
	})
	idle := heap() - before
	t.Logf("without policies, %d pods take %d KiB", pods, idle>>10)
	if idle > limit/4 {
		t.Errorf("without policies, %d pods take %d KiB, at most %d", pods, idle>>10, limit>>12)
	}
	s.Put(namespacedList.Path, namespacedPolicy("p"))
	clustertest.Eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		if len(kept) < pods {
			return fmt.Sprintf("%d pods", len(kept))
		}
		return ""
	})
	used := heap() - before
	t.Logf("%d pods take %d KiB", pods, used>>10)
	if used > limit {
		t.Errorf("%d pods take %d KiB, at most %d", pods, used>>10, limit>>10)
	}
	runtime.KeepAlive(kept)
}
