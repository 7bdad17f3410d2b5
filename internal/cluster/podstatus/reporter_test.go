package podstatus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/event"
	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source/apiserver"
	"github.com/huskd/husk/internal/cluster"
	"github.com/huskd/husk/internal/cluster/clustertest"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/oci"
)

func TestMain(m *testing.M) {
	klog.SetSlogLogger(slog.New(slog.DiscardHandler))
	goleak.VerifyTestMain(m)
}

const list = "/api/v1/pods"

// pods is a fake Agent.
type pods struct {
	mu   sync.Mutex
	pods map[string]agent.Pod // by UID
}

func (p *pods) List() (out []agent.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, pod := range p.pods {
		out = append(out, pod)
	}
	return out
}

func (p *pods) Get(uid string) (agent.Pod, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, ok := p.pods[uid]
	if !ok {
		return agent.Pod{}, errdefs.ErrNotFound
	}
	return pod, nil
}

func (p *pods) set(pod agent.Pod) {
	pod.Newer = make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[string(pod.Manifest.UID)] = pod
}

// fixture is a running reporter with its agent and its server.
type fixture struct {
	*clustertest.Server
	*Reporter
	t    *testing.T
	pods *pods
}

func start(t *testing.T) *fixture { return startWith(t, func(*Reporter) {}) }

// startWith starts a reporter that prepare has changed.
func startWith(t *testing.T, prepare func(*Reporter)) *fixture {
	t.Parallel()
	f := &fixture{Server: clustertest.New(t), t: t, pods: &pods{pods: map[string]agent.Pod{}}}
	client, err := cluster.New(f.Kubeconfig, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	made := make(chan struct{}) // the list may arrive before the reporter is made
	here := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here", UID: "node-uid"}}
	f.Reporter = New(Config{
		Client: client, Agent: f.pods, Node: func() *corev1.Node { return here }, Events: event.NewLog(), NodeEvents: event.NewLog(),
		CRI: func() criconfig.Node { return criconfig.Node{Name: "here", IPs: []string{"198.51.100.1"}} },
		Pods: cluster.Watch[*corev1.Pod](ctx, client, cluster.List{Path: list, Item: &corev1.Pod{}, List: &corev1.PodList{}}, func() {
			<-made
			f.Nudge()
		}),
	})
	prepare(f.Reporter)
	close(made)
	done := make(chan error)
	go func() { done <- f.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		client.Close()
	})
	return f
}

// sent waits for a request and returns its decoded body.
func (f *fixture) sent(method, path string, matches func(map[string]any) bool) (body map[string]any) {
	f.t.Helper()
	clustertest.Eventually(f.t, func() string {
		for _, r := range f.Requests() {
			var b map[string]any
			if r.Method != method || r.Path != path || json.Unmarshal(r.Body, &b) != nil {
				continue
			}
			if matches == nil || matches(b) {
				body = b
				return ""
			}
		}
		return fmt.Sprintf("no %s %s among %s", method, path, f.Requests())
	})
	return body
}

// within waits until check returns no error text.
func (f *fixture) within(limit time.Duration, check func() string) {
	f.t.Helper()
	deadline := time.Now().Add(limit)
	clustertest.Eventually(f.t, func() string {
		text := check()
		if text != "" && time.Now().After(deadline) {
			f.t.Fatal(text)
		}
		return text
	})
}

func (f *fixture) never(method, path string) {
	f.t.Helper()
	for _, r := range f.Requests() {
		if r.Method == method && r.Path == path {
			f.t.Errorf("%s %s %s", method, path, r.Body)
		}
	}
}

func parse(t testing.TB, text string) *corev1.Pod {
	t.Helper()
	parsed, err := manifest.Parse([]byte(text), manifest.Origin{File: "x", Node: "here", Source: "x"})
	if err != nil {
		t.Fatal(err)
	}
	return &parsed.Pods[0]
}

const web = `{apiVersion: v1, kind: Pod, metadata: {name: web, uid: uid-web}, spec: {restartPolicy: Always, containers: [{name: c, image: localhost/x}]}}`

// onServer returns p as the server has it.
func onServer(p *corev1.Pod) *corev1.Pod {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	p.Generation = 3
	return p
}

func phase(want string) func(map[string]any) bool {
	return func(b map[string]any) bool {
		s, _ := b["status"].(map[string]any)
		return s["phase"] == want
	}
}

func TestReportsAndDeletes(t *testing.T) {
	f := start(t)
	pod := parse(t, web)
	status := podplan.Status{Phase: podplan.PhaseRunning, Ready: true, Initialized: true, SandboxReady: true, IPs: []string{"10.0.0.2"}, Containers: []podplan.ContainerStatus{
		{Name: "c", State: podplan.Running, Up: true, Ready: true, Started: time.Now()},
	}}
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run, Status: status})
	f.Put(list, onServer(pod))
	const at = "/api/v1/namespaces/default/pods/web"
	body := f.sent(http.MethodPatch, at+"/status", phase("Running"))
	if uid := body["metadata"].(map[string]any)["uid"]; uid != "uid-web" {
		t.Errorf("the status is for UID %v", uid)
	}
	// A deletion request doesn't delete the pod on the server while it runs.
	gone := onServer(pod)
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	f.Put(list, gone)
	status.Ready = false
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Stop, Status: status})
	f.Nudge()
	f.sent(http.MethodPatch, at+"/status", func(b map[string]any) bool { return strings.Contains(fmt.Sprint(b), "ContainersNotReady") })
	f.never(http.MethodDelete, at)
	status.Phase, status.SandboxReady = podplan.PhaseStopped, false
	status.Containers = []podplan.ContainerStatus{{Name: "c", State: podplan.Terminated, Reason: "Completed", Started: time.Now(), Finished: time.Now()}}
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Stop, Finished: true, Status: status})
	f.Nudge()
	f.sent(http.MethodPatch, at+"/status", phase("Succeeded"))
	body = f.sent(http.MethodDelete, at, nil)
	if fmt.Sprint(body["gracePeriodSeconds"]) != "0" || fmt.Sprint(body["preconditions"]) != "map[uid:uid-web]" {
		t.Errorf("the delete options are %v", body)
	}
}

// TestDeletedBeforeItRan: a pod that never ran here is deleted at once.
func TestDeletedBeforeItRan(t *testing.T) {
	f := start(t)
	gone := onServer(parse(t, web))
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	f.Put(list, gone)
	f.sent(http.MethodDelete, "/api/v1/namespaces/default/pods/web", nil)
}

func TestPodOfAnotherNode(t *testing.T) {
	f := start(t)
	theirs, mine := onServer(parse(t, web)), onServer(parse(t, strings.ReplaceAll(web, "web", "mine")))
	theirs.Spec.NodeName = "there"
	for _, p := range []*corev1.Pod{theirs, mine} {
		p.DeletionTimestamp = &metav1.Time{Time: time.Now()}
		f.Put(list, p)
	}
	f.sent(http.MethodDelete, "/api/v1/namespaces/default/pods/mine", nil)
	f.never(http.MethodDelete, "/api/v1/namespaces/default/pods/web")
}

// listed puts a pod on the server and waits until the reporter knows it.
func (f *fixture) listed(pod *corev1.Pod) {
	f.t.Helper()
	f.Put(list, pod)
	clustertest.Eventually(f.t, func() string {
		if len(f.Pods.All()) == 0 {
			return "the pod is not in the list"
		}
		return ""
	})
}

const eventList = "/api/v1/namespaces/default/events"

func eventOf(reason string) func(map[string]any) bool {
	return func(b map[string]any) bool { return b["reason"] == reason }
}

func TestRejected(t *testing.T) {
	f := start(t)
	pod := onServer(parse(t, web))
	f.listed(pod)
	f.Reject(pod, admission.Refusal{Reason: "OutOfcpu", Message: "there is none"})
	body := f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", phase("Failed"))
	if s := body["status"].(map[string]any); s["reason"] != "OutOfcpu" || s["message"] != "there is none" {
		t.Errorf("the status is %v", s)
	}
	if e := f.sent(http.MethodPost, eventList, eventOf("OutOfcpu")); e["type"] != "Warning" || e["message"] != "there is none" {
		t.Errorf("the event is %v", e)
	}
}

// TestRefused has a pod that waits until its spec changes, and is deleted before that.
func TestRefused(t *testing.T) {
	f := start(t)
	pod := onServer(parse(t, web))
	f.listed(pod)
	why := map[string]admission.Refusal{apiserver.WholePod: {Reason: "NotSupported", Message: "volumes[0]: no"}}
	f.Refuse(pod, why)
	const at = "/api/v1/namespaces/default/pods/web"
	body := f.sent(http.MethodPatch, at+"/status", phase("Pending"))
	s := body["status"].(map[string]any)
	if s["reason"] != "NotSupported" || !strings.Contains(fmt.Sprint(s["containerStatuses"]), "waiting:map[message:volumes[0]: no reason:NotSupported]") {
		t.Errorf("the status is %v", s)
	}
	for _, c := range s["conditions"].([]any) {
		if c := c.(map[string]any); c["status"] != "False" || c["reason"] != "NotSupported" {
			t.Errorf("condition %v", c)
		}
	}
	if e := f.sent(http.MethodPost, eventList, eventOf("NotSupported")); e["type"] != "Warning" || e["message"] != "volumes[0]: no" {
		t.Errorf("the event is %v", e)
	}
	f.Refuse(pod, why) // it says nothing new
	if events, _, _ := f.Events.After(0); len(events) != 1 || events[0].Count != 1 {
		t.Errorf("the events are %v", events)
	}
	gone := pod.DeepCopy()
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	f.Put(list, gone)
	f.sent(http.MethodDelete, at, nil)
}

// TestWaitsAsWithKubelet: a pod whose volumes this node can't mount has the status that it has on a
// kubelet's node, also once its object is read again. An event says again and again why it waits.
func TestWaitsAsWithKubelet(t *testing.T) {
	f := startWith(t, func(r *Reporter) { r.resync = 10 * time.Millisecond })
	pod := onServer(parse(t, web))
	f.listed(pod)
	f.Refuse(pod, map[string]admission.Refusal{apiserver.WholePod: {Reason: "FailedMount", Message: "Unable to attach or mount volumes: no driver"}})
	body := f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", phase("Pending"))
	s := body["status"].(map[string]any)
	if s["reason"] != nil || !strings.Contains(fmt.Sprint(s["containerStatuses"]), "waiting:map[message:Unable to attach or mount volumes: no driver reason:ContainerCreating]") {
		t.Errorf("the status is %v", s)
	}
	for _, c := range s["conditions"].([]any) {
		c := c.(map[string]any)
		want := map[string]string{"Initialized": "True ", "PodScheduled": "True ", "PodReadyToStartContainers": "False ", "Ready": "False ContainersNotReady", "ContainersReady": "False ContainersNotReady"}[c["type"].(string)]
		reason, _ := c["reason"].(string)
		if got := fmt.Sprint(c["status"], " ", reason); got != want {
			t.Errorf("condition %v, want %s", c, want)
		}
	}
	if e := f.sent(http.MethodPost, eventList, eventOf("FailedMount")); e["type"] != "Warning" {
		t.Errorf("the event is %v", e)
	}
	f.mu.Lock()
	f.refused[pod.UID].said = time.Now().Add(-remindTime)
	f.mu.Unlock()
	clustertest.Eventually(t, func() string {
		for _, r := range f.Requests() {
			if r.Method == http.MethodPatch && strings.HasPrefix(r.Path, eventList) && strings.Contains(string(r.Body), `"count":2`) {
				return ""
			}
		}
		return "no event counts up"
	})
}

// TestWritesOfAPod: the life of a pod writes the kubelet's four events to the server, each change
// of its status, and its deletion, although huskd tells its own users more.
func TestWritesOfAPod(t *testing.T) {
	f := start(t)
	pod := parse(t, web)
	container := podplan.ContainerStatus{Name: "c", Image: "localhost/x", State: podplan.Waiting, Reason: podplan.ReasonCreating}
	now := podplan.Status{Phase: podplan.PhasePending, Containers: []podplan.ContainerStatus{container}}
	set := func(want podplan.Want, finished bool, next podplan.Status) {
		for _, e := range event.Diff("default/web", "uid-web", now, next) {
			f.Events.Add(e)
		}
		now = next
		f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: want, Finished: finished, Status: next})
		f.Nudge()
	}
	own := func(reason, message string) {
		f.Events.Add(event.Event{Pod: "default/web", UID: "uid-web", Container: "c", Reason: reason, Message: message})
	}
	const at = "/api/v1/namespaces/default/pods/web"
	set(podplan.Run, false, now)
	f.listed(onServer(pod))
	f.sent(http.MethodPatch, at+"/status", phase("Pending"))
	own("Pulled", `Container image "localhost/x" already present on machine`)
	own("Created", "Container created")
	container.ID, container.State, container.Reason, container.Up, container.Started = "1", podplan.Running, "", true, time.Now()
	running := podplan.Status{Phase: podplan.PhaseRunning, Initialized: true, SandboxReady: true, IPs: []string{"10.0.0.2"}, Containers: []podplan.ContainerStatus{container}}
	set(podplan.Run, false, running)
	running.Containers = slices.Clone(running.Containers)
	running.Ready, running.Containers[0].Ready = true, true
	set(podplan.Run, false, running)
	f.sent(http.MethodPatch, at+"/status", func(b map[string]any) bool { return strings.Contains(fmt.Sprint(b), "ready:true") })
	gone := onServer(pod)
	gone.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	f.Put(list, gone)
	own("Killing", "Stopping container c")
	ended := podplan.Status{Phase: podplan.PhaseStopped, Initialized: true, IPs: running.IPs, Containers: slices.Clone(running.Containers)}
	ended.Containers[0].State, ended.Containers[0].Ready, ended.Containers[0].Reason, ended.Containers[0].ExitCode, ended.Containers[0].Finished = podplan.Terminated, false, "Error", 143, time.Now()
	set(podplan.Stop, true, ended)
	f.sent(http.MethodDelete, at, nil)
	own("Last", "") // by which all before it have been sent
	f.sent(http.MethodPost, eventList, eventOf("Last"))
	var reasons []string
	for _, r := range f.Requests() {
		var b map[string]any
		if r.Path == eventList && json.Unmarshal(r.Body, &b) == nil {
			reasons = append(reasons, b["reason"].(string))
		}
	}
	if want := []string{"Pulled", "Created", "Started", "Killing", "Last"}; !slices.Equal(reasons, want) {
		t.Errorf("the events on the server are %v, want %v", reasons, want)
	}
	if all, _, _ := f.Events.After(0); len(all) < len(reasons)+3 {
		t.Errorf("huskd's own events are only %v", all)
	}
}

// TestRefusedEphemeralContainer has a running pod with an ephemeral container that isn't run.
func TestRefusedEphemeralContainer(t *testing.T) {
	f := start(t)
	pod := parse(t, web)
	status := podplan.Status{Phase: podplan.PhaseRunning, Ready: true, Initialized: true, SandboxReady: true, Containers: []podplan.ContainerStatus{
		{Name: "c", State: podplan.Running, Up: true, Ready: true, Started: time.Now()},
	}}
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run, Status: status})
	raw := onServer(pod)
	raw.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Image: "localhost/d"}}}
	f.listed(raw)
	f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", phase("Running"))
	f.Refuse(raw, map[string]admission.Refusal{"d": {Reason: "NotSupported", Message: "env[0]: no"}})
	body := f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", func(b map[string]any) bool { return strings.Contains(fmt.Sprint(b), "env[0]: no") })
	s := body["status"].(map[string]any)
	if text := fmt.Sprint(s["ephemeralContainerStatuses"]); s["phase"] != nil || !strings.Contains(text, "waiting:map[message:env[0]: no reason:NotSupported]") || !strings.Contains(text, "name:d") {
		t.Errorf("the status is %v", s)
	}
	e := f.sent(http.MethodPost, eventList, eventOf("NotSupported"))
	if about := e["involvedObject"].(map[string]any); about["fieldPath"] != "spec.containers{d}" {
		t.Errorf("the event is %v", e)
	}
}

func TestMirrors(t *testing.T) {
	f := start(t)
	pod := parse(t, `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {volumes: [{name: s, secret: {secretName: x}}, {name: h, hostPath: {path: /}}],
		containers: [{name: c, image: localhost/x, envFrom: [{secretRef: {name: x}}], env: [{name: A, value: a}, {name: B, valueFrom: {secretKeyRef: {name: x, key: k}}}],
		volumeMounts: [{name: s, mountPath: /s}, {name: h, mountPath: /h}]}]}}`)
	old := onServer(parse(t, strings.ReplaceAll(web, "web", "old-here")))
	old.Annotations = map[string]string{cluster.MirrorAnnotation: "x"}
	f.Put(list, old)
	f.pods.set(agent.Pod{Manifest: pod, Source: "file:/x.yaml", Want: podplan.Run})
	f.Nudge()
	body := f.sent(http.MethodPost, "/api/v1/namespaces/default/pods", nil)
	f.sent(http.MethodDelete, "/api/v1/namespaces/default/pods/old-here", nil)
	text, _ := json.Marshal(body)
	var mirror corev1.Pod
	if err := json.Unmarshal(text, &mirror); err != nil {
		t.Fatal(err)
	}
	if mirror.Name != "web-here" || mirror.Annotations[cluster.MirrorAnnotation] == "" || mirror.OwnerReferences[0].UID != "node-uid" || mirror.Spec.NodeName != "here" {
		t.Errorf("the mirror is %s", text)
	}
	if strings.Contains(string(text), "ecret") || len(mirror.Spec.Volumes) != 1 || len(mirror.Spec.Containers[0].VolumeMounts) != 1 || len(mirror.Spec.Containers[0].Env) != 1 {
		t.Errorf("the mirror refers to objects: %s", text)
	}
}

func TestEvents(t *testing.T) {
	f := start(t)
	source := func(body map[string]any) any { return body["source"].(map[string]any)["component"] }
	pod := parse(t, web)
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run})
	f.Intercept(func(w http.ResponseWriter, r *http.Request) bool { // the event doesn't exist yet
		if r.Method == http.MethodPatch {
			clustertest.RespondError(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		}
		return r.Method == http.MethodPatch
	})
	for range 2 {
		f.Events.Add(event.Event{Pod: "default/web", UID: "uid-web", Container: "c", Warning: true, Reason: "Unhealthy", Message: "no answer"})
		f.Events.Add(event.Event{Pod: "default/web", UID: "uid-former", Reason: "Started", Message: "of a former pod"})
	}
	f.Events.Add(event.Event{Pod: "default/web", UID: "uid-web", Container: "c", Reason: "Ended", Message: "the status says it"})
	f.Events.Add(event.Event{Pod: "default/web", UID: "uid-web", Warning: true, Reason: "NotRun", Message: "the kubelet has no such event"})
	f.NodeEvents.Add(event.Event{Reason: "NodeReady", Message: "is ready"})
	body := f.sent(http.MethodPost, "/api/v1/namespaces/default/events", func(b map[string]any) bool { return b["reason"] == "Unhealthy" })
	if about := body["involvedObject"].(map[string]any); about["uid"] != "uid-web" || about["fieldPath"] != "spec.containers{c}" || body["type"] != "Warning" || source(body) != "kubelet" || body["reportingComponent"] != "kubelet" {
		t.Errorf("the event is %v", body)
	}
	if body := f.sent(http.MethodPost, "/api/v1/namespaces/default/events", eventOf("NotRun")); source(body) != "huskd" {
		t.Errorf("the event is %v", body)
	}
	body = f.sent(http.MethodPost, "/api/v1/namespaces/default/events", eventOf("NodeReady"))
	if about := body["involvedObject"].(map[string]any); about["kind"] != "Node" || about["name"] != "here" || about["uid"] != "here" || source(body) != "kubelet" {
		t.Errorf("the event is %v", body)
	}
	for _, r := range f.Requests() {
		if strings.Contains(string(r.Body), "of a former pod") || strings.Contains(string(r.Body), "the status says it") {
			t.Errorf("an event was reported: %s", r.Body)
		}
	}
}

// TestKindLimits: a probe that fails each second is reported at first, and then now and then.
func TestKindLimits(t *testing.T) {
	t.Parallel()
	kinds, began, reported := eventKinds{}, time.Unix(0, 0), 0
	allow := func(e event.Event) bool {
		_, ok := kinds.next(e)
		return ok
	}
	for i := range 3600 {
		at := began.Add(time.Duration(i) * time.Second)
		if allow(event.Event{UID: "a", Container: "c", Reason: "Unhealthy", Message: fmt.Sprint(i), Last: at}) {
			reported++
		}
		if i%600 == 0 && !allow(event.Event{UID: "a", Container: "c", Reason: "Started", Last: at}) {
			t.Errorf("after %d s the event of another reason wasn't reported", i)
		}
	}
	if reported != kindBurst+11 {
		t.Errorf("%d events were reported in an hour, want %d", reported, kindBurst+11)
	}
	later := began.Add(4 * time.Hour)
	for i := range event.Max {
		allow(event.Event{UID: fmt.Sprint(i), Last: later})
	}
	if kinds[eventKind{"a", "c", "Unhealthy"}] != nil {
		t.Error("the limits of former events are kept")
	}
}

// TestSimilarEvents: of events that differ only in their message, nine are reported by themselves,
// and the others as one that counts up, until there were none for ten minutes. An event that was
// reported by itself counts up by itself.
func TestSimilarEvents(t *testing.T) {
	t.Parallel()
	kinds, at := eventKinds{}, time.Unix(0, 0)
	var ids []string
	next := func(message string, after time.Duration) string {
		at = at.Add(after)
		r, _ := kinds.next(event.Event{UID: "a", Container: "c", Reason: "Failed", Message: message, First: at, Last: at, Count: 1})
		if !slices.Contains(ids, r.id) {
			ids = append(ids, r.id)
		}
		return fmt.Sprintf("%d %s", r.Count, r.Message)
	}
	for i := range 9 {
		if got, want := next(fmt.Sprint(i), time.Second), fmt.Sprintf("1 %d", i); got != want {
			t.Errorf("event %d: %s", i, got)
		}
	}
	for i := 1; i <= 5; i++ {
		if got, want := next(fmt.Sprint("more ", i), 9*time.Minute), fmt.Sprintf("%d (combined from similar events): more %d", i, i); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if got := next("3", time.Second); got != "1 3" || len(ids) != 10 {
		t.Errorf("%s; %d events on the server, want 10: %q", got, len(ids), ids)
	}
	if got := next("again", 11*time.Minute); got != "1 again" || len(ids) != 11 {
		t.Errorf("after a while: %s; %d events on the server", got, len(ids))
	}
}

// TestRetries: a report that the server has refused is retried.
func TestRetries(t *testing.T) {
	f := start(t)
	pod := parse(t, web)
	f.Intercept(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Method == http.MethodPatch {
			clustertest.RespondError(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		}
		return r.Method == http.MethodPatch
	})
	f.pods.set(agent.Pod{Manifest: pod, Source: "api:x", Want: podplan.Run, Status: podplan.Status{Phase: podplan.PhasePending}})
	f.Put(list, onServer(pod))
	clustertest.Eventually(t, func() string {
		if f.RequestCount() < 3 {
			return "the reporter sends no requests"
		}
		return ""
	})
	f.Intercept(nil)
	f.sent(http.MethodPatch, "/api/v1/namespaces/default/pods/web/status", phase("Pending"))
}

func run(name string, attempt uint32, ended bool) container.Status {
	st := container.Status{
		ID: fmt.Sprint(name, attempt), ImageID: "sha256:x", Started: time.Unix(int64(attempt)*10, 0),
		Config: &runtimeapi.ContainerConfig{Metadata: &runtimeapi.ContainerMetadata{Name: name, Attempt: attempt}},
	}
	if ended {
		st.Exit, st.Reason = oci.Exit{Code: 3, At: time.Unix(int64(attempt)*10+5, 0)}, "Error"
	}
	return st
}

func condition(s corev1.PodStatus, of corev1.PodConditionType) corev1.PodCondition {
	for _, c := range s.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.PodCondition{}
}

func TestStatus(t *testing.T) {
	t.Parallel()
	pod := parse(t, web)
	node := criconfig.Node{IPs: []string{"198.51.100.1", "2001:db8::1"}}
	now := time.Unix(1000, 0)
	crashing := agent.Pod{Manifest: pod, Want: podplan.Run, Created: time.Unix(1, 0), Containers: []container.Status{run("c", 1, true), run("c", 0, true)},
		Status: podplan.Status{Phase: podplan.PhaseRunning, Reason: "CrashLoopBackOff", Initialized: true, SandboxReady: true, IPs: []string{"10.0.0.2", "fd00::2"}, Containers: []podplan.ContainerStatus{
			{Name: "c", Image: "localhost/x", State: podplan.Waiting, Reason: "CrashLoopBackOff", Message: "back-off 10s", Restarts: 1, ExitCode: 3},
		}}}
	crashing.Containers[0].ImageID, crashing.ImageRefs = "sha256:id", map[string]string{"sha256:id": "localhost/x@sha256:digest"}
	crashing.Containers[0].User = &specs.User{UID: 1, GID: 2, AdditionalGids: []uint32{2, 3}}
	scheduled := onServer(pod)
	scheduled.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, ObservedGeneration: 1, LastTransitionTime: metav1.Unix(7, 0)}}
	s := statusOf(scheduled, crashing, node, now)
	c := s.ContainerStatuses[0]
	switch {
	case s.Phase != corev1.PodRunning || s.Reason != "" || s.ObservedGeneration != 3 || s.QOSClass != corev1.PodQOSBestEffort:
		t.Errorf("the status is %+v", s)
	case s.PodIP != "10.0.0.2" || len(s.PodIPs) != 2 || s.HostIP != "198.51.100.1" || len(s.HostIPs) != 2 || s.StartTime.Unix() != 1:
		t.Errorf("the addresses are %+v", s)
	case c.State.Waiting == nil || c.State.Waiting.Reason != "CrashLoopBackOff" || c.RestartCount != 1 || c.ContainerID != "husk://c1" || *c.Started:
		t.Errorf("the container is %+v", c)
	case c.ImageID != "localhost/x@sha256:digest" || c.User == nil || c.User.Linux.UID != 1 || c.User.Linux.GID != 2 || !slices.Equal(c.User.Linux.SupplementalGroups, []int64{2, 3}):
		t.Errorf("the image is %q, the user %+v", c.ImageID, c.User)
	case condition(s, corev1.PodScheduled).LastTransitionTime.Unix() != 7 || slices.ContainsFunc(s.Conditions, func(c corev1.PodCondition) bool { return c.ObservedGeneration != 3 }):
		t.Errorf("the conditions are %+v", s.Conditions)
	case c.LastTerminationState.Terminated == nil || c.LastTerminationState.Terminated.ExitCode != 3 || c.LastTerminationState.Terminated.ContainerID != "husk://c1":
		t.Errorf("its last state is %+v", c.LastTerminationState)
	case condition(s, corev1.PodReady).Message != "containers with unready status: [c]" || condition(s, corev1.PodInitialized).Status != corev1.ConditionTrue:
		t.Errorf("the conditions are %+v", s.Conditions)
	}
	// Unchanged conditions keep their time, what others wrote is kept, and a pod that has ended keeps
	// its address.
	before := onServer(pod)
	before.Status = s
	before.Status.Conditions = append(before.Status.Conditions, corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionFalse})
	before.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}
	running := crashing
	running.Status.IPs, running.Status.Ready = nil, true
	running.Status.Containers = []podplan.ContainerStatus{{Name: "c", State: podplan.Running, Up: true, Ready: true, Started: now}}
	running.Containers = []container.Status{run("c", 2, false), run("c", 1, true)}
	s = statusOf(before, running, node, now.Add(time.Hour))
	switch {
	case condition(s, corev1.PodInitialized).LastTransitionTime.Unix() != now.Unix() || condition(s, corev1.ContainersReady).LastTransitionTime.Unix() != now.Add(time.Hour).Unix():
		t.Errorf("the conditions are %+v", s.Conditions)
	case condition(s, corev1.ContainersReady).Status != corev1.ConditionTrue || condition(s, corev1.PodReady).Reason != "ReadinessGatesNotReady":
		t.Errorf("the readiness gate is ignored: %+v", s.Conditions)
	case condition(s, "example.com/gate").Type == "" || s.PodIP != "10.0.0.2":
		t.Errorf("a condition or the address was dropped: %+v", s)
	case s.ContainerStatuses[0].LastTerminationState.Terminated == nil:
		t.Error("the previous run is missing")
	}
	// A pod that serves stays ready while it is being deleted, but not while the node stops it.
	leaving := running
	leaving.Want, leaving.Status.Serving, leaving.Status.Ready = podplan.Stop, true, false
	if s := statusOf(onServer(pod), leaving, node, now); condition(s, corev1.PodReady).Status != corev1.ConditionFalse {
		t.Errorf("the pod of a node that shuts down is ready: %+v", s.Conditions)
	}
	deleted := onServer(pod)
	deleted.DeletionTimestamp = &metav1.Time{Time: now}
	if s := statusOf(deleted, leaving, node, now); condition(s, corev1.PodReady).Status != corev1.ConditionTrue || condition(s, corev1.ContainersReady).Status != corev1.ConditionTrue {
		t.Errorf("a pod that is being deleted isn't ready: %+v", s.Conditions)
	}
}

// TestResizeConditions: a pending, a running and a failing resize set conditions, which go once the
// resize is done.
func TestResizeConditions(t *testing.T) {
	t.Parallel()
	pod := onServer(parse(t, web))
	for _, c := range []struct {
		resize  agent.Resize
		pending corev1.PodCondition
		applies corev1.PodCondition
	}{
		{resize: agent.Resize{Held: "Deferred", Message: "no room"}, pending: corev1.PodCondition{Status: "True", Reason: "Deferred", Message: "no room"}},
		{resize: agent.Resize{Held: "Infeasible", Message: "never", Applying: true}, pending: corev1.PodCondition{Status: "True", Reason: "Infeasible", Message: "never"}, applies: corev1.PodCondition{Status: "True"}},
		{resize: agent.Resize{Applying: true, Problem: "busy"}, applies: corev1.PodCondition{Status: "True", Reason: "Error", Message: "busy"}},
		{},
	} {
		pod.Status = statusOf(pod, agent.Pod{Manifest: pod, Resize: c.resize, Status: podplan.Status{Phase: podplan.PhaseRunning}}, criconfig.Node{}, time.Unix(1, 0))
		for of, want := range map[corev1.PodConditionType]corev1.PodCondition{corev1.PodResizePending: c.pending, corev1.PodResizeInProgress: c.applies} {
			got := condition(pod.Status, of)
			if got.Status != want.Status || got.Reason != want.Reason || got.Message != want.Message {
				t.Errorf("%+v: %s is %+v, want %+v", c.resize, of, got, want)
			}
		}
	}
}

func TestPhase(t *testing.T) {
	t.Parallel()
	ended := func(code int) []podplan.ContainerStatus {
		return []podplan.ContainerStatus{{Name: "c", State: podplan.Terminated, ExitCode: code}}
	}
	for _, c := range []struct {
		phase      podplan.Phase
		policy     corev1.RestartPolicy
		containers []podplan.ContainerStatus
		deleted    bool
		want       corev1.PodPhase
	}{
		{podplan.PhaseRunning, corev1.RestartPolicyAlways, nil, false, corev1.PodRunning},
		{podplan.PhaseSucceeded, corev1.RestartPolicyNever, ended(0), true, corev1.PodSucceeded},
		{podplan.PhaseStopped, corev1.RestartPolicyAlways, ended(0), true, corev1.PodSucceeded},
		{podplan.PhaseStopped, corev1.RestartPolicyAlways, ended(137), true, corev1.PodFailed},
		{podplan.PhaseStopped, corev1.RestartPolicyAlways, []podplan.ContainerStatus{{Name: "c", State: podplan.Waiting}}, true, corev1.PodFailed},
		{podplan.PhaseStopped, corev1.RestartPolicyAlways, ended(137), false, corev1.PodRunning}, // husk start runs it again
		{podplan.PhaseStopped, corev1.RestartPolicyNever, ended(137), false, corev1.PodFailed},
	} {
		p := agent.Pod{Manifest: &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy}}, Status: podplan.Status{Phase: c.phase, Containers: c.containers}}
		if got := phaseOf(p, c.deleted); got != c.want {
			t.Errorf("%+v: got %s", c, got)
		}
	}
}
