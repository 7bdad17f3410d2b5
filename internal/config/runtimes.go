package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

// Runtime is a runtime handler, which pods ask for by its name.
type Runtime struct {
	Type   string `key:"type" help:"how it is spoken to: oci, a program with the command line of runc, or shim, a program that speaks containerd's shim protocol"`
	Path   string `key:"path" help:"path of the program; if empty, the handler's name is looked for, of a shim containerd-shim-NAME-v2 and -v1"`
	Config string `key:"config" help:"file that the shim reads, such as gVisor's runsc.toml or Kata's configuration.toml; empty for its own choice"`
	// Network is a lifecycle.Order.
	Network string `key:"network" help:"when pods are attached to the network: before-start, before there is any process, or after-start"`
}

// Shim says that it speaks the shim protocol.
func (r Runtime) Shim() bool { return r.Type == typeShim }

// newRuntime returns the defaults.
func newRuntime() Runtime { return Runtime{Type: typeOCI, Network: beforeStart} }

const (
	runtimesKey = "runtimes"
	typeOCI     = "oci"
	typeShim    = "shim"
	beforeStart = "before-start"
	afterStart  = "after-start"
)

const runtimesReference = `
## Runtime handlers

A pod can ask for a runtime by name: ` + "`runtimeClassName`" + ` in a manifest, the handler of a RuntimeClass in a cluster.
Each table of the file, ` + "`[runtimes.NAME]`" + `, adds one. They are tried when huskd starts; ` + "`husk doctor`" + ` says
which can't be used and why. Pods that name none get the first that works of crun, runc, and then the others by name.

    [runtimes.crun-next]
    path = "/opt/crun/bin/crun"

    [runtimes.gvisor]
    type = "shim"
    path = "/usr/local/bin/containerd-shim-runsc-v1"

[Runtimes](../runtimes.md) tells what to install for which.

`

// handlerName is that of a Kubernetes RuntimeClass's handler, a DNS label.
var handlerName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)

// runtimes reads the tables below runtimesKey.
func runtimes(v any) (map[string]Runtime, error) {
	tables, ok := v.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s: must be tables, each [%s.NAME]", runtimesKey, runtimesKey)
	}
	var errs []error
	out := map[string]Runtime{}
	for _, name := range slices.Sorted(maps.Keys(tables)) {
		table, ok := tables[name].(map[string]any)
		if !ok {
			errs = append(errs, fmt.Errorf("%s.%s: must be a table, [%s.%s]", runtimesKey, name, runtimesKey, name))
			continue
		}
		r := newRuntime()
		for _, err := range fill(options(&r), table) {
			errs = append(errs, fmt.Errorf("%s.%s.%w", runtimesKey, name, err))
		}
		out[name] = r
	}
	return out, errors.Join(errs...)
}

func (r Runtime) check(name string) error {
	switch {
	case !handlerName.MatchString(name):
		return errors.New("not a handler's name: want lower-case letters, digits and -, at most 63")
	case r.Type != typeOCI && !r.Shim():
		return fmt.Errorf("type %q is not known: use oci or shim", r.Type)
	case r.Config != "" && !r.Shim():
		return fmt.Errorf("config %q is for type shim: an OCI runtime is configured by itself", r.Config)
	case r.Config != "" && !filepath.IsAbs(r.Config):
		return fmt.Errorf("config %q is not absolute", r.Config)
	case r.Network != beforeStart && r.Network != afterStart:
		return fmt.Errorf("network %q is neither %s nor %s", r.Network, beforeStart, afterStart)
	case r.Path != "" && !filepath.IsAbs(r.Path):
		return fmt.Errorf("path %q is not absolute", r.Path)
	}
	return nil
}
