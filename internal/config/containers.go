package config

import "fmt"

// Containers configures what containers may use and how they are isolated.
type Containers struct {
	CgroupDriver       string `key:"cgroup-driver" help:"what creates the cgroups of containers: cgroupfs (the OCI runtime) or systemd (for pods whose cgroup_parent is a slice). The kubelet queries this"`
	BlockIO            string `key:"blockio-config" help:"file with classes for block I/O, in the format of containerd and CRI-O, which pods select by annotation; empty for none"`
	RDT                string `key:"rdt-config" help:"file with classes for Intel RDT, likewise"`
	RestoreCheckpoints bool   `key:"restore-checkpoints" help:"restore a container whose image names a checkpoint. Its processes keep the privileges that they had, regardless of the pod's security context: enable it only if everyone who runs pods is trusted"`
}

// The values of cgroup-driver.
const (
	cgroupfs = "cgroupfs"
	systemd  = "systemd"
)

// Systemd reports whether systemd creates the cgroups of pods whose parent is a slice.
func (c Containers) Systemd() bool { return c.CgroupDriver == systemd }

func (c Containers) check() error {
	if c.CgroupDriver != cgroupfs && c.CgroupDriver != systemd {
		return fmt.Errorf("%q is neither %s nor %s", c.CgroupDriver, cgroupfs, systemd)
	}
	return nil
}
