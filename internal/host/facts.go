// Package host says what this host can do, found out by asking the kernel and
// never assumed from versions. Whoever decides (oci/spec, container, doctor)
// takes the Facts as a value; only Probe touches the world.
package host

import "slices"

// CgroupMode says which cgroup hierarchies hold the controllers.
type CgroupMode string

const (
	// CgroupNone is a host without any mounted cgroup hierarchy: no limit can
	// be set and no container run.
	CgroupNone CgroupMode = "none"
	// CgroupV1 is one hierarchy per controller.
	CgroupV1 CgroupMode = "v1"
	// CgroupHybrid is v1 with a v2 hierarchy at /sys/fs/cgroup/unified that
	// has no controller worth using.
	CgroupHybrid CgroupMode = "hybrid"
	// CgroupV2 is the one unified hierarchy.
	CgroupV2 CgroupMode = "v2"
)

// Unified says whether the controllers are those of cgroup v2.
func (m CgroupMode) Unified() bool { return m == CgroupV2 }

// Cgroup is what the host's cgroups offer.
type Cgroup struct {
	Mode CgroupMode `json:"mode"`
	// Controllers that can be used for a container, sorted: "cpu", "memory",
	// "pids", … In hybrid mode those of the v2 hierarchy are not among them.
	Controllers []string `json:"controllers"`
	// Mounts has the mount point of each v1 controller, and that of each named
	// hierarchy as "name=systemd". With v2 it has one entry, for "". In hybrid
	// mode "" is the v2 hierarchy.
	Mounts map[string]string `json:"mounts"`
	// Swap says that memory and swap together can be limited
	// (memory.memsw.limit_in_bytes, memory.swap.max).
	Swap bool `json:"swap"`
	// HugePages are the page sizes for which a limit can be set, as the
	// runtime spec spells them, smallest first: "2MB", "1GB".
	HugePages []string `json:"hugePages,omitempty"`
}

// Has says whether controller can be used for a container.
func (c Cgroup) Has(controller string) bool { return slices.Contains(c.Controllers, controller) }

// Facts are what was found. The zero value is a host that can do nothing.
type Facts struct {
	// Kernel is the release: "6.18.44-…".
	Kernel string `json:"kernel"`
	// BootID is different after each boot. Everything under /run is keyed by it.
	BootID string `json:"bootID"`
	// CPUs that are online, and Memory in bytes.
	CPUs   int    `json:"cpus"`
	Memory int64  `json:"memory"`
	Cgroup Cgroup `json:"cgroup"`
	// Systemd says that systemd is the init, so that it owns the cgroup tree.
	// Husk uses cgroupfs all the same.
	Systemd bool `json:"systemd"`
	// OOMScoreAdj is this process's own, which its children inherit.
	OOMScoreAdj int `json:"oomScoreAdj"`
	// OOMScoreFloor is the lowest oom_score_adj that a container can be given:
	// -1000, or OOMScoreAdj where lowering it is refused (no CAP_SYS_RESOURCE).
	// A runtime asked for less fails, so callers clamp to it.
	OOMScoreFloor int `json:"oomScoreFloor"`
	// Capabilities has a bit for each capability that this process can give to a
	// child: its bounding set.
	Capabilities uint64 `json:"capabilities"`
	// Seccomp says that the kernel takes seccomp filters; AppArmor and SELinux
	// that the module is there and enabled.
	Seccomp  bool `json:"seccomp"`
	AppArmor bool `json:"appArmor"`
	SELinux  bool `json:"selinux"`
	// Overlay says that the kernel has overlayfs.
	Overlay bool `json:"overlay"`
	// IDMap says that mounts of the probed directory's file system can be
	// idmapped, which user namespaces for pods need.
	IDMap bool `json:"idmap"`
	// RecursiveReadOnly says that a mount can be made read-only with all below
	// it (mount_setattr, Linux 5.12).
	RecursiveReadOnly bool `json:"recursiveReadOnly"`
	// IPv6 says that the kernel has it, whatever an interface's sysctl says.
	IPv6 bool `json:"ipv6"`
}
