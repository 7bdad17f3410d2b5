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

	"github.com/huskd/husk/internal/agent/admission"
	"github.com/huskd/husk/internal/agent/eviction"
	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cluster/capacity"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/doctor"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/manifest/criconfig"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
	"github.com/huskd/husk/internal/stats"
)

// nodeResources are the node's resources. Outside of a cluster only process IDs are reserved.
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
		most, err := mostTasks(facts.Cgroup)
		out.limits.Pids = most - tasksReserve(most)
		return out, err
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
	most, err := mostTasks(facts.Cgroup)
	if err != nil {
		return out, err
	}
	reserve := tasksReserve(most)
	if kube, system := kube[capacity.PIDs], system[capacity.PIDs]; kube.Value()+system.Value() > 0 {
		reserve = kube.Value() + system.Value()
	}
	if out.limits.Pids = most - reserve; out.limits.Pids <= 0 {
		return out, fmt.Errorf("kube-reserved and system-reserved reserve %d process IDs, but the node has %d: reserve less", reserve, most)
	}
	return out, nil
}

// mostTasks returns how many processes and threads the node can have. In a container huskd's own
// cgroup may bound them.
func mostTasks(c host.Cgroup) (int64, error) {
	_, most, err := stats.Tasks()
	if err != nil {
		return 0, fmt.Errorf("the node's process IDs: %w", err)
	}
	root := c.Mounts["pids"]
	if c.Mode.Unified() {
		root = c.Mounts[""]
	}
	content, _ := os.ReadFile(filepath.Join(root, "pids.max")) // the topmost cgroup has none
	if limit, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64); err == nil {
		most = min(most, limit)
	}
	return most, nil
}

// tasksReserve returns how many of the node's processes and threads pods leave to the node unless
// the configuration says: a tenth.
func tasksReserve(most int64) int64 { return most / 10 }

// tasks returns the limits on processes and threads.
func (d *daemon) tasks() doctor.Tasks {
	most, _ := mostTasks(d.facts.Cgroup)
	out := doctor.Tasks{Node: most, Pods: d.resources.limits.Pids}
	for _, st := range d.sandboxes.List() {
		if st.State != sandboxstate.Ready {
			continue
		}
		sum := int64(0)
		for _, c := range d.containers.List(st.ID) {
			if !c.Finished {
				sum += int64(d.cfg.PidsLimit)
			}
		}
		own := st.Config.GetLinux().GetCgroupParent() == ""
		if limit := int64(d.cfg.PodPidsLimit); own && limit > 0 && (sum == 0 || limit < sum) {
			sum = limit
		}
		switch {
		case sum == 0:
			out.Unlimited = append(out.Unlimited, st.Attachment.Pod.String())
		case own:
			out.Own += sum
		default:
			out.Others += sum
		}
	}
	return out
}

// room returns how many pods the agent runs, and how many max-pods keeps it from running.
func room(d *daemon) doctor.Room {
	out := doctor.Room{Max: d.cfg.MaxPods}
	for p := range d.agent.Views() {
		switch {
		case p.Status.Reason == admission.OutOf+string(corev1.ResourcePods):
			out.Waiting++
		case !p.Finished:
			out.Pods++
		}
	}
	return out
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
