package housekeeping

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

const storing = `apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  initContainers:
  - {name: i, image: x, resources: {limits: {ephemeral-storage: 5Mi}}}
  containers:
  - {name: c, image: x, resources: {limits: {ephemeral-storage: 2Mi}}}
  - {name: d, image: x, resources: {limits: {ephemeral-storage: 2Mi}}}
  volumes:
  - {name: small, emptyDir: {sizeLimit: 1Mi}}
  - {name: free, emptyDir: {}}
  - {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Ki}}
  - {name: host, hostPath: {path: /}}
`

func podFrom(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	f, err := manifest.Parse([]byte(text), manifest.Origin{Node: "n"})
	if err != nil {
		t.Fatal(err)
	}
	return &f.Pods[0]
}

func TestExceededLimit(t *testing.T) {
	t.Parallel()
	const mi = 1 << 20
	pod := podFrom(t, storing)
	plain := podFrom(t, "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, image: x}], volumes: [{name: free, emptyDir: {}}]}\n")
	for _, c := range []struct {
		pod  *corev1.Pod
		has  diskUsage
		want string
	}{
		{pod, diskUsage{}, ""},
		{pod, diskUsage{volumes: map[string]int64{"small": mi, "free": 2 * mi}}, ""},
		{pod, diskUsage{volumes: map[string]int64{"small": mi + 1}}, "volume small uses 1048577, more than the emptyDir's sizeLimit of 1Mi"},
		{pod, diskUsage{volumes: map[string]int64{"free": 4 * mi}, containers: map[string]int64{"c": 2 * mi}}, "the pod uses 6Mi of disk space, more than the sum of its containers' ephemeral-storage limits, 5Mi"},
		{pod, diskUsage{containers: map[string]int64{"c": 3 * mi}}, "container c uses 3Mi of disk space, more than its ephemeral-storage limit of 2Mi"},
		{pod, diskUsage{containers: map[string]int64{"i": 5 * mi}}, ""},
		{plain, diskUsage{volumes: map[string]int64{"free": 1 << 40}}, ""},
	} {
		if got := exceededLimit(c.pod, c.has); got != c.want {
			t.Errorf("%+v: %q, want %q", c.has, got, c.want)
		}
	}
	if volumes, containers := toMeasure(pod); strings.Join(volumes, " ") != "small free" || !containers {
		t.Errorf("toMeasure returns volumes %v, containers %t", volumes, containers)
	}
	if volumes, containers := toMeasure(plain); len(volumes) > 0 || containers {
		t.Errorf("without limits toMeasure returns volumes %v, containers %t", volumes, containers)
	}
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(path string, size int) {
		t.Helper()
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("small/a/b", 600<<10)
	write("small/c", 600<<10)
	write("upper/x", 100<<10)
	write("logs/0.log", 50<<10)
	pod := podFrom(t, storing)
	s := Storage{
		EmptyDir: func(_, name string) string { return filepath.Join(dir, name) },
		Layers: func(_ *corev1.Pod, name string) []string {
			if name != "c" {
				return nil
			}
			return []string{filepath.Join(dir, "upper"), filepath.Join(dir, "logs"), filepath.Join(dir, "absent")}
		},
		Pods: func() []*corev1.Pod { return []*corev1.Pod{pod} },
	}
	got := s.measure(t.Context(), pod)
	if got.volumes["small"] < 1200<<10 || got.volumes["small"] > 1300<<10 || got.containers["c"] < 150<<10 || got.containers["c"] > 250<<10 || got.volumes["free"] != 0 {
		t.Errorf("measured %+v", got)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if got := s.measure(ended, pod); got.volumes["small"] != 0 {
		t.Errorf("with a cancelled context: %+v", got)
	}
	New(Config{Storage: s, Log: slog.New(slog.DiscardHandler)}).guardStorage(ended) // ends at once
}
