package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
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

func podFrom(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	file, err := manifest.Parse([]byte(text), manifest.Origin{Node: "n", Source: "run"})
	if err != nil {
		t.Fatal(err)
	}
	return &file.Pods[0]
}

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
		if ok && (got.UID != existing.UID || manifest.Hash(got) != manifest.Hash(declared)) {
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
