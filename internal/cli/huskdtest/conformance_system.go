package huskdtest

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"

	huskv1 "github.com/huskd/husk/api/v1"
)

// info tests that the node is described, and that the running pod counts.
func (f Fixture) info(t *testing.T) {
	r, err := f.System.Info(t.Context(), &huskv1.InfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if r.Version == "" || r.Pid == 0 || r.StartedNs == 0 || r.Node == "" || r.Mode != "standalone" || r.Socket == "" || r.Root == "" || r.State == "" {
		t.Errorf("huskd: %v", r)
	}
	if s := r.GetStorage(); s.GetSnapshotter() == "" || s.GetTotalBytes() == 0 || s.GetFreeBytes() == 0 || s.GetImageBytes() == 0 || r.Images == 0 {
		t.Errorf("storage: %v", s)
	}
	if len(r.Runtimes) == 0 || r.Runtimes[0].Handler != "" || r.Runtimes[0].Name == "" || r.Runtimes[0].Version == "" {
		t.Errorf("runtimes: %v", r.Runtimes)
	}
	if n := r.GetNetwork(); n.GetMode() == "" || len(n.GetCidrs()) == 0 || n.GetMtu() == 0 || n.GetStore() != "none" {
		t.Errorf("network: %v", n)
	}
	if h := r.GetHost(); h.GetOs() == "" || h.GetKernel() == "" || h.GetArchitecture() == "" || h.GetCpus() == 0 || h.GetMemoryBytes() == 0 || h.GetCgroups() == "" || h.GetCgroupDriver() == "" {
		t.Errorf("host: %v", h)
	}
	if r.GetPods().GetRunning() != 1 || r.GetPods().GetTotal() != 1 || r.GetContainers().GetRunning() != 1 {
		t.Errorf("pods %v, containers %v", r.Pods, r.Containers)
	}
}

// generate tests that a pod's manifest is that of the pod.
func (f Fixture) generate(t *testing.T) {
	r, err := f.Manifests.Generate(t.Context(), &huskv1.GenerateRequest{Name: f.Pod})
	if err != nil {
		t.Fatal(err)
	}
	f.Manifest = r.Yaml
	again := f.events(t.Context(), t, true)
	if ev := again[len(again)-1]; !ev.Unchanged || !ev.Ready {
		t.Errorf("run again: %v\n%s", ev, r.Yaml)
	}
	_, err = f.Manifests.Generate(t.Context(), &huskv1.GenerateRequest{Name: "no-such-pod"})
	wantCode(t, err, codes.NotFound)
}

// kinds returns the disk usage by its kinds.
func (f Fixture) kinds(t *testing.T) map[string]*huskv1.DiskUse {
	t.Helper()
	r, err := f.Storage.DiskUsage(t.Context(), &huskv1.DiskUsageRequest{})
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]*huskv1.DiskUse{}
	for _, k := range r.Kinds {
		kinds[k.Kind] = k
	}
	if len(r.Kinds) != 4 || kinds["images"] == nil || kinds["containers"] == nil || kinds["volumes"] == nil || kinds["logs"] == nil {
		t.Fatalf("disk usage: %v", r)
	}
	return kinds
}

// pruneRunning tests that a running pod and its image stay.
func (f Fixture) pruneRunning(t *testing.T) {
	kinds := f.kinds(t)
	if k := kinds["images"]; k.Bytes == 0 || k.Active != 1 || len(k.Items) == 0 {
		t.Errorf("images: %v", k)
	}
	if k := kinds["containers"]; k.Active != 1 || k.ReclaimableBytes != 0 || len(k.Items) != 1 || k.Items[0].Pod != "default/"+f.Pod {
		t.Errorf("containers: %v", k)
	}
	r, err := f.Storage.Prune(t.Context(), &huskv1.PruneRequest{AllImages: true, Volumes: true})
	if err != nil || len(r.Pods)+len(r.Volumes)+len(r.Problems) > 0 {
		t.Errorf("prune: %v, %v", r, err)
	}
	f.list(t.Context(), t, false, "Running")
	f.kinds(t)
}

// pruneStopped tests that a stopped pod goes, with its containers.
func (f Fixture) pruneStopped(t *testing.T) {
	if k := f.kinds(t)["containers"]; k.Active != 0 || len(k.Items) != 1 || k.ReclaimableBytes != k.Bytes {
		t.Errorf("containers: %v", k)
	}
	r, err := f.Storage.Prune(t.Context(), &huskv1.PruneRequest{})
	if err != nil || !slices.Equal(r.Pods, []string{"default/" + f.Pod}) || len(r.Images)+len(r.Problems) > 0 {
		t.Errorf("prune: %v, %v", r, err)
	}
	if p := f.pod(t.Context(), t, true); p != nil {
		t.Errorf("a pruned pod is listed: %v", p)
	}
	if kinds := f.kinds(t); len(kinds["containers"].Items)+len(kinds["logs"].Items) > 0 || len(kinds["images"].Items) == 0 || kinds["images"].Active != 0 {
		t.Errorf("after prune: %v", kinds)
	}
}
