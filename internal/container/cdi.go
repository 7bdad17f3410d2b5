package container

import (
	"errors"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// injectCDI adds the devices that the config names to a spec.
func injectCDI(config *runtimeapi.ContainerConfig, into *specs.Spec) error {
	var names []string
	for _, d := range config.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	return InjectCDI(names, into)
}

// InjectCDI adds the devices with these names to a spec, as the node's CDI files in /etc/cdi and
// /var/run/cdi define them.
func InjectCDI(names []string, into *specs.Spec) error {
	if len(names) == 0 {
		return nil
	}
	known, err := cdi.NewCache(cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("CDI: %w", err)
	}
	missing, err := known.InjectDevices(into, names...)
	switch {
	case len(missing) > 0:
		var reasons []error
		for path, errs := range known.GetErrors() {
			reasons = append(reasons, fmt.Errorf("%s is ignored: %w", path, errors.Join(errs...)))
		}
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("CDI_devices: no CDI file of this node defines %.80q%s", missing, because(reasons)))
	case err != nil:
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("CDI_devices: %v", err))
	}
	return nil
}

func because(reasons []error) string {
	if len(reasons) == 0 {
		return ""
	}
	return fmt.Sprintf(" (%v)", errors.Join(reasons...))
}
