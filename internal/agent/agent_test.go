package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image"
	"github.com/huskd/husk/internal/journal"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long anything here may take on a busy machine.
const patience = 30 * time.Second

// harness runs an agent with real owners. Its pods use the host's namespaces and images that don't
// exist, so that neither a network nor a runtime is ever called.
type harness struct {
	*Agent
	t       testing.TB
	dir     string
	journal *journal.Journal
	images  *image.Store
	closed  bool
}

func newHarness(t testing.TB) *harness {
	t.Helper()
	hosttest.Root(t)
	h := &harness{t: t, dir: t.TempDir()}
	h.start()
	t.Cleanup(h.close)
	return h
}

// handlers allows every runtime handler.
type handlers struct{}

func (handlers) Check(string, bool) error        { return nil }
func (handlers) RuntimeSandbox(string) bool      { return false }
func (handlers) Order(string) sandboxstate.Order { return "" }

// cgroups creates none.
type cgroups struct{}

func (cgroups) Parent(named string) (string, error)                      { return named, nil }
func (cgroups) Create(string, *runtimeapi.LinuxContainerResources) error { return nil }
func (cgroups) Remove(string) error                                      { return nil }

func (h *harness) start() {
	h.t.Helper()
	var err error
	var damage []journal.Damage
	if h.journal, damage, err = journal.Open(filepath.Join(h.dir, "journal")); err != nil || len(damage) > 0 {
		h.t.Fatal(err, damage)
	}
	log := slog.New(slog.DiscardHandler)
	if h.images, err = image.Open(h.t.Context(), image.Config{Root: filepath.Join(h.dir, "images"), Log: log}); err != nil {
		h.t.Fatal(err)
	}
	facts := host.Facts{BootID: "this"}
	state := filepath.Join(h.dir, "state")
	containers := container.New(container.Config{Root: h.dir, State: state, Journal: h.journal, Host: facts, Log: log})
	sandboxes := sandbox.New(sandbox.Config{
		Instance: pod.InstanceOf(h.dir), State: state, Journal: h.journal, Containers: containers, Host: facts, Log: log,
		Handlers: handlers{}, Cgroups: cgroups{},
		Changed: func(st sandbox.Status) { h.SandboxChanged(st) },
	})
	h.Agent = New(Config{
		Journal: h.journal, Sandboxes: sandboxes, Containers: containers, Images: h.images,
		Volumes: volume.Volumes{Root: h.dir, State: state},
		Node: func() criconfig.Node {
			return criconfig.Node{Name: "n", CPUs: 2, Memory: 1 << 30, Logs: filepath.Join(h.dir, "logs")}
		},
		Log: log,
	})
	bad := append(sandboxes.Load(), containers.Load()...)
	if err := sandboxes.Resume(); err != nil {
		bad = append(bad, err)
	}
	if bad = append(bad, h.Load()...); len(bad) > 0 {
		h.t.Fatal(bad)
	}
	h.closed = false
}

func (h *harness) close() {
	if h.closed {
		return
	}
	h.closed = true
	h.Close()
	h.cfg.Sandboxes.Close()
	h.cfg.Containers.Close()
	if err := h.images.Close(); err != nil {
		h.t.Error(err)
	}
	if err := h.journal.Close(); err != nil {
		h.t.Error(err)
	}
}

// restart closes the agent and its owners and opens them again.
func (h *harness) restart() {
	h.t.Helper()
	h.close()
	h.start()
}

func (h *harness) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	h.t.Cleanup(cancel)
	return ctx
}

// parse returns a pod of that name whose image doesn't exist. metadata is more of its metadata, as
// YAML.
func parse(t testing.TB, name, metadata string) *corev1.Pod {
	t.Helper()
	text := fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s%s}\nspec: {hostNetwork: true, hostIPC: true, containers: [{name: c, image: 'reg.test/none:1', imagePullPolicy: Never}]}\n", name, metadata)
	pods, err := manifest.Parse([]byte(text), manifest.Origin{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return &pods.Pods[0]
}

func (h *harness) apply(p *corev1.Pod) {
	h.t.Helper()
	if _, _, err := h.Apply(h.ctx(), p, nil, "run"); err != nil {
		h.t.Fatal(err)
	}
}

// waitFor waits until ok returns true for the pod.
func (h *harness) waitFor(uid, what string, ok func(Pod) bool) Pod {
	h.t.Helper()
	for ctx := h.ctx(); ; {
		p, err := h.Get(uid)
		if err != nil {
			h.t.Fatalf("waiting for pod %s to be %s: %v", uid, what, err)
		}
		if ok(p) {
			return p
		}
		select {
		case <-p.Newer:
		case <-ctx.Done():
			h.t.Fatalf("pod %s is not %s: %+v", uid, what, p.Status)
		}
	}
}

// imageMissing reports whether a pod has a sandbox, and lacks only its image.
func imageMissing(p Pod) bool {
	st, _ := p.Sandbox()
	return st.State == "ready" && p.Status.Reason == "ErrImageNeverPull"
}

func (h *harness) names() string {
	var names []string
	for _, p := range h.List() {
		names = append(names, p.Manifest.Name)
	}
	return strings.Join(names, " ")
}

func TestApply(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	first, unchanged, err := h.Apply(h.ctx(), web, nil, "run")
	if err != nil || unchanged || first.Status.Phase != podplan.PhasePending || first.Source != "run" {
		t.Fatal(first.Status, unchanged, err)
	}
	uid := string(web.UID)
	h.waitFor(uid, "waiting for its image", imageMissing)
	if _, unchanged, err := h.Apply(h.ctx(), parse(t, "web", ""), nil, "run"); err != nil || !unchanged {
		t.Errorf("applied again: unchanged %t, %v", unchanged, err)
	}
	_, _, err = h.Apply(h.ctx(), parse(t, "web", ", labels: {a: b}"), nil, "run")
	if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "husk rm -f default/web") {
		t.Errorf("applied with another manifest: %v", err)
	}
	if err := h.Remove(h.ctx(), uid); err != nil {
		t.Fatal(err)
	}
	if _, err := h.Get(uid); !errdefs.IsNotFound(err) || h.names() != "" || len(h.cfg.Sandboxes.List()) > 0 {
		t.Errorf("after its removal there is %q, %v", h.names(), err)
	}
}

// Two pods can't have the same UID: it identifies records, volumes and sandboxes.
func TestApplyUIDInUse(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.apply(parse(t, "one", ", uid: 11111111-2222-3333-4444-555555555555"))
	_, _, err := h.Apply(h.ctx(), parse(t, "two", ", uid: 11111111-2222-3333-4444-555555555555"), nil, "run")
	if !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), "has the UID of pod default/one") {
		t.Errorf("%v", err)
	}
	h.restart()
	if h.names() != "one" {
		t.Errorf("after a restart there is %q", h.names())
	}
}

func TestStopAndRunAgain(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	uid := string(web.UID)
	h.apply(web)
	h.waitFor(uid, "waiting for its image", imageMissing)
	for range 2 { // a stop may be repeated
		if err := h.Stop(h.ctx(), uid, nil); err != nil {
			t.Fatal(err)
		}
	}
	p, _ := h.Get(uid)
	if st, _ := p.Sandbox(); p.Status.Phase != podplan.PhaseStopped || st.State != "stopped" {
		t.Errorf("after a stop: %+v with a sandbox %s", p.Status, st.State)
	}
	h.restart()
	if p, _ = h.Get(uid); p.Want != podplan.Stop {
		t.Errorf("after a restart the pod should %s", p.Want)
	}
	if _, unchanged, err := h.Apply(h.ctx(), parse(t, "web", ""), nil, "run"); err != nil || unchanged {
		t.Errorf("applied again: unchanged %t, %v", unchanged, err)
	}
	p = h.waitFor(uid, "waiting for its image again", imageMissing)
	if st, _ := p.Sandbox(); st.Config.GetMetadata().GetAttempt() != 1 {
		t.Errorf("the sandbox is attempt %d", st.Config.GetMetadata().GetAttempt())
	}
}

// A removal can't be taken back: a stop with another grace only shortens it.
func TestStopDuringRemoval(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	uid := string(web.UID)
	h.apply(web)
	h.waitFor(uid, "waiting for its image", imageMissing)
	w, err := h.worker(uid)
	if err != nil {
		t.Fatal(err)
	}
	w.mu.Lock() // keep the removal from ending before the rest is done
	w.tasks.running["held"] = true
	w.mu.Unlock()
	removed := make(chan error, 1)
	go func() { removed <- h.Remove(h.ctx(), uid) }()
	h.waitFor(uid, "being removed", func(p Pod) bool { return p.Want == podplan.Remove })
	short, cancel := context.WithCancel(h.ctx())
	cancel()
	grace := time.Second
	_ = h.Stop(short, uid, &grace)
	if err := w.want(podplan.Run, nil); err != nil {
		t.Error(err)
	}
	if rec := w.record(); rec.Want != podplan.Remove {
		t.Errorf("the pod should now %s", rec.Want)
	}
	w.mu.Lock()
	delete(w.tasks.running, "held")
	w.mu.Unlock()
	w.nudge()
	if err := <-removed; err != nil {
		t.Error(err)
	}
}

// Apply waits while another pod of that name is being removed.
func TestApplyDuringRemoval(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	h.apply(web)
	w, _ := h.worker(string(web.UID))
	w.mu.Lock()
	w.tasks.running["held"] = true
	w.mu.Unlock()
	if err := w.want(podplan.Remove, nil); err != nil {
		t.Fatal(err)
	}
	cut, cancel := context.WithCancel(h.ctx())
	cancel()
	if _, _, err := h.Apply(cut, parse(t, "web", ""), nil, "run"); err == nil || !strings.Contains(err.Error(), "still being removed") {
		t.Errorf("Apply without waiting: %v", err)
	}
	applied := make(chan error, 1)
	go func() {
		_, _, err := h.Apply(h.ctx(), parse(t, "web", ", labels: {a: b}"), nil, "run")
		applied <- err
	}()
	w.mu.Lock()
	delete(w.tasks.running, "held")
	w.mu.Unlock()
	w.nudge()
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	if p, _, err := h.Find("web"); err != nil || p.Manifest.Labels["a"] != "b" {
		t.Errorf("there is %v, %v", p.Manifest, err)
	}
}

func TestRestartAdoptsPods(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	uid := string(web.UID)
	h.apply(web)
	before, _ := h.waitFor(uid, "waiting for its image", imageMissing).Sandbox()
	h.restart()
	p, err := h.Get(uid)
	if st, ok := p.Sandbox(); err != nil || !ok || st.ID != before.ID || st.State != "ready" {
		t.Errorf("after a restart: %+v, %v", st, err)
	}
	if _, unchanged, err := h.Apply(h.ctx(), parse(t, "web", ""), nil, "run"); err != nil || !unchanged {
		t.Errorf("the same manifest after a restart: unchanged %t, %v", unchanged, err)
	}
	// A damaged journal can leave a sandbox without a record.
	if err := h.records.Delete(uid); err != nil {
		t.Fatal(err)
	}
	h.restart()
	for deadline := time.Now().Add(patience); len(h.cfg.Sandboxes.List()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a sandbox without a record is kept")
		}
	}
}

func TestDrain(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	for _, name := range []string{"a", "b"} {
		p := parse(t, name, "")
		h.apply(p)
		h.waitFor(string(p.UID), "waiting for its image", imageMissing)
	}
	stopped := 0
	if err := h.Drain(h.ctx(), time.Second, func(p Pod, err error) {
		if stopped++; err != nil || !p.Finished {
			t.Errorf("%s: finished %t, %v", p.Name(), p.Finished, err)
		}
	}); err != nil || stopped != 2 {
		t.Errorf("%d pods stopped, %v", stopped, err)
	}
	if _, _, err := h.Apply(h.ctx(), parse(t, "late", ""), nil, "run"); !errdefs.IsUnavailable(err) {
		t.Errorf("a pod applied after Drain: %v", err)
	}
	h.Declare(source.Set{Kind: source.File, Pods: []source.Pod{{Pod: parse(t, "declared", ""), Location: "/x"}}})
	if h.names() != "b a" && h.names() != "a b" {
		t.Errorf("there is %q", h.names())
	}
	h.restart()
	for _, p := range h.List() {
		h.waitFor(string(p.Manifest.UID), "waiting for its image again", imageMissing)
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	uid := string(web.UID)
	h.apply(web)
	h.waitFor(uid, "waiting for its image", imageMissing)
	path, err := h.cfg.Volumes.SetUp(uid, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	logs := criconfig.LogDirectory(web, h.cfg.Node())
	if err := os.MkdirAll(logs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := h.Remove(h.ctx(), uid); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{path, logs} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s still exists", path)
		}
	}
	if err := h.Remove(h.ctx(), uid); !errdefs.IsNotFound(err) {
		t.Errorf("removed again: %v", err)
	}
	h.restart()
	if h.names() != "" {
		t.Errorf("after a restart there is %q", h.names())
	}
}
