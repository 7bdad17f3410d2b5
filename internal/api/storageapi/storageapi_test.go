package storageapi

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/workload"
)

// podWith returns a pod of the namespace default that uses the claim data.
func podWith(name, source string, finished bool) agent.Pod {
	m := &corev1.Pod{}
	m.Namespace, m.Name = "default", name
	m.Spec.Volumes = []corev1.Volume{workload.ClaimVolume("data")}
	return agent.Pod{Manifest: m, Source: source, Finished: finished}
}

// TestPrunable: only what husk run has started and what is over goes.
func TestPrunable(t *testing.T) {
	for source, want := range map[string]bool{"run": true, "file:/etc/husk/manifests/web.yaml": false, "url:https://example.com": false, "api:1": false, "workload:job/default/x": false} {
		if got := prunable(podWith("web", source, true)); got != want {
			t.Errorf("an ended pod of %s: %v", source, got)
		}
		if prunable(podWith("web", source, false)) {
			t.Errorf("a running pod of %s goes", source)
		}
	}
}

func TestUsedBy(t *testing.T) {
	data := volume.Claim{Namespace: "default", Name: "data"}
	used := data
	used.Pods = []string{"default/web"}
	ended, running := podWith("web", "run", true), podWith("web", "run", false)
	other := podWith("web", "run", false)
	other.Manifest.Namespace = "shop"
	template := workload.Workload{Template: running.Manifest}
	template.Namespace = "default"
	set := workload.Workload{Template: &corev1.Pod{}, Claims: []workload.Claim{{Name: "data"}}}
	set.Namespace, set.Name = "default", "db"
	own := volume.Claim{Namespace: "default", Name: "data-db-0"}
	declared := manifest.Objects{manifest.ObjectKey(manifest.KindClaim, "default", "data"): manifest.Object{}}
	pods := func(list ...agent.Pod) []agent.Pod { return list }
	for _, c := range []struct {
		what     string
		claim    volume.Claim
		pods     []agent.Pod
		workload workload.Workload
		declared manifest.Objects
		want     use
	}{
		{"nothing", data, nil, workload.Workload{Template: &corev1.Pod{}}, nil, byNothing},
		{"a running pod", used, pods(running), set, nil, byPod},
		{"a pod that has not begun to use it", data, pods(running), set, nil, byPod},
		{"a pod of another namespace", data, pods(other), set, nil, byNothing},
		{"a pod that goes", used, pods(ended), set, nil, byNothing},
		{"a pod that is not known", used, nil, set, nil, byPod},
		{"a template", data, nil, template, nil, byPod},
		{"a StatefulSet", own, nil, set, nil, byPod},
		{"an object", data, nil, set, declared, byManifest},
		{"an object, and a pod that goes", used, pods(ended), set, declared, byManifest},
	} {
		if got := usedBy(c.claim, c.pods, []workload.Workload{c.workload}, c.declared, prunable); got != c.want {
			t.Errorf("%s: %d, want %d", c.what, got, c.want)
		}
	}
}

// TestLogSize: a log counts with its rotated files, and without those of others.
func TestLogSize(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "c[1]")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"0.log", "0.log.20261123-070000.gz", "1.log"} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, 4096), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one := logSize(container.Status{Log: filepath.Join(dir, "1.log")})
	if two := logSize(container.Status{Log: filepath.Join(dir, "0.log")}); one == 0 || two != 2*one {
		t.Errorf("one file %d bytes, two %d", one, two)
	}
	if logSize(container.Status{}) != 0 {
		t.Error("no log has a size")
	}
}
