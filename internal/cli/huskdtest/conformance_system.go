package huskdtest

import (
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
