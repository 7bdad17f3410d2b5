package daemon

import (
	"errors"
	"fmt"
	"path"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cgroup/systemd"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// checkDriver checks that the host supports the configured cgroup driver.
func checkDriver(cfg config.Config, facts host.Facts) error {
	if cfg.Systemd() && !facts.Systemd {
		return errors.New("cgroup-driver: systemd is not the init of this host: use cgroupfs")
	}
	return nil
}

// parents returns a function that turns a cgroup_parent into the path of a cgroup. With the systemd
// driver it may name a slice, whose path follows from its name.
func parents(systemdDriver bool) func(named string) (string, error) {
	return func(named string) (string, error) {
		switch {
		case systemdDriver && systemd.IsSlice(named):
			return systemd.Path(path.Base(named))
		case !path.IsAbs(named):
			return "", fmt.Errorf("%.80q is a slice of systemd: set cgroup-driver = \"systemd\", or name a path", named)
		}
		return named, nil
	}
}

func (d *daemon) createCgroup(path string, r *runtimeapi.LinuxContainerResources) error {
	return d.cgroups.Create(path, cgroup.Limits{
		CPUShares: uint64(r.GetCpuShares()), CPUQuota: r.GetCpuQuota(), CPUPeriod: uint64(r.GetCpuPeriod()),
		Memory: r.GetMemoryLimitInBytes(),
	})
}

// adoptCgroups restores the CPU shares of the pods that run since before the restart.
func (d *daemon) adoptCgroups() {
	for _, st := range d.sandboxes.List() {
		if st.State != sandboxstate.Stopped && st.State != sandboxstate.Removing {
			d.cgroups.Adopt(d.sandboxes.Cgroup(st), uint64(st.Config.GetLinux().GetResources().GetCpuShares()))
		}
	}
	d.cgroups.RemoveEmpty(pod.QOSClasses...)
}
