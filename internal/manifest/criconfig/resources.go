package criconfig

import (
	"maps"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/manifest"
	"github.com/huskd/husk/internal/manifest/podspec"
)

// Conversion of CPU time, in thousandths of a processor, to shares and quota, and the kernel's
// bounds.
const (
	sharesPerCPU = 1024
	minShares    = 2
	maxShares    = 262144
	period       = 100000
	minQuota     = 1000
)

// Shares returns the cpu.shares for a number of thousandths of a CPU.
func Shares(milli int64) int64 {
	return min(max(milli*sharesPerCPU/1000, minShares), maxShares)
}

// setQuota sets the CPU quota. milli is in thousandths of a processor; 0 means no limit.
func setQuota(r *runtimeapi.LinuxContainerResources, milli int64) {
	if milli > 0 {
		r.CpuPeriod, r.CpuQuota = period, max(milli*period/1000, minQuota)
	}
}

// Resources returns the resources of a container of the pod.
func Resources(pod *corev1.Pod, c *corev1.Container, n Node) *runtimeapi.LinuxContainerResources {
	limits, requests := limitsOf(pod, c), c.Resources.Requests
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          Shares(requests.Cpu().MilliValue()),
		MemoryLimitInBytes: limits.Memory().Value(),
		OomScoreAdj:        oomScore(pod, c, n),
		HugepageLimits:     hugePageLimits(limits, n),
	}
	setQuota(out, limits.Cpu().MilliValue())
	if n.Unified {
		// The OOM killer ends all processes of a container, as with Kubernetes: a program rarely
		// works without some of its processes.
		out.Unified = map[string]string{"memory.oom.group": "1"}
		if n.Swap.Limited {
			out.Unified["memory.swap.max"] = strconv.FormatInt(swapLimit(pod, c, n), 10)
		}
	}
	return out
}

// Swap is how containers may use swap. On a node with cgroup v1, it has no effect.
type Swap struct {
	// Limited tells that each container has a limit of swap. Without it, only containers with a
	// memory limit have one, which is zero.
	Limited bool
	// Bytes are the swap space that containers share by their memory requests, as with the kubelet's
	// LimitedSwap. Zero is its NoSwap.
	Bytes int64
}

// swapLimit returns how many bytes of swap a container may use: its part of the node's swap is that
// of its memory request in the node's memory. Only Burstable pods may swap, and of these neither
// critical ones nor containers without a memory request or with as much as their limit.
func swapLimit(pod *corev1.Pod, c *corev1.Container, n Node) int64 {
	request, limit := c.Resources.Requests.Memory(), c.Resources.Limits.Memory()
	if Critical(pod) || QOS(pod) != corev1.PodQOSBurstable || request.IsZero() || request.Cmp(*limit) == 0 || n.Memory <= 0 || request.Value() > n.Memory {
		return 0
	}
	return int64(float64(request.Value()) / float64(n.Memory) * float64(n.Swap.Bytes))
}

// limitsOf returns the limits of a container. As in kubelet, those that it doesn't set are the
// pod's, so that programs find them in their own cgroup.
func limitsOf(pod *corev1.Pod, c *corev1.Container) corev1.ResourceList {
	if pod.Spec.Resources == nil {
		return c.Resources.Limits
	}
	out := maps.Clone(pod.Spec.Resources.Limits)
	for name, q := range c.Resources.Limits {
		if _, ok := out[name]; !ok || !q.IsZero() {
			if out == nil {
				out = corev1.ResourceList{}
			}
			out[name] = q
		}
	}
	return out
}

// hugePageLimits returns a limit for each page size of the node. It is 0 unless the container sets
// one.
func hugePageLimits(limits corev1.ResourceList, n Node) []*runtimeapi.HugepageLimit {
	asked := map[string]uint64{}
	for name, q := range limits {
		if size, ok := manifest.HugePageSize(name); ok {
			asked[pageSize(size.Value())] = uint64(q.Value())
		}
	}
	sizes := slices.Clone(n.HugePages)
	for size := range asked {
		if !slices.Contains(sizes, size) {
			sizes = append(sizes, size) // the runtime will report that it isn't supported
		}
	}
	slices.Sort(sizes)
	var out []*runtimeapi.HugepageLimit
	for _, size := range sizes {
		out = append(out, &runtimeapi.HugepageLimit{PageSize: size, Limit: asked[size]})
	}
	return out
}

// pageSize formats a size as in the names of cgroup files: 2MB, 1GB, 64KB.
func pageSize(bytes int64) string {
	units := []string{"B", "KB", "MB", "GB", "TB", "PB"}
	unit := 0
	for bytes%1024 == 0 && bytes >= 1024 && unit+1 < len(units) {
		bytes /= 1024
		unit++
	}
	return strconv.FormatInt(bytes, 10) + units[unit]
}

// OOM scores by QoS class. The kernel kills processes with the highest score first.
const (
	scoreGuaranteed = -997
	scoreBestEffort = 1000
)

// oomScore returns kubelet's OOM score of a container. The larger its share of the node's memory,
// the later it is killed. A sidecar is killed no earlier than the containers that it serves.
func oomScore(pod *corev1.Pod, c *corev1.Container, n Node) int64 {
	switch QOS(pod) {
	case corev1.PodQOSGuaranteed:
		return scoreGuaranteed
	case corev1.PodQOSBestEffort:
		return scoreBestEffort
	}
	share := unassignedShare(pod)
	score := burstableScore(c.Resources.Requests.Memory().Value()+share, n.Memory)
	if podspec.HasSidecar(&pod.Spec, c.Name) {
		for i := range pod.Spec.Containers {
			score = min(score, burstableScore(pod.Spec.Containers[i].Resources.Requests.Memory().Value()+share, n.Memory))
		}
	}
	return score
}

// unassignedShare returns each container's share of the memory that the pod requests beyond its
// containers' requests. Like kubelet, it divides that memory evenly.
func unassignedShare(pod *corev1.Pod) int64 {
	whole := pod.Spec.Resources
	if whole == nil {
		return 0
	}
	more := whole.Requests.Memory().Value() - manifest.Total(pod, manifest.RequestOf, corev1.ResourceMemory).Value()
	return max(more, 0) / int64(len(pod.Spec.Containers)+len(pod.Spec.InitContainers))
}

func burstableScore(request, capacity int64) int64 {
	if capacity <= 0 {
		return scoreBestEffort - 1
	}
	// In floating point, as 1000 times an exbibyte overflows int64.
	score := 1000 - int64(1000*float64(request)/float64(capacity))
	return min(max(score, 1000+scoreGuaranteed), scoreBestEffort-1)
}

// QOS returns a pod's QoS class: Guaranteed if each container has equal requests and limits of CPU
// and memory, BestEffort if none has any. Resources of the pod as a whole take precedence.
func QOS(pod *corev1.Pod) corev1.PodQOSClass {
	guaranteed, bestEffort := true, true
	var all []corev1.ResourceRequirements
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		all = append(all, c.Resources)
	}
	if whole := pod.Spec.Resources; whole != nil && len(whole.Limits)+len(whole.Requests) > 0 {
		all = []corev1.ResourceRequirements{*whole}
	}
	for _, r := range all {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, request := r.Limits[name], r.Requests[name]
			if !limit.IsZero() || !request.IsZero() {
				bestEffort = false
			}
			if limit.IsZero() || limit.Cmp(request) != 0 {
				guaranteed = false
			}
		}
	}
	switch {
	case bestEffort:
		return corev1.PodQOSBestEffort
	case guaranteed:
		return corev1.PodQOSGuaranteed
	}
	return corev1.PodQOSBurstable
}

// PodResources returns the limits of the pod as a whole, for the containers that run at the same
// time. A pod has a limit if it sets one itself, or if each of its containers has one.
func PodResources(pod *corev1.Pod) *runtimeapi.LinuxContainerResources {
	cpu := Requested(pod, corev1.ResourceCPU)
	out := &runtimeapi.LinuxContainerResources{
		CpuShares:          Shares(cpu.MilliValue()),
		MemoryLimitInBytes: podLimit(pod, corev1.ResourceMemory).Value(),
	}
	setQuota(out, podLimit(pod, corev1.ResourceCPU).MilliValue())
	return out
}

// Requested returns what a pod requests of a resource: the request of the pod as a whole or,
// without one, the sum of its containers' requests; plus its overhead.
func Requested(pod *corev1.Pod, name corev1.ResourceName) resource.Quantity {
	sum := manifest.Total(pod, manifest.RequestOf, name)
	if whole := pod.Spec.Resources; whole != nil {
		if q, ok := whole.Requests[name]; ok {
			sum = new(q.DeepCopy())
		}
	}
	sum.Add(pod.Spec.Overhead[name])
	return *sum
}

// podLimit returns the limit of a pod including its overhead. Zero means no limit.
func podLimit(pod *corev1.Pod, name corev1.ResourceName) *resource.Quantity {
	sum := manifest.Total(pod, manifest.LimitOf, name)
	if whole := pod.Spec.Resources; whole != nil {
		if q, ok := whole.Limits[name]; ok {
			sum = new(q.DeepCopy())
		}
	}
	if !sum.IsZero() {
		sum.Add(pod.Spec.Overhead[name])
	}
	return sum
}

// StorageLimit returns the sum of the containers' limits of ephemeral storage, counting those that
// run at the same time. Zero means that no container has a limit.
func StorageLimit(pod *corev1.Pod) resource.Quantity {
	return *manifest.Total(pod, func(c *corev1.Container, name corev1.ResourceName) (resource.Quantity, bool) {
		return c.Resources.Limits[name].DeepCopy(), true
	}, corev1.ResourceEphemeralStorage)
}

// Allocated returns what a pod requests, and its limits, as a whole.
func Allocated(pod *corev1.Pod) corev1.ResourceRequirements {
	out := corev1.ResourceRequirements{Requests: corev1.ResourceList{}, Limits: corev1.ResourceList{}}
	add := func(r corev1.ResourceRequirements) {
		for name := range r.Requests {
			out.Requests[name] = Requested(pod, name)
		}
		for name := range r.Limits {
			if limit := podLimit(pod, name); !limit.IsZero() {
				out.Limits[name] = *limit
			}
		}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		add(c.Resources)
	}
	if pod.Spec.Resources != nil {
		add(*pod.Spec.Resources)
	}
	add(corev1.ResourceRequirements{Requests: pod.Spec.Overhead})
	return out
}
