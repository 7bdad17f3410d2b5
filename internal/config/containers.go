package config

import "fmt"

// Containers are what containers may be and how they are kept apart.
type Containers struct {
	CgroupDriver       string `key:"cgroup-driver" help:"who makes the cgroups of containers: cgroupfs, the runtimes themselves; or systemd, for pods whose cgroup_parent is a slice of its. The kubelet is told"`
	BlockIO            string `key:"blockio-config" help:"file of classes of block I/O, which pods name by annotations, as containerd and CRI-O read it; empty for none"`
	RDT                string `key:"rdt-config" help:"file of classes of Intel RDT, likewise"`
	RestoreCheckpoints bool   `key:"restore-checkpoints" help:"have a container be made of a checkpoint that is named in the place of its image. Its processes get the privileges that they had, whatever the pod's are: only where all who run pods are trusted"`
}

// The cgroup drivers.
const (
	cgroupfs = "cgroupfs"
	systemd  = "systemd"
)

// Systemd says whether systemd makes the cgroups of pods that are slices.
func (c Containers) Systemd() bool { return c.CgroupDriver == systemd }

func (c Containers) check() error {
	if c.CgroupDriver != cgroupfs && c.CgroupDriver != systemd {
		return fmt.Errorf("%q is neither %s nor %s", c.CgroupDriver, cgroupfs, systemd)
	}
	return nil
}
