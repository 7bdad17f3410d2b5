package spec

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/host"
)

func (b *builder) resources() error {
	if b.CgroupsPath == "" {
		return invalid("cgroup path", "empty")
	}
	b.spec.Linux.CgroupsPath = b.CgroupsPath
	out := b.spec.Linux.Resources
	if limit := b.Limits.Pids; limit > 0 && b.Host.Cgroup.Has("pids") {
		out.Pids = &specs.LinuxPids{Limit: &limit}
	}
	out.BlockIO = b.Limits.BlockIO
	b.spec.Linux.IntelRdt = b.Limits.RDT
	asked := b.Config.GetLinux().GetResources()
	if asked == nil {
		return nil
	}
	limits, notes, err := Resources(b.name, asked, b.Host)
	if err != nil {
		return err
	}
	b.notes = append(b.notes, notes...)
	out.CPU, out.Memory = limits.CPU, limits.Memory
	out.HugepageLimits, out.Unified = limits.HugepageLimits, limits.Unified
	return nil
}

// The kernel's limits of CFS periods and quotas in microseconds (kernel/sched/core.c), and the
// period of a quota without one.
const (
	minQuota      = 1000
	minPeriod     = 1000
	maxPeriod     = 1000000
	defaultPeriod = 100000
)

var (
	cpuList     = regexp.MustCompile(`^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$`)
	unifiedFile = regexp.MustCompile(`^[a-z]+(\.[a-z0-9_]+)+$`)
)

// Resources converts the limits in asked for the named container, according to what the host
// supports, and returns notes for the log. It is used for new containers and for updates.
func Resources(container string, asked *runtimeapi.LinuxContainerResources, h host.Facts) (*specs.LinuxResources, []string, error) {
	l := limiter{container: container, asked: asked, host: h}
	for _, step := range []func() error{l.cpu, l.memory, l.hugePages, l.unified} {
		if err := step(); err != nil {
			return nil, nil, err
		}
	}
	return &l.out, l.notes, nil
}

type limiter struct {
	container string
	asked     *runtimeapi.LinuxContainerResources
	host      host.Facts
	out       specs.LinuxResources
	notes     []string
}

func (l *limiter) bad(field, format string, args ...any) error {
	return invalid("linux.resources."+field, format, args...)
}

// needs returns an error if the host's cgroups don't have the controller for a limit.
func (l *limiter) needs(controller, field string) error {
	if l.host.Cgroup.Has(controller) {
		return nil
	}
	return l.bad(field, "this host has no %s controller: enable it (kernel command line: cgroup_enable=%s) or remove the limit", controller, controller)
}

func (l *limiter) cpu() error {
	cpu := specs.LinuxCPU{Cpus: l.asked.GetCpusetCpus(), Mems: l.asked.GetCpusetMems()}
	if shares := l.asked.GetCpuShares(); shares != 0 {
		if shares < 0 {
			return l.bad("cpu_shares", "%d is negative", shares)
		}
		// Without a cpu controller shares are ignored: a weight guarantees nothing.
		if n := uint64(shares); l.host.Cgroup.Has("cpu") {
			cpu.Shares = &n
		}
	}
	if period := l.asked.GetCpuPeriod(); period != 0 {
		if period < minPeriod || period > maxPeriod {
			return l.bad("cpu_period", "%d µs is not within %d…%d", period, minPeriod, maxPeriod)
		}
		if err := l.needs("cpu", "cpu_period"); err != nil {
			return err
		}
		n := uint64(period)
		cpu.Period = &n
	}
	// A negative quota is no limit.
	if quota := l.asked.GetCpuQuota(); quota != 0 {
		if quota > 0 && quota < minQuota {
			return l.bad("cpu_quota", "%d µs is less than the kernel's minimum of %d", quota, minQuota)
		}
		if err := l.needs("cpu", "cpu_quota"); err != nil {
			return err
		}
		if cpu.Period == nil {
			n := uint64(defaultPeriod)
			cpu.Period = &n
		}
		cpu.Quota = &quota
	}
	for _, set := range []struct{ field, list string }{{"cpuset_cpus", cpu.Cpus}, {"cpuset_mems", cpu.Mems}} {
		if set.list == "" {
			continue
		}
		if !cpuList.MatchString(set.list) {
			return l.bad(set.field, "%q is not a list such as 0-3,6", set.list)
		}
		if err := l.needs("cpuset", set.field); err != nil {
			return err
		}
	}
	if cpu != (specs.LinuxCPU{}) {
		l.out.CPU = &cpu
	}
	return nil
}

// memory sets the limits of memory and of memory with swap. Without a swap limit, a container with
// a memory limit gets no swap, or it could use that much swap again.
func (l *limiter) memory() error {
	limit, swap := l.asked.GetMemoryLimitInBytes(), l.asked.GetMemorySwapLimitInBytes()
	switch {
	case limit < -1:
		return l.bad("memory_limit_in_bytes", "%d is negative", limit)
	case swap < -1:
		return l.bad("memory_swap_limit_in_bytes", "%d is negative", swap)
	case swap > 0 && limit <= 0:
		return l.bad("memory_swap_limit_in_bytes", "needs memory_limit_in_bytes too, as it is the limit of both together")
	case swap > 0 && swap < limit:
		return l.bad("memory_swap_limit_in_bytes", "%d is less than the memory limit of %d, which it includes", swap, limit)
	}
	var memory specs.LinuxMemory
	if limit != 0 {
		if err := l.needs("memory", "memory_limit_in_bytes"); err != nil {
			return err
		}
		memory.Limit = &limit
		if swap == 0 {
			swap = limit
		}
	}
	if swap != 0 && l.host.Cgroup.Swap {
		memory.Swap = &swap
	}
	if swap > limit && limit > 0 && !l.host.Cgroup.Swap {
		l.notes = append(l.notes, fmt.Sprintf("container %q: the swap limit is ignored: this host does not account for swap", l.container))
	}
	if memory != (specs.LinuxMemory{}) {
		l.out.Memory = &memory
	}
	return nil
}

// hugePages ignores a limit of 0 for a page size that the host can't limit: the kubelet sends one
// for each size.
func (l *limiter) hugePages() error {
	for i, h := range l.asked.GetHugepageLimits() {
		if !slices.Contains(l.host.Cgroup.HugePages, h.GetPageSize()) {
			if h.GetLimit() == 0 {
				continue
			}
			return l.bad(fmt.Sprintf("hugepage_limits[%d]", i), "this host can't limit pages of %q: it supports %s", h.GetPageSize(), list(l.host.Cgroup.HugePages))
		}
		l.out.HugepageLimits = append(l.out.HugepageLimits, specs.LinuxHugepageLimit{Pagesize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return nil
}

func (l *limiter) unified() error {
	asked := l.asked.GetUnified()
	if len(asked) == 0 {
		return nil
	}
	if !l.host.Cgroup.Mode.Unified() {
		return l.bad("unified", "needs cgroup v2, and this host has %s: remove it", l.host.Cgroup.Mode)
	}
	for _, file := range slices.Sorted(maps.Keys(asked)) {
		if !unifiedFile.MatchString(file) {
			return l.bad("unified", "%q is not a cgroup file such as memory.high", file)
		}
	}
	l.out.Unified = maps.Clone(asked)
	return nil
}

// list formats values for a message.
func list(values []string) string {
	if len(values) == 0 {
		return "none"
	}
	return strings.Join(values, ", ")
}
