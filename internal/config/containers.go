package config

import "github.com/huskd/husk/internal/oci/spec"

// Containers configures what containers may use and how they are isolated.
type Containers struct {
	CgroupDriver string `key:"cgroup-driver" help:"what creates the cgroups of containers: cgroupfs (the OCI runtime) or systemd (for pods whose cgroup_parent is a slice). The kubelet queries this"`
	// DefaultCapabilities have the runtime spec's names after the check.
	DefaultCapabilities []string `key:"default-capabilities" help:"capabilities of containers, to which pods add and from which they drop. Containers of containerd and docker have NET_RAW, MKNOD and AUDIT_WRITE too"`
	SeccompDefault      bool     `key:"seccomp-default" help:"confine containers whose pod names no seccomp profile by the default profile, RuntimeDefault; with false they run unconfined, as below a kubelet without seccompDefault. Containers of CRI name their profile themselves"`
	// 4096 is OpenShift's podPidsLimit.
	PidsLimit          int    `key:"pids-limit" help:"maximum number of processes and threads in a container, also of a kubelet's pod; 0 for no limit"`
	PodPidsLimit       int    `key:"pod-pids-limit" help:"maximum number of processes and threads in a pod, but not of a kubelet's, which has podPidsLimit; 0 for no limit. All pods together leave the node what kube-reserved and system-reserved name as pid, or a tenth"`
	BlockIO            string `key:"blockio-config" help:"file with classes for block I/O, in the format of containerd and CRI-O, which pods select by annotation; empty for none"`
	RDT                string `key:"rdt-config" help:"file with classes for Intel RDT, likewise"`
	RestoreCheckpoints bool   `key:"restore-checkpoints" help:"restore a container whose image names a checkpoint. Its processes keep the privileges that they had, regardless of the pod's security context: enable it only if everyone who runs pods is trusted"`
}

// The values of cgroup-driver.
const (
	Cgroupfs = "cgroupfs"
	systemd  = "systemd"
)

// Systemd reports whether systemd creates the cgroups of pods whose parent is a slice.
func (c Containers) Systemd() bool { return c.CgroupDriver == systemd }

func (c *Containers) check(bad func(key, format string, args ...any)) {
	if c.CgroupDriver != Cgroupfs && c.CgroupDriver != systemd {
		bad("cgroup-driver", "%q is neither %s nor %s", c.CgroupDriver, Cgroupfs, systemd)
	}
	for key, limit := range map[string]int{"pids-limit": c.PidsLimit, "pod-pids-limit": c.PodPidsLimit} {
		if limit < 0 {
			bad(key, "%d: must be at least 0", limit)
		}
	}
	for i, name := range c.DefaultCapabilities {
		full, err := spec.Capability(name)
		if err != nil {
			bad("default-capabilities", "%w", err)
			continue
		}
		c.DefaultCapabilities[i] = full
	}
}
