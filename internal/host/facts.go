// Package host probes what this host can do. It asks the kernel and doesn't infer anything from
// versions. Packages that decide by it (oci/spec, container, doctor) take the Facts as a value.
package host

import "slices"

// CgroupMode says which cgroup hierarchies have the controllers.
type CgroupMode string

const (
	// CgroupNone is a host without a mounted cgroup hierarchy: no container can run.
	CgroupNone CgroupMode = "none"
	// CgroupV1 is one hierarchy per controller.
	CgroupV1 CgroupMode = "v1"
	// CgroupHybrid is v1 with a v2 hierarchy at /sys/fs/cgroup/unified, whose controllers, if any,
	// aren't used.
	CgroupHybrid CgroupMode = "hybrid"
	// CgroupV2 is the one unified hierarchy.
	CgroupV2 CgroupMode = "v2"
)

// Unified reports whether the controllers are on cgroup v2.
func (m CgroupMode) Unified() bool { return m == CgroupV2 }

// Cgroup describes the host's cgroups.
type Cgroup struct {
	Mode CgroupMode `json:"mode"`
	// Controllers are those that can be used for a container, sorted: "cpu", "memory", "pids", … In
	// hybrid mode they are those of v1.
	Controllers []string `json:"controllers"`
	// Mounts are the mount points of the v1 controllers and of named hierarchies such as
	// "name=systemd". The v2 hierarchy is "": the only entry on v2, one of several in hybrid mode.
	Mounts map[string]string `json:"mounts"`
	// Swap says that swap can be limited (memory.memsw.limit_in_bytes, memory.swap.max).
	Swap bool `json:"swap"`
	// HugePages are the page sizes that can be limited, smallest first and as in the runtime spec:
	// "2MB", "1GB".
	HugePages []string `json:"hugePages,omitempty"`
}

// Has reports whether controller can be used for a container.
func (c Cgroup) Has(controller string) bool { return slices.Contains(c.Controllers, controller) }

// Facts are the results of Probe. The zero value is a host that can do nothing.
type Facts struct {
	// Kernel is the release: "6.18.44-…".
	Kernel string `json:"kernel"`
	// BootID is different after each boot.
	BootID string `json:"bootID"`
	// CPUs is the number of CPUs that are online. Memory is in bytes.
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memory"`
	Cgroup Cgroup `json:"cgroup"`
	// Systemd says that systemd is the init process.
	Systemd bool `json:"systemd"`
	// OOMScoreAdj is the oom_score_adj of this process, which its children inherit.
	OOMScoreAdj int `json:"oomScoreAdj"`
	// OOMScoreFloor is the lowest oom_score_adj that a container can get: -1000, or OOMScoreAdj if
	// this process can't lower it (no CAP_SYS_RESOURCE). Runtimes fail on a lower one, so callers
	// clamp to it.
	OOMScoreFloor int `json:"oomScoreFloor"`
	// Capabilities is the bounding set of this process, a bit for each capability that its children
	// can have.
	Capabilities uint64 `json:"capabilities"`
	// Throttles are the directories of sysfs about the thermal throttling of CPUs. From them a
	// container could learn what others compute.
	Throttles []string `json:"throttles,omitempty"`
	// Seccomp says that the kernel supports seccomp filters. AppArmor and SELinux say that the
	// security module is enabled.
	Seccomp  bool `json:"seccomp"`
	AppArmor bool `json:"appArmor"`
	SELinux  bool `json:"selinux"`
	// Overlay says that the kernel supports overlayfs.
	Overlay bool `json:"overlay"`
	// IDMap says that mounts of the probed directory's file system can be ID-mapped, which user
	// namespaces of pods need.
	IDMap bool `json:"idmap"`
	// RecursiveReadOnly says that a mount can be made read-only with all mounts below it
	// (mount_setattr, Linux 5.12).
	RecursiveReadOnly bool `json:"recursiveReadOnly"`
	// IPv6 says that the kernel supports IPv6, even if a sysctl disables it on an interface.
	IPv6 bool `json:"ipv6"`
}
