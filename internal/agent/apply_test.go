package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/agent/view"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sandbox"
)

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
		t.Errorf("after its removal the pods are %q, %v", h.names(), err)
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
		t.Errorf("after a restart the pods are %q", h.names())
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
		t.Errorf("after a restart Want is %s", p.Want)
	}
	if _, unchanged, err := h.Apply(h.ctx(), parse(t, "web", ""), nil, "run"); err != nil || unchanged {
		t.Errorf("applied again: unchanged %t, %v", unchanged, err)
	}
	p = h.waitFor(uid, "waiting for its image again", imageMissing)
	if st, _ := p.Sandbox(); st.Config.GetMetadata().GetAttempt() != 1 {
		t.Errorf("the sandbox is attempt %d", st.Config.GetMetadata().GetAttempt())
	}
}

func TestRerun(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	uid := string(web.UID)
	h.apply(web)
	for attempt := range uint32(4) {
		p := h.waitFor(uid, "waiting for its image", imageMissing)
		if st, _ := p.Sandbox(); st.Config.GetMetadata().GetAttempt() != attempt || p.Want != podplan.Run {
			t.Errorf("rerun %d: the sandbox is attempt %d of a pod that shall %s", attempt, st.Config.GetMetadata().GetAttempt(), p.Want)
		}
		if attempt%2 == 1 { // a pod that runs is stopped first
			if err := h.Stop(h.ctx(), uid, nil); err != nil {
				t.Fatal(err)
			}
		}
		if err := h.Rerun(h.ctx(), uid); err != nil {
			t.Fatal(err)
		}
		p, _ = h.Get(uid)
		if slices.ContainsFunc(p.Sandboxes, func(st sandbox.Status) bool {
			return st.Config.GetMetadata().GetAttempt() <= attempt && view.SandboxState(st) != podplan.SandboxStopped // it may be removed already
		}) {
			t.Errorf("rerun %d: the former sandbox isn't stopped", attempt)
		}
	}
	cluster := parse(t, "cluster", "")
	if _, _, err := h.Apply(h.ctx(), cluster, nil, string(source.API)+"cluster"); err != nil {
		t.Fatal(err)
	}
	if err := h.Rerun(h.ctx(), string(cluster.UID)); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "kubectl") {
		t.Errorf("a pod of a cluster: %v", err)
	}
	if err := h.Rerun(h.ctx(), "absent"); !errdefs.IsNotFound(err) {
		t.Errorf("an absent pod: %v", err)
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
		t.Errorf("Want is %s", rec.Want)
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
		t.Errorf("the pod is %v, %v", p.Manifest, err)
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
	if err := h.Drain(h.ctx(), Budget{Total: time.Second}, func(p Pod, err error) {
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
		t.Errorf("the pods are %q", h.names())
	}
	h.restart()
	for _, p := range h.List() {
		h.waitFor(string(p.Manifest.UID), "waiting for its image again", imageMissing)
	}
}

// TestDrainCriticalLast: critical pods stop after the others, or when these have had their time.
func TestDrainCriticalLast(t *testing.T) {
	t.Parallel()
	for name, stuck := range map[string]error{"the others stop": nil, "the others are stuck": errors.New("it is stuck")} {
		h := newHarnessWith(t, cgroups{stuck: stuck})
		for _, name := range []string{"critical", "a", "b"} {
			p := parse(t, name, "")
			if name == "critical" {
				p.Spec.PriorityClassName = "system-cluster-critical"
			}
			h.apply(p)
			h.waitFor(string(p.UID), "waiting for its image", imageMissing)
		}
		var order []string
		var since []time.Time
		_ = h.Drain(h.ctx(), Budget{Total: 300 * time.Millisecond, Critical: 100 * time.Millisecond}, func(p Pod, _ error) { order = append(order, p.Manifest.Name) })
		h.mu.RLock()
		for _, name := range []string{"default/a", "default/critical"} {
			since = append(since, h.workers.byName[name].drained.Since)
		}
		h.mu.RUnlock()
		if gap := since[1].Sub(since[0]); gap <= 0 || stuck != nil && gap < 200*time.Millisecond {
			t.Errorf("%s: the critical pod is stopped %v after the others", name, gap)
		}
		if stuck == nil && (len(order) != 3 || order[2] != "critical") {
			t.Errorf("%s: pods stopped in the order %v", name, order)
		}
		h.cgroups = cgroups{}
		h.restart()
	}
}

// TestDrainStalls checks that Drain ends soon after the budget if a pod's teardown fails again and
// again, and that the next huskd stops the pod.
func TestDrainStalls(t *testing.T) {
	t.Parallel()
	h := newHarnessWith(t, cgroups{stuck: errors.New("it is stuck")})
	p := parse(t, "a", "")
	h.apply(p)
	h.waitFor(string(p.UID), "waiting for its image", imageMissing)
	began := time.Now()
	err := h.Drain(h.ctx(), Budget{Total: time.Second}, func(Pod, error) {})
	if err == nil || !strings.Contains(err.Error(), "it is stuck") || !errors.Is(err, errStalled) {
		t.Errorf("Drain: %v", err)
	}
	if took := time.Since(began); took < stallTime {
		t.Errorf("Drain gave up after %v", took)
	}
	h.cgroups = cgroups{}
	h.restart()
	if err := h.Stop(h.ctx(), string(p.UID), nil); err != nil {
		t.Error(err)
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
	logs, err := h.cfg.Logs.Create(uid, criconfig.LogDirectory(web, h.cfg.Node()))
	if err == nil {
		err = os.MkdirAll(logs, 0o755)
	}
	if err != nil {
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
		t.Errorf("removing it again: %v", err)
	}
	h.restart()
	if h.names() != "" {
		t.Errorf("after a restart the pods are %q", h.names())
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	web := parse(t, "web", "")
	h.apply(web)
	h.waitFor(string(web.UID), "waiting for its image", imageMissing)
	other := parse(t, "web", ", labels: {a: b}")
	if err := h.Replace(other, "file:/x"); err != nil {
		t.Fatal(err)
	}
	if p, err := h.Get(string(web.UID)); err != nil || p.Want != "run" {
		t.Errorf("replaced a pod of another source: %v, %v", p.Want, err)
	}
	if err := h.Replace(other, "run"); err != nil {
		t.Fatal(err)
	}
	h.apply(other)
	if p, err := h.Get(string(other.UID)); err != nil || p.Manifest.Labels["a"] != "b" || h.names() != "web" {
		t.Errorf("the pods are %s: %v", h.names(), err)
	}
}

// A pod has the statuses of its containers before its worker has looked at anything.
func TestListedBeforeItsFirstStep(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := podFrom(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {initContainers: [{name: i, image: 'reg.test/none:1'}], containers: [{name: c, image: 'reg.test/none:2', imagePullPolicy: Never}]}\n")
	p.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "e", Image: "reg.test/none:3"}}}
	status := h.newWorker(record{Pod: p, Want: podplan.Run}).published.pod().Status
	want := "Pending i:reg.test/none:1:Waiting/PodInitializing c:reg.test/none:2:Waiting/PodInitializing e:reg.test/none:3:Waiting/PodInitializing"
	got := string(status.Phase)
	for _, c := range slices.Concat(status.Containers, status.Ephemeral) {
		got += fmt.Sprintf(" %s:%s:%s/%s", c.Name, c.Image, c.State, c.Reason)
	}
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
}
