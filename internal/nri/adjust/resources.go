package adjust

import (
	"github.com/containerd/nri/pkg/api"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// FromCRI converts CRI's limits for plugins. Zero means not set.
func FromCRI(r *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if r == nil {
		return nil
	}
	out := &api.LinuxResources{
		Memory: &api.LinuxMemory{Limit: set64(r.GetMemoryLimitInBytes()), Swap: set64(r.GetMemorySwapLimitInBytes())},
		Cpu: &api.LinuxCPU{
			Shares: setU64(r.GetCpuShares()), Quota: set64(r.GetCpuQuota()), Period: setU64(r.GetCpuPeriod()),
			Cpus: r.GetCpusetCpus(), Mems: r.GetCpusetMems(),
		},
		Unified: r.GetUnified(),
	}
	for _, h := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &api.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return out
}

// Override returns base, overridden by the CRI limits that are set. It modifies base.
func Override(base *api.LinuxResources, limits *runtimeapi.LinuxContainerResources) *api.LinuxResources {
	if base == nil {
		base = &api.LinuxResources{}
	}
	if len(limits.GetHugepageLimits()) > 0 {
		base.HugepageLimits = nil
	}
	if limits != nil {
		proto.Merge(base, FromCRI(limits))
	}
	return base
}

func set64(n int64) *api.OptionalInt64 {
	if n == 0 {
		return nil
	}
	return api.Int64(n)
}

func setU64(n int64) *api.OptionalUInt64 {
	if n == 0 {
		return nil
	}
	return api.UInt64(uint64(n))
}

// ToCRI converts the limits that a plugin requests for a running container. It returns an
// error for limits that can't be changed any more.
func ToCRI(r *api.LinuxResources) (*runtimeapi.LinuxContainerResources, error) {
	var rest specs.LinuxResources
	setNonCRI(&rest, r)
	memory, cpu := r.GetMemory(), r.GetCpu()
	switch {
	case rest.Memory != nil:
		return nil, bad("memory", "only limit and swap of a running container can be changed, not %s", memory)
	case rest.CPU != nil:
		return nil, bad("cpu", "the realtime limits of a running container can't be changed: %s", cpu)
	case rest.Pids != nil:
		return nil, bad("pids", "the limit of a running container can't be changed")
	case len(r.GetDevices()) > 0:
		return nil, bad("devices", "the devices of a running container can't be changed")
	case r.GetBlockioClass().GetValue() != "" || r.GetRdtClass().GetValue() != "":
		return nil, bad("resources", "the class of a running container can't be changed")
	}
	return criLimits(r), nil
}

// criLimits returns the limits that CRI has.
func criLimits(r *api.LinuxResources) *runtimeapi.LinuxContainerResources {
	memory, cpu := r.GetMemory(), r.GetCpu()
	out := &runtimeapi.LinuxContainerResources{
		CpuShares: int64(cpu.GetShares().GetValue()), CpuQuota: cpu.GetQuota().GetValue(), CpuPeriod: int64(cpu.GetPeriod().GetValue()),
		CpusetCpus: cpu.GetCpus(), CpusetMems: cpu.GetMems(),
		MemoryLimitInBytes: memory.GetLimit().GetValue(), MemorySwapLimitInBytes: memory.GetSwap().GetValue(),
		Unified: r.GetUnified(),
	}
	for _, h := range r.GetHugepageLimits() {
		out.HugepageLimits = append(out.HugepageLimits, &runtimeapi.HugepageLimit{PageSize: h.GetPageSize(), Limit: h.GetLimit()})
	}
	return out
}

// setNonCRI sets the limits that CRI doesn't have.
func setNonCRI(into *specs.LinuxResources, requested *api.LinuxResources) {
	from := requested.ToOCI()
	if from == nil {
		return
	}
	if m := from.Memory; m.Reservation != nil || m.Kernel != nil || m.KernelTCP != nil || m.Swappiness != nil || m.DisableOOMKiller != nil || m.UseHierarchy != nil { //nolint:staticcheck // NRI has kernel
		if into.Memory == nil {
			into.Memory = &specs.LinuxMemory{}
		}
		m.Limit, m.Swap = into.Memory.Limit, into.Memory.Swap
		into.Memory = m
	}
	if c := from.CPU; c.RealtimeRuntime != nil || c.RealtimePeriod != nil {
		if into.CPU == nil {
			into.CPU = &specs.LinuxCPU{}
		}
		into.CPU.RealtimeRuntime, into.CPU.RealtimePeriod = c.RealtimeRuntime, c.RealtimePeriod
	}
	if from.Pids != nil {
		into.Pids = from.Pids
	}
	into.Devices = append(into.Devices, from.Devices...)
}
