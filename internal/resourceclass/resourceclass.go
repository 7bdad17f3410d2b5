// Package resourceclass resolves the block I/O and Intel RDT classes that pods name by annotations.
// The node's administrator defines them in files.
package resourceclass

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/intel/goresctrl/pkg/blockio"
	"github.com/intel/goresctrl/pkg/rdt"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Config holds the paths of the files; an empty path is no file.
type Config struct{ BlockIO, RDT string }

// Classes resolves classes. There can be one in a process: the library keeps a file's content in
// global variables.
type Classes struct{ cfg Config }

// Open reads the files, and configures the RDT classes in the kernel's resctrl file system.
func Open(cfg Config) (*Classes, error) {
	if cfg.BlockIO != "" {
		if err := blockio.SetConfigFromFile(cfg.BlockIO, true); err != nil {
			return nil, fmt.Errorf("blockio-config: %s: %w", cfg.BlockIO, err)
		}
	}
	if cfg.RDT != "" {
		if err := rdt.Initialize(""); err != nil {
			return nil, fmt.Errorf("rdt-config: this host doesn't support it: %w", err)
		}
		if err := rdt.SetConfigFromFile(cfg.RDT, true); err != nil {
			return nil, fmt.Errorf("rdt-config: %s: %w", cfg.RDT, err)
		}
	}
	return &Classes{cfg}, nil
}

// Limits returns the limits of the classes that the annotations of a container or of its pod name,
// such as io.kubernetes.cri.blockio-class and .rdt-class. Without a file its annotations are
// ignored.
func (c *Classes) Limits(container string, own, pod map[string]string) (io *specs.LinuxBlockIO, cache *specs.LinuxIntelRdt, err error) {
	fail := func(err error) error {
		return errdefs.ErrInvalidArgument.WithMessage(err.Error())
	}
	if c.cfg.BlockIO != "" {
		class, err := blockio.ContainerClassFromAnnotations(container, own, pod)
		if err == nil && class != "" {
			io, err = blockio.OciLinuxBlockIO(class)
		}
		if err != nil {
			return nil, nil, fail(err)
		}
	}
	if c.cfg.RDT != "" {
		class, err := rdt.ContainerClassFromAnnotations(container, own, pod)
		if err != nil {
			return nil, nil, fail(err)
		}
		if class != "" {
			cache = &specs.LinuxIntelRdt{ClosID: class}
		}
	}
	return io, cache, nil
}
