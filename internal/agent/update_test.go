package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/podplan"
	"github.com/huskd/husk/internal/agent/source"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/identity"
)

const sized = `apiVersion: v1
kind: Pod
metadata: {name: web, labels: {a: b}}
spec:
  initContainers:
  - {name: i, image: 'reg.test/init:1'}
  containers:
  - {name: c, image: 'reg.test/web:1', resources: {limits: {cpu: 100m, memory: 64Mi}, requests: {cpu: 50m}}}
  - {name: d, image: 'reg.test/web:1', resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}]}
`

func TestInPlace(t *testing.T) {
	t.Parallel()
	existing := podFrom(t, sized)
	for name, c := range map[string]struct {
		from, to string
		ok       bool
	}{
		"nothing":             {"", "", true},
		"more memory":         {"memory: 64Mi", "memory: 128Mi", true},
		"another request":     {"cpu: 50m", "cpu: 80m", true},
		"another image":       {"'reg.test/web:1', resources", "'reg.test/web:2', resources", true},
		"another class":       {"{limits: {cpu: 100m, memory: 64Mi}, requests: {cpu: 50m}}", "{}", false},
		"a restart is wanted": {"'reg.test/web:1', resizePolicy", "'reg.test/web:1', resources: {limits: {memory: 1Gi}}, resizePolicy", true},
		"another init image":  {"init:1", "init:2", false},
		"a label":             {"a: b", "a: c", false},
		"a command":           {"{name: c, ", "{name: c, command: [x], ", false},
		"another container":   {"{name: d, ", "{name: e, ", false},
		"another policy":      {"spec:", "spec:\n  restartPolicy: Never", false},
	} {
		declared := podFrom(t, strings.Replace(sized, c.from, c.to, 1))
		got, ok := inPlace(declared, existing)
		if ok != c.ok {
			t.Errorf("%s: in place: %t, want %t", name, ok, c.ok)
		}
		if ok && (got.UID != existing.UID || identity.Hash(got) != identity.Hash(declared)) {
			t.Errorf("%s: got %+v", name, got)
		}
	}
	// A container that is never restarted can't get another image.
	never := podFrom(t, strings.Replace(sized, "spec:", "spec:\n  restartPolicy: Never", 1))
	declared := podFrom(t, strings.Replace(strings.Replace(sized, "spec:", "spec:\n  restartPolicy: Never", 1), "'reg.test/web:1', resources", "'reg.test/web:2', resources", 1))
	if _, ok := inPlace(declared, never); ok {
		t.Error("changed an image that needs a restart, though restartPolicy is Never")
	}
	declared = podFrom(t, strings.Replace(strings.Replace(sized, "spec:", "spec:\n  restartPolicy: Never", 1), "'reg.test/web:1', resizePolicy", "'reg.test/web:1', resources: {limits: {memory: 1Gi}}, resizePolicy", 1))
	if _, ok := inPlace(declared, never); ok {
		t.Error("changed resources that need a restart, though restartPolicy is Never")
	}
}

// fromAPI returns a set of an API server's pods.
func fromAPI(pods ...*corev1.Pod) source.Set {
	set := source.Set{Kind: source.API}
	for _, p := range pods {
		set.Pods = append(set.Pods, source.Pod{Pod: p, Location: "/" + p.Name})
	}
	return set
}

// A pod of an API server is changed while it runs, and is recreated only if its UID changes.
func TestDeclareFromAPIServer(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	h.Declare(fromAPI(parse(t, "a", ", uid: a-1"), parse(t, "b", ", uid: b-1")))
	h.waitFor("a-1", "waiting for its image", imageMissing)
	p, _ := h.Get("a-1")
	before, _ := p.Sandbox()
	changed := parse(t, "a", ", uid: a-1, labels: {v: '2'}")
	changed.Spec.Containers[0].Image = "reg.test/other:1"
	changed.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("64Mi")}
	h.Declare(fromAPI(changed, parse(t, "b", ", uid: b-2")))
	h.waitGone("b-1")
	h.waitFor("b-2", "waiting for its image", imageMissing)
	p = h.waitFor("a-1", "changed", func(p Pod) bool { return p.Status.Containers[0].Image == "reg.test/other:1" })
	if st, _ := p.Sandbox(); st.ID != before.ID || p.Manifest.Labels["v"] != "2" {
		t.Errorf("it was recreated: sandbox %s, labels %v", st.ID, p.Manifest.Labels)
	}
	// The change outlives huskd. Another source doesn't remove the pod.
	h.restart()
	if p, err := h.Get("a-1"); err != nil || p.Manifest.Labels["v"] != "2" {
		t.Errorf("after a restart: %v, %v", p.Manifest, err)
	}
	h.Declare(source.Set{Kind: source.File})
	if h.names() == "" {
		t.Error("another source removed it")
	}
	h.Declare(fromAPI())
	h.waitGone("a-1")
	h.waitGone("b-2")
}

// A pod that is being deleted is stopped, and stays until the server no longer has it. Its grace
// only shrinks. It keeps its objects, which the set no longer has.
func TestDeletionInAPIServer(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	configured := func() *corev1.Pod {
		p := parse(t, "a", ", uid: a-1")
		p.Spec.Containers[0].EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "settings"}}}}
		return p
	}
	set := fromAPI(configured())
	settings := manifest.ObjectKey(manifest.KindConfigMap, "default", "settings")
	set.Objects = manifest.Objects{settings: {"A": []byte("1")}}
	h.Declare(set)
	h.waitFor("a-1", "waiting for its image", imageMissing)
	ending := func(seconds int) source.Set {
		set := fromAPI(configured())
		grace := time.Duration(seconds) * time.Second
		set.Pods[0].DeletionGrace = &grace
		return set
	}
	h.Declare(ending(30))
	h.waitFor("a-1", "stopped", func(p Pod) bool { return p.Finished && p.Want == podplan.Stop })
	h.restart()
	h.Declare(ending(60))
	w, err := h.worker("a-1")
	if err != nil {
		t.Fatal(err)
	}
	if grace := w.record().Grace; grace == nil || *grace != 30*time.Second {
		t.Errorf("the grace is %v", grace)
	}
	h.Declare(ending(1))
	if grace := w.record().Grace; *grace != time.Second {
		t.Errorf("the grace is %v", grace)
	}
	if w.record().Objects[settings] == nil {
		t.Error("the pod lost its config map")
	}
	// A pod that is being deleted is not started.
	set = ending(1)
	never := parse(t, "b", ", uid: b-1")
	set.Pods = append(set.Pods, source.Pod{Pod: never, Location: "/b", DeletionGrace: set.Pods[0].DeletionGrace})
	h.Declare(set)
	if h.names() != "a" {
		t.Errorf("the pods are %q", h.names())
	}
	h.Declare(fromAPI())
	h.waitGone("a-1")
}

// What is published of a pod has the generation that it was made from.
func TestGeneration(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	sized := func(generation int64, milli int64) *corev1.Pod {
		p := requesting(t, "a", fmt.Sprintf("cpu: %dm", milli))
		p.Generation = generation
		return p
	}
	const first, last = 1, 30
	h.Declare(fromAPI(sized(first, 100+first)))
	done := make(chan int64)
	go func() {
		for {
			p, err := h.Get("a")
			if err != nil {
				t.Error(err)
				break
			}
			if g, cpu := p.Manifest.Generation, p.Manifest.Spec.Containers[0].Resources.Requests.Cpu().MilliValue(); cpu != 100+g {
				t.Errorf("generation %d has %dm of CPU", g, cpu)
			}
			if p.Manifest.Generation == last {
				break
			}
			<-p.Newer
		}
		close(done)
	}()
	for g := int64(first + 1); g <= last; g++ {
		h.Declare(fromAPI(sized(g, 100+g)))
	}
	select {
	case <-done:
	case <-h.ctx().Done():
		t.Fatal("the last generation was not published")
	}
	is := func(generation int64) func(Pod) bool {
		return func(p Pod) bool { return p.Manifest.Generation == generation }
	}
	h.Declare(fromAPI(sized(last+1, 100+last))) // nothing has changed that matters to the agent
	h.waitFor("a", "of the next generation", is(last+1))
	h.Declare(fromAPI(sized(last+2, 64000)))
	p := h.waitFor("a", "of the generation whose resize is held", is(last+2))
	if cpu := p.Manifest.Spec.Containers[0].Resources.Requests.Cpu(); cpu.MilliValue() != 100+last || p.Resize.Held != corev1.PodReasonInfeasible {
		t.Errorf("a resize that can't fit: %s of CPU, %+v", cpu, p.Resize)
	}
	h.restart()
	if p, err := h.Get("a"); err != nil || !is(last+2)(p) {
		t.Errorf("after a restart: generation %d, %v", p.Manifest.Generation, err)
	}
	set := fromAPI(sized(last+3, 64000))
	set.Pods[0].DeletionGrace = new(time.Second)
	h.Declare(set)
	if p := h.waitFor("a", "of the generation of its deletion", is(last+3)); p.Want != podplan.Stop {
		t.Errorf("the pod has the generation of its deletion, and should still %s", p.Want)
	}
}

// Config.Changed is called when a pod changes.
func TestChanged(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	changed := make(chan string, 1000)
	h.cfg.Changed = func(uid string) { changed <- uid }
	h.Declare(fromAPI(parse(t, "a", ", uid: a-1")))
	select {
	case uid := <-changed:
		if uid != "a-1" {
			t.Errorf("Changed was called for pod %s", uid)
		}
	case <-h.ctx().Done():
		t.Fatal("Changed was not called")
	}
	h.waitFor("a-1", "waiting for its image", imageMissing)
}
