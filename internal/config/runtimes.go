package config

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
)

// Runtime is a runtime handler, which pods select by its name.
type Runtime struct {
	Type   string `key:"type" help:"kind of runtime: oci, a program with the command line of runc, or shim, a program that implements containerd's shim protocol"`
	Path   string `key:"path" help:"path of the program; if empty, huskd looks in the standard directories for the handler's name or, for a shim, containerd-shim-NAME-v2 and -v1"`
	Config string `key:"config" help:"configuration file of the shim, such as gVisor's runsc.toml or Kata's configuration.toml; empty for the shim's default"`
	// Network is a lifecycle.Order.
	Network string `key:"network" help:"when pods are attached to the network: before-start, before any process exists, or after-start"`
}

// Shim reports whether the runtime is a shim.
func (r Runtime) Shim() bool { return r.Type == typeShim }

// newRuntime returns the defaults of a runtime.
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

A pod can select a runtime by name: with ` + "`runtimeClassName`" + ` in a manifest, or the handler of a RuntimeClass in a
cluster. Each table ` + "`[runtimes.NAME]`" + ` in the file adds one. huskd tests them when it starts; ` + "`husk doctor`" + ` lists
those that can't be used and why. Pods that name none get the first usable one of crun, runc, and then the others by
name.

    [runtimes.crun-next]
    path = "/opt/crun/bin/crun"

    [runtimes.gvisor]
    type = "shim"
    path = "/usr/local/bin/containerd-shim-runsc-v1"

[Runtimes](../runtimes.md) says what to install for each.

`

// handlerName matches the handler of a Kubernetes RuntimeClass, a DNS label.
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
		return errors.New("not a valid handler name: use at most 63 lower-case letters, digits and -")
	case r.Type != typeOCI && !r.Shim():
		return fmt.Errorf("type %q is neither oci nor shim", r.Type)
	case r.Config != "" && !r.Shim():
		return fmt.Errorf("config %q is only for type shim", r.Config)
	case r.Config != "" && !filepath.IsAbs(r.Config):
		return fmt.Errorf("config %q is not an absolute path", r.Config)
	case r.Network != beforeStart && r.Network != afterStart:
		return fmt.Errorf("network %q is neither %s nor %s", r.Network, beforeStart, afterStart)
	case r.Path != "" && !filepath.IsAbs(r.Path):
		return fmt.Errorf("path %q is not an absolute path", r.Path)
	}
	return nil
}
