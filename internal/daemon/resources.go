package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cluster/capacity"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/stats"
)

// nodeResources are the node's resources. Outside of a cluster nothing is reserved.
type nodeResources struct {
	capacity, allocatable corev1.ResourceList
	// limits are those of the cgroup of all pods. They leave out the thresholds of evictions, so
	// that pods can be evicted before the kernel kills their processes.
	limits     cgroup.Limits
	swap       criconfig.Swap
	thresholds []eviction.Threshold
}

func newNodeResources(cfg config.Config, facts host.Facts) (nodeResources, error) {
	disk, _ := stats.Filesystem(cfg.Root)
	out := nodeResources{capacity: hugePages(hugePagesDir)}
	reserved := corev1.ResourceList{} // hugepages take memory from all pods
	sum := resource.Quantity{}
	for _, q := range out.capacity {
		sum.Add(q)
	}
	reserved[corev1.ResourceMemory] = sum
	out.capacity[corev1.ResourceCPU] = *resource.NewQuantity(int64(facts.CPUs), resource.DecimalSI)
	out.capacity[corev1.ResourceMemory] = *resource.NewQuantity(facts.Memory, resource.BinarySI)
	out.capacity[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(disk.Bytes), resource.BinarySI)
	out.capacity[corev1.ResourcePods] = *resource.NewQuantity(int64(cfg.MaxPods), resource.DecimalSI)
	if cfg.Kubeconfig == "" {
		out.allocatable = capacity.Allocatable(out.capacity, reserved)
		return out, nil
	}
	kube, system, err := cfg.Reserved()
	if err != nil {
		return out, err
	}
	if out.thresholds, err = cfg.Thresholds(); err != nil {
		return out, err
	}
	out.swap.Limited = facts.Cgroup.Mode.Unified() && facts.Cgroup.Swap
	if cfg.LimitedSwap() {
		if !out.swap.Limited {
			return out, errors.New("memory-swap-behavior: LimitedSwap needs cgroup v2 and a kernel that accounts for swap: use NoSwap")
		}
		used, err := stats.Node()
		if err != nil {
			return out, err
		}
		out.swap.Bytes = int64(used.Memory.SwapLimit)
	}
	evictions := eviction.Reserved(out.thresholds, out.capacity)
	if err := capacity.Check(out.capacity, kube, system, evictions); err != nil {
		return out, err
	}
	out.allocatable = capacity.Allocatable(out.capacity, kube, system, evictions, reserved)
	left := capacity.Allocatable(out.capacity, kube, system)
	out.limits = cgroup.Limits{CPUShares: uint64(criconfig.Shares(left.Cpu().MilliValue())), Memory: left.Memory().Value()}
	if kube, system := kube[capacity.PIDs], system[capacity.PIDs]; kube.Value()+system.Value() > 0 {
		_, most, err := stats.Tasks()
		if err != nil {
			return out, fmt.Errorf("kube-reserved and system-reserved: %w", err)
		}
		if out.limits.Pids = most - kube.Value() - system.Value(); out.limits.Pids <= 0 {
			return out, fmt.Errorf("kube-reserved and system-reserved reserve %d process IDs, but the node has %d: reserve less", kube.Value()+system.Value(), most)
		}
	}
	return out, nil
}

// enforceRetry is the time between attempts to set the limits of all pods. On cgroup v1 the kernel
// refuses a memory limit below what the pods use.
const enforceRetry = time.Minute

// enforce sets the limits of the cgroup of all pods.
func (r nodeResources) enforce(ctx context.Context, pods *cgroup.Tree, log *slog.Logger) error {
	for {
		err := pods.Create(pods.Root(), r.limits)
		if err == nil {
			return nil
		}
		log.Error("the limits of all pods together are not set", "error", err, "again in", enforceRetry)
		select {
		case <-time.After(enforceRetry):
		case <-ctx.Done():
			return nil
		}
	}
}

const hugePagesDir = "/sys/kernel/mm/hugepages"

// hugePages returns how many bytes of huge pages there are of each size.
func hugePages(dir string) corev1.ResourceList {
	out := corev1.ResourceList{}
	sizes, _ := os.ReadDir(dir)
	for _, e := range sizes {
		kib, ok := strings.CutPrefix(strings.TrimSuffix(e.Name(), "kB"), "hugepages-")
		size, err := strconv.ParseInt(kib, 10, 64)
		if !ok || err != nil {
			continue
		}
		content, _ := os.ReadFile(filepath.Join(dir, e.Name(), "nr_hugepages"))
		count, _ := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		name := corev1.ResourceHugePagesPrefix + resource.NewQuantity(size<<10, resource.BinarySI).String()
		out[corev1.ResourceName(name)] = *resource.NewQuantity(count*size<<10, resource.BinarySI)
	}
	return out
}
