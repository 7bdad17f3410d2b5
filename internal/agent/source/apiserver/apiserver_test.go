package apiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/manifest"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

const (
	podList     = "/api/v1/pods"
	serviceList = "/api/v1/services"
	classList   = "/apis/node.k8s.io/v1/runtimeclasses"
)

// fixture is a source with the sets that it delivered. Pods count as known, like in the agent,
// after they were delivered.
type fixture struct {
	*clustertest.Server
	t    *testing.T
	node *corev1.Node

	mu        sync.Mutex
	set       source.Set
	sets      int
	known     map[types.UID]*corev1.Pod
	pressure  []corev1.NodeConditionType
	preempted []string
	allocated bool              // the devices of the pod named slow
	rejected  map[string]string // reasons, by the pod's name
	refused   map[string]string // reasons, by the pod's name, a slash and the container's name
	refusals  int               // calls of Refused
	gone      []types.UID       // calls of Gone
	log       bytes.Buffer
}

func (f *fixture) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.log.Write(p)
}

func newFixture(t *testing.T) *fixture {
	t.Parallel()
	f := &fixture{
		Server: clustertest.New(t), t: t, known: map[types.UID]*corev1.Pod{}, rejected: map[string]string{}, refused: map[string]string{},
		node: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", Labels: map[string]string{"zone": "a"}}},
	}
	log := slog.New(slog.NewTextHandler(f, nil))
	client, err := cluster.New(f.Kubeconfig, log)
	if err != nil {
		t.Fatal(err)
	}
	s := &Source{
		Client: client, Node: func() *corev1.Node { return f.node }, Log: log, Changed: func() {}, waitReport: 100 * time.Millisecond,
		Rules: Rules{Pressure: func() []corev1.NodeConditionType {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.pressure
		}, Devices: func(pod *corev1.Pod) (decided bool, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			if pod.Name == "unlucky" {
				return true, errors.New("no device")
			}
			return pod.Name != "slow" || f.allocated, nil
		}},
		Known: func(uid types.UID) *corev1.Pod {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.known[uid]
		},
		Verdicts: Verdicts{
			Rejected: func(pod *corev1.Pod, why admission.Refusal) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.rejected[pod.Name] = why.Reason + ": " + why.Message
			},
			Refused: func(pod *corev1.Pod, why map[string]admission.Refusal) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.refusals++
				maps.DeleteFunc(f.refused, func(key, _ string) bool { name, _, _ := strings.Cut(key, "/"); return name == pod.Name })
				for container, why := range why {
					f.refused[pod.Name+"/"+container] = why.Reason + ": " + why.Message
				}
			},
			Gone: func(uid types.UID) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.gone = append(f.gone, uid)
			},
		},
		Preempt: func(uid types.UID) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.preempted = append(f.preempted, string(uid))
			return nil
		},
		Deliver: func(set source.Set) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.set = set
			f.sets++
			for _, p := range set.Pods {
				f.known[p.UID] = p.Pod
			}
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	s.Start(ctx)
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		client.Close()
	})
	return f
}

func (f *fixture) eventually(what string, ok func() bool) {
	f.t.Helper()
	clustertest.Eventually(f.t, func() string {
		f.mu.Lock()
		defer f.mu.Unlock()
		if ok() {
			return ""
		}
		return fmt.Sprintf("timeout waiting for %s; set %d is %v, unread %v, rejected %v, refused %v, log:\n%s", what, f.sets, f.names(), f.set.Unread, f.rejected, f.refused, f.log.String())
	})
}

// names returns the names of the pods in the last set, with the deletion grace period if they have
// one.
func (f *fixture) names() []string {
	out := []string{}
	for _, p := range f.set.Pods {
		name := p.Name
		if p.DeletionGrace != nil {
			name += " within " + p.DeletionGrace.String()
		}
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

func (f *fixture) expect(names ...string) {
	f.t.Helper()
	f.eventually(fmt.Sprint(names), func() bool { return f.sets > 0 && slices.Equal(f.names(), names) })
}

func (f *fixture) expectLog(text string) {
	f.t.Helper()
	f.eventually("log says "+text, func() bool { return strings.Contains(f.log.String(), text) })
}

// pod returns a pod of this node as an API server returns it.
func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name), CreationTimestamp: metav1.Unix(1, 0)},
		Spec: corev1.PodSpec{
			NodeName: "here", ServiceAccountName: "default", SchedulerName: "default-scheduler", EnableServiceLinks: new(true),
			TerminationGracePeriodSeconds: new(int64(30)),
			Containers:                    []corev1.Container{{Name: "c", Image: "localhost/x", TerminationMessagePath: "/dev/termination-log"}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestPodLifecycle(t *testing.T) {
	f := newFixture(t)
	f.expect()
	f.Put(podList, pod("a"))
	f.Put(podList, pod("b"))
	f.expect("a", "b")
	f.Put(podList, pod("mirror", func(p *corev1.Pod) { p.Annotations = map[string]string{cluster.MirrorAnnotation: "x"} }))
	f.Put(podList, pod("over", func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }))
	f.Put(podList, pod("gone", func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Now()} }))
	f.Put(podList, pod("a", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "localhost/y" }))
	f.eventually("a's other image", func() bool {
		i := slices.IndexFunc(f.set.Pods, func(p source.Pod) bool { return p.Name == "a" })
		return i >= 0 && f.set.Pods[i].Spec.Containers[0].Image == "localhost/y"
	})
	f.expect("a", "b")
	f.Put(podList, pod("b", func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(7))
	}))
	f.expect("a", "b within 7s")
	f.Put(podList, pod("a", func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }))
	f.Remove(podList, "default", "b")
	f.expect("a") // it has ended, but still exists
	f.Remove(podList, "default", "a")
	f.expect()
}

// TestGeneration: a pod is delivered with the generation that it was made from.
func TestGeneration(t *testing.T) {
	f := newFixture(t)
	of := func(generation int64, image string, change ...func(*corev1.Pod)) *corev1.Pod {
		return pod("a", append(change, func(p *corev1.Pod) { p.Generation, p.Spec.Containers[0].Image = generation, image })...)
	}
	invalid := func(p *corev1.Pod) { p.Spec.RestartPolicy = "Sometimes" }
	var before []source.Pod
	delivered := func(generation int64, image string) {
		t.Helper()
		f.eventually(fmt.Sprintf("%s of generation %d", image, generation), func() bool {
			return len(f.set.Pods) == 1 && f.set.Pods[0].Generation == generation && f.set.Pods[0].Spec.Containers[0].Image == image
		})
		f.mu.Lock()
		defer f.mu.Unlock()
		before = append(before, f.set.Pods[0])
	}
	f.Put(podList, of(1, "localhost/x"))
	delivered(1, "localhost/x")
	f.Put(podList, of(2, "localhost/y"))
	delivered(2, "localhost/y")
	f.Put(podList, of(3, "localhost/y")) // what has changed was changed back
	delivered(3, "localhost/y")
	f.Put(podList, of(4, "localhost/z", invalid)) // not valid: the pod stays what it was
	f.eventually("refused", func() bool { return f.refused["a/"] != "" })
	delivered(3, "localhost/y")
	f.Put(podList, of(5, "localhost/z", invalid, func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(7))
	}))
	f.expect("a within 7s")
	delivered(5, "localhost/y")
	for i, want := range []int64{1, 2, 3, 3, 5} {
		if got := before[i].Generation; got != want {
			t.Errorf("a pod that was delivered with generation %d has %d now", want, got)
		}
	}
}

// TestStatusUpdatesDeliverNothing has status changes, which the reporter itself causes.
func TestStatusUpdatesDeliverNothing(t *testing.T) {
	f := newFixture(t)
	f.Put(podList, pod("a"))
	f.expect("a")
	f.mu.Lock()
	before := f.sets
	f.mu.Unlock()
	for i := range 20 {
		f.Put(podList, pod("a", func(p *corev1.Pod) { p.Status.Message = fmt.Sprint(i) }))
	}
	f.Put(podList, pod("b"))
	f.expect("a", "b")
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sets != before+1 {
		t.Errorf("%d sets", f.sets-before)
	}
}

func answer(code int, kind, body string) func(http.ResponseWriter, *http.Request) bool {
	return func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body)
		return true
	}
}

// TestBadAnswersRemoveNothing checks that pods stay whatever the server answers, unless it is a
// list without them, and that each error is logged once.
func TestBadAnswersRemoveNothing(t *testing.T) {
	list := func(pods ...*corev1.Pod) string {
		text, _ := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "PodList", "metadata": map[string]string{"resourceVersion": "100"}, "items": pods})
		return string(text)
	}
	onlyPods := func(fault func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool { return r.URL.Path == podList && fault(w, r) }
	}
	for name, c := range map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		says  string
	}{
		"HTML":         {answer(200, "text/html", "<html><body>Welcome to the portal</body></html>"), "level=ERROR"},
		"HTML as JSON": {answer(200, "application/json", "<html></html>"), "level=ERROR"},
		"an object":    {answer(200, "application/json", "{}"), "level=ERROR"},
		"an empty list without a resourceVersion": {answer(200, "application/json", `{"apiVersion":"v1","kind":"PodList","items":[]}`), "no resourceVersion"},
		"a list of rubbish":                       {answer(200, "application/json", `{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"9"},"items":[{"metadata":{"name":7}}]}`), "level=ERROR"},
		"unauthorized":                            {answer(401, "text/plain", ""), "level=ERROR"},
		"another node's pods": {answer(200, "application/json", list(
			pod("a", func(p *corev1.Pod) { p.Spec.NodeName = "there" }), pod("b", func(p *corev1.Pod) { p.UID = "" }))), "it is not a pod of node here"},
		"invalid pods": {answer(200, "application/json", list(
			pod("a", func(p *corev1.Pod) { p.Spec.RestartPolicy = "Sometimes" }),
			pod("b", func(p *corev1.Pod) { p.Spec.Containers[0].Image = "UPPER/:" }))), "stays as it was"},
		"a reset": {func(w http.ResponseWriter, _ *http.Request) bool {
			conn, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				_ = conn.Close()
			}
			return true
		}, ""}, // not logged, like any connection that ends
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			f.Put(podList, pod("a"))
			f.Put(podList, pod("b"))
			f.expect("a", "b")
			f.Intercept(onlyPods(c.fault))
			f.expectLog(c.says)
			clustertest.Eventually(t, func() string {
				if n := f.RequestCount(); n < 3 {
					return fmt.Sprintf("%d requests", n)
				}
				return ""
			})
			f.mu.Lock()
			// Pods that aren't in the set are unread, so that the agent keeps them.
			if len(f.set.Pods)+len(f.set.Unread) != 2 {
				t.Errorf("set %v, unread %v", f.names(), f.set.Unread)
			}
			lines := strings.Split(strings.TrimSpace(f.log.String()), "\n")
			for i, line := range lines {
				_, text, _ := strings.Cut(line, "level=")
				if slices.ContainsFunc(lines[:i], func(earlier string) bool { return strings.HasSuffix(earlier, text) }) && strings.HasPrefix(text, "ERROR") {
					t.Errorf("logged twice: %s", line)
				}
			}
			f.mu.Unlock()
			f.Intercept(nil)
			f.Put(podList, pod("c"))
			f.expect("a", "b", "c")
		})
	}
}

// TestHistoryExpired has a server that drops its history during a watch.
func TestHistoryExpired(t *testing.T) {
	f := newFixture(t)
	f.Put(podList, pod("a"))
	f.expect("a")
	f.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path != podList || r.URL.Query().Get("watch") == "" || r.URL.Query().Get("sendInitialEvents") != "" {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","code":410,"reason":"Expired"}}`+"\n")
		return true
	})
	f.Put(podList, pod("b"))
	f.expect("a", "b")
}

func TestObjects(t *testing.T) {
	f := newFixture(t)
	const configs, secrets = "/api/v1/namespaces/default/configmaps", "/api/v1/namespaces/default/secrets"
	f.Put(configs, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: "default"}, Data: map[string]string{"a": "1"}})
	f.Put(secrets, &corev1.Secret{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"}, ObjectMeta: metav1.ObjectMeta{Name: "key", Namespace: "default", UID: "the-uid"}, Data: map[string][]byte{"b": []byte("2")}})
	f.Put(serviceList, &corev1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Namespace: "default"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Ports: []corev1.ServicePort{{Name: "https", Port: 443}}}})
	f.Put(podList, pod("a", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		p.Spec.Volumes = []corev1.Volume{{Name: "key", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "key"}}}}
	}))
	f.expect("a")
	object := func(kind, name string) manifest.Object {
		return f.set.Objects[manifest.ObjectKey(kind, "default", name)]
	}
	f.eventually("all objects", func() bool {
		return string(object(manifest.KindConfigMap, "settings")["a"]) == "1" && string(object(manifest.KindSecret, "key")["b"]) == "2" && string(object(manifest.KindSecretUID, "key")[manifest.UIDKey]) == "the-uid" &&
			string(object(manifest.KindConfigMap, "services.uid-a")["KUBERNETES_SERVICE_HOST"]) == "10.96.0.1"
	})
	f.Put(configs, &corev1.ConfigMap{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"}, ObjectMeta: metav1.ObjectMeta{Name: "settings", Namespace: "default"}, Data: map[string]string{"a": "3"}})
	f.eventually("the change", func() bool { return string(object(manifest.KindConfigMap, "settings")["a"]) == "3" })
	f.Remove(configs, "default", "settings")
	f.eventually("its removal", func() bool { return object(manifest.KindConfigMap, "settings") == nil && len(f.set.Pods) == 1 })
	f.Remove(podList, "default", "a")
	f.expect()
}

// TestTokenRetries checks that a request that races the server's Node authorizer is repeated soon,
// and that a server that keeps refusing is asked rarely.
func TestTokenRetries(t *testing.T) {
	t.Parallel()
	var first, all time.Duration
	for i := range 1000 {
		if all += retryWait(i); i < reportedFailure-1 {
			first += retryWait(i)
		}
	}
	if first > 500*time.Millisecond || all < 4900*time.Second {
		t.Errorf("the first %d retries take %v, 1000 take %v", reportedFailure-1, first, all)
	}
}

// TestTokens checks that a pod waits for its token, that it keeps the volume with the token, and
// that the token is renewed.
func TestTokens(t *testing.T) {
	f := newFixture(t)
	asked := make(chan string, 100)
	var mu sync.Mutex
	refuse, seconds := true, int64(1)
	f.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/serviceaccounts/robot/token") {
			return false
		}
		body, _ := io.ReadAll(r.Body)
		asked <- string(body)
		mu.Lock()
		defer mu.Unlock()
		if refuse {
			clustertest.RespondError(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return true
		}
		return answer(201, "application/json", fmt.Sprintf(`{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{"expirationSeconds":%d},"status":{"token":"t-%d"}}`, seconds, len(asked)))(w, r)
	})
	f.Put(podList, pod("a", func(p *corev1.Pod) {
		p.Spec.ServiceAccountName = "robot"
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "kube-api-access-x", MountPath: "/token"}}
		p.Spec.Volumes = []corev1.Volume{{Name: "kube-api-access-x", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
			{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", Audience: "me", ExpirationSeconds: new(int64(3607))}},
		}}}}}
	}))
	body := <-asked
	for _, want := range []string{`"audiences":["me"]`, `"expirationSeconds":3607`, `"uid":"uid-a"`} {
		if !strings.Contains(body, want) {
			t.Errorf("request: %s", body)
		}
	}
	f.expectLog("no: Forbidden")
	f.mu.Lock()
	if len(f.set.Pods) != 0 {
		t.Error("the pod was delivered without its token")
	}
	f.mu.Unlock()
	mu.Lock()
	refuse = false
	mu.Unlock()
	f.expect("a")
	text := func() string {
		return string(f.set.Objects[manifest.ObjectKey(manifest.KindSecret, "default", "token.uid-a.0")]["token"])
	}
	f.mu.Lock()
	if spec := f.set.Pods[0].Spec; len(spec.Volumes) != 1 || len(spec.Containers[0].VolumeMounts) != 1 {
		t.Errorf("the pod is delivered without its token: %+v", spec)
	}
	f.mu.Unlock()
	f.eventually("a token", func() bool { return strings.HasPrefix(text(), "t-") })
	f.mu.Lock()
	first := text()
	f.mu.Unlock()
	f.eventually("another token", func() bool { return text() != first })
}

func TestRuntimeClass(t *testing.T) {
	f := newFixture(t)
	f.Put(podList, pod("a", func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("fast") }))
	f.expectLog("waits for its runtime class fast")
	f.eventually("the wait is reported", func() bool {
		return strings.HasPrefix(f.refused["a/"], "FailedCreatePodSandBox: the pod waits for its runtime class fast")
	})
	f.Put(classList, &nodev1.RuntimeClass{TypeMeta: metav1.TypeMeta{APIVersion: "node.k8s.io/v1", Kind: "RuntimeClass"}, ObjectMeta: metav1.ObjectMeta{Name: "fast"}, Handler: "crun"})
	f.expect("a")
	f.eventually("nothing is refused", func() bool { return len(f.refused) == 0 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := f.set.Pods[0].Spec.RuntimeClassName; got == nil || *got != "crun" {
		t.Errorf("handler %v", got)
	}
}

func TestRejected(t *testing.T) {
	f := newFixture(t)
	f.node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	f.Put(podList, pod("first", asks("600m")))
	f.expect("first")
	f.Put(podList, pod("greedy", asks("600m")))
	f.eventually("rejected", func() bool { return strings.HasPrefix(f.rejected["greedy"], "OutOfcpu: ") })
	// The decision is final: the server may know it already.
	f.mu.Lock()
	delete(f.rejected, "greedy")
	delete(f.known, "uid-first")
	f.mu.Unlock()
	f.Remove(podList, "default", "first")
	f.expect()
	f.Put(podList, pod("later", asks("1")))
	f.expect("later")
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.rejected) > 0 {
		t.Errorf("rejected again: %v", f.rejected)
	}
	if !slices.Equal(f.gone, []types.UID{"uid-first"}) {
		t.Errorf("gone: %v", f.gone)
	}
}

// TestRefusedDrivers: a pod that needs what docs/cluster.md says huskd doesn't have waits for the
// kubelet's reasons, and the message names the field.
func TestRefusedDrivers(t *testing.T) {
	f := newFixture(t)
	for name, source := range map[string]corev1.VolumeSource{
		"csi": {CSI: &corev1.CSIVolumeSource{Driver: "x.y"}},
		"ephemeral": {Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
			Spec: corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		}}},
	} {
		f.Put(podList, pod(name, func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: source}}
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
		}))
	}
	f.Put(podList, pod("claim", func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "c", ResourceClaimName: new("x")}}
	}))
	f.eventually("refused", func() bool {
		return strings.HasPrefix(f.refused["csi/"], "FailedMount: Unable to attach or mount volumes: spec.volumes[0].csi: ") &&
			strings.HasPrefix(f.refused["ephemeral/"], "FailedMount: Unable to attach or mount volumes: spec.volumes[0].ephemeral") &&
			strings.HasPrefix(f.refused["claim/"], "FailedPrepareDynamicResources: Failed to prepare dynamic resources: spec.resourceClaims: ") && len(f.rejected) == 0
	})
}

// TestMessagesAreForTheCluster: what is wrong with a pod of the server is said in its terms, with
// its paths and for its users, who have no manifest on the node.
func TestMessagesAreForTheCluster(t *testing.T) {
	f := newFixture(t)
	f.Put(podList, pod("driver", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{CSI: &corev1.CSIVolumeSource{Driver: "x.y"}}}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	}))
	f.Put(podList, pod("variables", func(p *corev1.Pod) {
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{}}
	}))
	f.eventually("refused", func() bool { return len(f.refused) == 2 })
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := f.refused["driver/"]; !strings.HasSuffix(got, ": keep the pod away from nodes with the label husk.dev/node") {
		t.Error(got)
	}
	if got := f.refused["variables/"]; !strings.Contains(got, "spec.containers[0].envFrom[0]: ") {
		t.Error(got)
	}
}

// TestDevices: a pod waits for its devices, and fails without them. Others don't wait for it.
func TestDevices(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"slow", "unlucky", "other"} {
		f.Put(podList, pod(name))
	}
	f.expect("other")
	f.eventually("rejected", func() bool {
		return f.rejected["unlucky"] == "UnexpectedAdmissionError: Allocate failed due to no device, which is unexpected" && f.rejected["slow"] == ""
	})
	f.mu.Lock()
	f.allocated = true
	f.mu.Unlock()
	f.Put(podList, pod("next"))
	f.expect("next", "other", "slow")
}

// TestAdmissionComesFirst has pods that can't be converted, but fail for kubelet's reasons.
func TestAdmissionComesFirst(t *testing.T) {
	f := newFixture(t)
	f.node.Status.Allocatable = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("1Gi")}
	f.Put(podList, pod("windows", func(p *corev1.Pod) { p.Spec.OS = &corev1.PodOS{Name: corev1.Windows} }))
	f.Put(podList, pod("huge", asks("1T")))
	f.Put(podList, pod("beyond", func(p *corev1.Pod) {
		q := corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("8E")} // twice that is more than int64 can hold
		p.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: q, Limits: q}
		p.Spec.Containers = append(p.Spec.Containers, *p.Spec.Containers[0].DeepCopy())
		p.Spec.Containers[1].Name = "d"
	}))
	f.Put(podList, pod("classless", asks("2"), func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("missing") }))
	for name, want := range map[string]string{"windows": "PodOSNotSupported", "huge": "OutOfcpu", "beyond": "OutOfmemory", "classless": "OutOfcpu"} {
		f.eventually(name, func() bool { return strings.HasPrefix(f.rejected[name], want+": ") })
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.refused) > 0 {
		t.Errorf("refused: %v", f.refused)
	}
}

// claims is something that this node doesn't support.
func claims(p *corev1.Pod) {
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
}

func deleted(p *corev1.Pod) {
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Now()}, new(int64(5))
}

// TestRefused has a pod that can't run here until its spec changes.
func TestRefused(t *testing.T) {
	f := newFixture(t)
	f.Put(podList, pod("a", claims))
	f.eventually("refused", func() bool {
		return strings.HasPrefix(f.refused["a/"], "FailedMount: Unable to attach or mount volumes: spec.volumes[0].persistentVolumeClaim: ")
	})
	for i := range 5 {
		f.Put(podList, pod("a", claims, func(p *corev1.Pod) { p.Status.Message = fmt.Sprint(i) }))
	}
	f.Put(podList, pod("b"))
	f.expect("b")
	f.mu.Lock()
	if f.refusals != 1 || len(f.rejected) > 0 {
		t.Errorf("refused %d times; rejected: %v", f.refusals, f.rejected)
	}
	f.mu.Unlock()
	f.Put(podList, pod("a"))
	f.expect("a", "b")
	f.eventually("nothing is refused", func() bool { return len(f.refused) == 0 })
}

// TestRefusedChange has running pods that gain something unsupported, before and after a restart of
// huskd. They stay as they were, and can be deleted.
func TestRefusedChange(t *testing.T) {
	f := newFixture(t)
	f.known["uid-before"] = pod("before") // from before the restart
	f.Put(podList, pod("before", claims))
	f.Put(podList, pod("a"))
	f.expect("a", "before")
	f.Put(podList, pod("a", claims))
	f.eventually("both refused", func() bool { return len(f.refused) == 2 })
	f.Put(podList, pod("late"))
	f.expect("a", "before", "late")
	f.Put(podList, pod("a", claims, deleted))
	f.Put(podList, pod("before", claims, deleted))
	f.expect("a within 5s", "before within 5s", "late")
}

// TestDeletionComesFirst has pods whose conversion waits for the server when they are deleted.
func TestDeletionComesFirst(t *testing.T) {
	f := newFixture(t)
	f.known["uid-before"] = pod("before")
	class := func(p *corev1.Pod) { p.Spec.RuntimeClassName = new("missing") }
	f.Put(podList, pod("before", class))
	f.eventually("it waits", func() bool { return len(f.set.Unread) == 1 })
	f.Put(podList, pod("before", class, deleted))
	f.expect("before within 5s")
}

// TestRefusedEphemeralContainer has a running pod that gains ephemeral containers, of which some
// aren't supported.
func TestRefusedEphemeralContainer(t *testing.T) {
	f := newFixture(t)
	ephemeral := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, name := range names {
				c := corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: name, Image: "localhost/x"}}
				if strings.HasPrefix(name, "bad") {
					c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.nonsense"}}}}
				}
				p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, c)
			}
		}
	}
	accepted := func() (names []string) {
		for _, c := range f.set.Pods[0].Spec.EphemeralContainers {
			names = append(names, c.Name)
		}
		return names
	}
	f.Put(podList, pod("a"))
	f.expect("a")
	f.Put(podList, pod("a", ephemeral("one", "bad-1")))
	f.eventually("one is accepted", func() bool { return slices.Equal(accepted(), []string{"one"}) })
	f.eventually("the other is refused", func() bool { return strings.HasPrefix(f.refused["a/bad-1"], "NotSupported: env[0].valueFrom.fieldRef") })
	f.Put(podList, pod("a", ephemeral("one", "bad-1", "two", "bad-2")))
	f.eventually("two are accepted", func() bool { return slices.Equal(accepted(), []string{"one", "two"}) })
	f.eventually("two are refused", func() bool { return len(f.refused) == 2 && f.refused["a/bad-1"] == f.refused["a/bad-2"] })
	f.Put(podList, pod("a", ephemeral("one", "bad-1", "two", "bad-2"), deleted))
	f.expect("a within 5s")
}

// TestCommonFields has fields of pods without an effect on Linux, and a volume of a kind that isn't
// supported, which no container mounts.
func TestCommonFields(t *testing.T) {
	f := newFixture(t)
	f.Put(podList, pod("a", func(p *corev1.Pod) {
		p.Spec.ServiceAccountName, p.Spec.HostnameOverride = "robot", new("other.name")
		p.Spec.SecurityContext = &corev1.PodSecurityContext{
			SELinuxChangePolicy: new(corev1.SELinuxChangePolicyRecursive), WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new("x")},
		}
		p.Spec.Volumes = []corev1.Volume{
			{Name: "unused", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "x"}}},
			{Name: "used"},
		}
		c := &p.Spec.Containers[0]
		c.SecurityContext = &corev1.SecurityContext{WindowsOptions: &corev1.WindowsSecurityContextOptions{RunAsUserName: new("x")}}
		c.VolumeMounts = []corev1.VolumeMount{{Name: "used", MountPath: "/v"}}
		c.Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "spec.serviceAccountName"}}}}
	}))
	f.expect("a")
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.set.Pods[0]; p.Spec.ServiceAccountName != "robot" || len(p.Spec.Volumes) != 1 {
		t.Errorf("the agent gets %+v", p.Spec)
	}
}

// TestEphemeralContainers checks that ephemeral containers are delivered as such, with the defaults
// of containers, and that the number of other containers stays the same.
func TestEphemeralContainers(t *testing.T) {
	t.Parallel()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a-1"}, Spec: corev1.PodSpec{
		NodeName: "here", Containers: []corev1.Container{{Name: "c", Image: "x:1"}},
		EphemeralContainers: []corev1.EphemeralContainer{
			{TargetContainerName: "c", EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Image: "y:1", Stdin: true, TTY: true}},
			{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "y:2"}},
		},
	}}
	b, s := &bound{}, &Source{}
	if err := s.translate(b, pod); err != nil || len(b.refused) > 0 {
		t.Fatal(err, b.refused)
	}
	got := b.pod.Spec
	if len(got.Containers) != 1 || len(got.EphemeralContainers) != 2 {
		t.Fatalf("%+v", got)
	}
	d, e := got.EphemeralContainers[0], got.EphemeralContainers[1]
	if d.Name != "d" || d.TargetContainerName != "c" || !d.TTY || d.ImagePullPolicy != corev1.PullIfNotPresent || len(d.EnvFrom) != 1 || e.Name != "e" || e.TargetContainerName != "" {
		t.Errorf("%+v\n%+v", d, e)
	}
}
