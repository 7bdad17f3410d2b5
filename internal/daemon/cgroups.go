package daemon

import (
	"errors"
	"fmt"
	"path"

	"github.com/huskd/husk/internal/cgroup/systemd"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/host"
)

// checkDriver looks for what the configured cgroup driver needs.
func checkDriver(cfg config.Config, facts host.Facts) error {
	if cfg.Systemd() && !facts.Systemd {
		return errors.New("cgroup-driver: systemd is not the init of this host: use cgroupfs")
	}
	return nil
}

// parents returns how a cgroup_parent names a cgroup: by its path or, with
// systemd, as a slice, whose place follows from its name.
func parents(driven bool) func(named string) (string, error) {
	return func(named string) (string, error) {
		switch {
		case driven && systemd.IsSlice(named):
			return systemd.Path(path.Base(named))
		case !path.IsAbs(named):
			return "", fmt.Errorf("%.80q is a slice of systemd: set cgroup-driver = \"systemd\", or name a path", named)
		}
		return named, nil
	}
}
