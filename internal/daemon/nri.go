package daemon

import (
	"context"

	"github.com/intel/goresctrl/pkg/blockio"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/nri"
	"github.com/huskd/husk/internal/nri/adjust"
	"github.com/huskd/husk/internal/sandbox"
	"github.com/huskd/husk/internal/selinux"
)

// openNRI opens NRI and returns its hooks, which are nil if NRI is off or fails.
func (d *daemon) openNRI() (pods sandbox.Hooks, containers container.Hooks) {
	if d.cfg.NRISocket == "" {
		return nil, nil
	}
	var err error
	d.nri, err = nri.New(nri.Config{
		Socket: d.cfg.NRISocket, Plugins: d.cfg.NRIDir, Required: d.cfg.NRINeeded,
		Node: adjust.Node{
			Host: d.facts, InjectCDI: container.InjectCDI, Relabel: selinux.Policy{}.Relabel,
			BlockIO: func(class string) (*specs.LinuxBlockIO, error) {
				io, _, err := d.classes.Limits("", map[string]string{blockio.BlockioContainerAnnotation: class}, nil)
				return io, err
			},
			Knows: func(handler, version string) bool {
				return d.handlers.SupportsSpec(context.Background(), handler, version)
			},
		},
		Log: d.log,
	})
	if err != nil {
		d.log.Error("NRI is off: no plugin can register", "error", err)
		return nil, nil
	}
	return d.nri.Pods(), d.nri.Hooks()
}

// startNRI starts the configured plugins and lets others register.
func (d *daemon) startNRI() error {
	if d.nri == nil {
		return nil
	}
	return d.nri.Start(d.sandboxes, d.containers)
}
