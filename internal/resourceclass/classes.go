// Package resourceclass knows what the classes of block I/O and of Intel RDT are that
// pods may name by annotations, from files that the node's administrator writes.
package resourceclass

import (
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/intel/goresctrl/pkg/blockio"
	"github.com/intel/goresctrl/pkg/rdt"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// Config names the files; an empty name is none.
type Config struct{ BlockIO, RDT string }

// Classes are those of a process: the library that reads the files keeps one of
// each.
type Classes struct{ cfg Config }

// Open reads the files, and has the kernel's resctrl file system have the classes
// of RDT.
func Open(cfg Config) (*Classes, error) {
	if cfg.BlockIO != "" {
		if err := blockio.SetConfigFromFile(cfg.BlockIO, true); err != nil {
			return nil, fmt.Errorf("blockio-config: %s: %w", cfg.BlockIO, err)
		}
	}
	if cfg.RDT != "" {
		if err := rdt.Initialize(""); err != nil {
			return nil, fmt.Errorf("rdt-config: this host can't do it: %w", err)
		}
		if err := rdt.SetConfigFromFile(cfg.RDT, true); err != nil {
			return nil, fmt.Errorf("rdt-config: %s: %w", cfg.RDT, err)
		}
	}
	return &Classes{cfg}, nil
}

// Limits returns what the classes stand for that annotations of a container or
// of its pod name, io.kubernetes.cri.blockio-class and .rdt-class among them.
// Where no file was given, annotations name nothing.
func (c *Classes) Limits(container string, own, pod map[string]string) (io *specs.LinuxBlockIO, cache *specs.LinuxIntelRdt, err error) {
	fail := func(err error) error {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("container %q: %v", container, err))
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
