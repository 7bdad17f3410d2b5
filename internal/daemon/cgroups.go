package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/cgroup/systemd"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// checkDriver checks that the host supports the configured cgroup driver. That of a kubelet's
// configuration is only a wish: a kubelet asks its runtime for the driver, and uses that.
func checkDriver(cfg *config.Config, facts host.Facts, log *slog.Logger) error {
	if !cfg.Systemd() || facts.Systemd {
		return nil
	}
	origin := cfg.Origin("cgroup-driver")
	if origin == "" {
		return errors.New("cgroup-driver: systemd is not the init of this host: use cgroupfs")
	}
	log.Warn("cgroup-driver: systemd is not the init of this host: cgroupfs is used", "asked", origin)
	cfg.CgroupDriver = config.Cgroupfs
	return nil
}

// openMonitors opens the cgroup for processes that outlive huskd. If that fails, they are started
// in the cgroup of huskd.
func openMonitors(d *daemon) {
	var err error
	if d.monitors, err = cgroup.OpenMonitors(d.facts.Cgroup, d.instance.Monitors()); err != nil {
		d.log.Warn("conmon, husk-bgp and husk-wireguard run in the cgroup of huskd", "error", err)
	}
}

// podCgroups are the cgroups of pods, as their sandboxes need them.
type podCgroups struct {
	tree    *cgroup.QoSTree
	systemd bool // the cgroup driver is systemd
	// pod and all are the numbers of processes and threads that a pod and all pods together may
	// have; 0 is no limit.
	pod, all int64
}

// Parent returns the cgroup that a cgroup_parent names: by its path or, with systemd, as a slice.
// The place of a slice follows from its name. A path without a leading slash begins at the root
// too.
func (c podCgroups) Parent(named string) (string, error) {
	switch {
	case c.systemd && systemd.IsSlice(named):
		return systemd.Path(path.Base(named))
	case !path.IsAbs(named) && systemd.IsSlice(named):
		return "", fmt.Errorf("%.80q is a slice of systemd: set cgroup-driver = \"systemd\", or name a path", named)
	}
	return path.Join("/", named), nil
}

func (c podCgroups) Create(path string, r *runtimeapi.LinuxContainerResources) error {
	if err := c.tree.Tree.Create(c.tree.Root(), cgroup.Limits{Pids: c.all}); err != nil {
		return err
	}
	return c.tree.Create(path, cgroup.Limits{
		CPUShares: uint64(r.GetCpuShares()), CPUQuota: r.GetCpuQuota(), CPUPeriod: uint64(r.GetCpuPeriod()),
		Memory: r.GetMemoryLimitInBytes(), Pids: c.pod,
	})
}

func (c podCgroups) List() ([]string, error) { return c.tree.List() }

func (c podCgroups) Remove(path string) error { return c.tree.Remove(context.Background(), path) }

// adoptCgroups restores the CPU shares of the pods that run since before the restart.
func (d *daemon) adoptCgroups() {
	for _, st := range d.sandboxes.List() {
		if st.State != sandboxstate.Stopped && st.State != sandboxstate.Removing {
			d.cgroups.Adopt(d.sandboxes.Cgroup(st), uint64(st.Config.GetLinux().GetResources().GetCpuShares()))
		}
	}
	d.cgroups.RemoveEmpty(pod.QOSClasses...)
}
