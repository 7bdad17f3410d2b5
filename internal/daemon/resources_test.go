package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/stats"
)

func TestNodeResources(t *testing.T) {
	t.Parallel()
	facts := host.Facts{CPUs: 2, Memory: 4 << 30}
	cfg := config.New()
	cfg.Root = t.TempDir()
	cfg.KubeReserved = config.Amounts{"cpu": "100m", "memory": "1Gi", "pid": "1"}
	plain, err := newNodeResources(cfg, facts)
	if err != nil || plain.allocatable.Cpu().Value() != 2 || plain.limits.Memory != 0 || plain.limits.Pids <= 0 {
		t.Errorf("without a cluster: %+v, %v", plain, err)
	}
	cfg.Kubeconfig, cfg.MaxPods = "/etc/kubeconfig", 110
	cfg.SystemReserved = config.Amounts{"memory": "512Mi"}
	r, err := newNodeResources(cfg, facts)
	if err != nil {
		t.Fatal(err)
	}
	const mi = 1 << 20
	if got := r.allocatable.Memory().Value(); got > (4096-1024-512-100)*mi {
		t.Errorf("%d bytes of memory are allocatable", got)
	}
	if r.allocatable.Cpu().MilliValue() != 1900 || r.allocatable.Pods().Value() != 110 ||
		r.allocatable.StorageEphemeral().Value() >= r.capacity.StorageEphemeral().Value() {
		t.Errorf("allocatable %v", r.allocatable)
	}
	// The limit has no room for the eviction threshold of 100Mi: evictions come before it.
	if r.limits.Memory != (4096-1024-512)*mi || r.limits.CPUShares != 1945 || r.limits.Pids <= 0 {
		t.Errorf("limits %+v", r.limits)
	}
	cfg.SwapBehavior = "LimitedSwap"
	if _, err := newNodeResources(cfg, facts); err == nil || !strings.Contains(err.Error(), "LimitedSwap needs cgroup v2") {
		t.Errorf("LimitedSwap with cgroup v1: %v", err)
	}
	unified := facts
	unified.Cgroup = host.Cgroup{Mode: host.CgroupV2, Swap: true}
	if r, err := newNodeResources(cfg, unified); err != nil || !r.swap.Limited {
		t.Errorf("LimitedSwap with cgroup v2: %+v, %v", r.swap, err)
	}
	cfg.SwapBehavior = "NoSwap"
	if r, err := newNodeResources(cfg, unified); err != nil || r.swap != (criconfig.Swap{Limited: true}) {
		t.Errorf("NoSwap: %+v, %v", r.swap, err)
	}
	for want, reserved := range map[string]config.Amounts{
		"of memory, but the node has 4Gi": {"memory": "5Gi"},
		"process IDs, but the node has":   {"pid": "1e12"},
	} {
		cfg.KubeReserved = reserved
		if _, err := newNodeResources(cfg, facts); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v is reserved: %v", reserved, err)
		}
	}
}

// TestEnforceLimits: the cgroup of all pods gets the limits, before there is a pod.
func TestEnforceLimits(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	facts := host.Probe("/")
	tree, err := cgroup.New(facts.Cgroup, fmt.Sprintf("/husk-test-limits-%d", os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(context.Background(), tree.Root()); err != nil {
			t.Error(err)
		}
	})
	r := nodeResources{limits: cgroup.Limits{CPUShares: 1024, Memory: 1 << 30}}
	if err := r.enforce(t.Context(), tree, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	if u, err := stats.New(facts.Cgroup, nil).Cgroup(tree.Root()); err != nil || u.Memory.Limit != 1<<30 {
		t.Errorf("%+v, %v", u, err)
	}
}

func TestHugePages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, count := range map[string]string{"hugepages-2048kB": "3\n", "hugepages-1048576kB": "0\n", "other": "1"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name, "nr_hugepages"), []byte(count), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got := hugePages(dir)
	if two, one := got["hugepages-2Mi"], got["hugepages-1Gi"]; len(got) != 2 || two.String() != "6Mi" || !one.IsZero() {
		t.Errorf("got %v", got)
	}
}
