package monitor

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/oci"
)

// Handlers are the runtimes of a host by the names of CRI's runtime handlers.
type Handlers struct {
	// Default is the runtime of pods that name no handler. If there is none, Missing is the reason.
	Default Runtime
	Missing error
	// Rejected are the runtimes that are preferred to the default but can't be used.
	Rejected []Rejected

	// Also are the names of the handlers of another driver, for error messages.
	Also []string

	named map[string]handler
}

type handler struct {
	Runtime
	missing error
}

// Only returns Handlers with a default and no others.
func Only(runtime Runtime, missing error) Handlers {
	h := Handlers{Default: runtime, Missing: missing, named: map[string]handler{}}
	if missing == nil {
		h.named[runtime.Name] = handler{Runtime: runtime}
	}
	return h
}

// FindHandlers probes the runtimes of the handlers in paths, by name. For an empty path it looks up
// the name. The default is what Find returns, with the paths in place of the preferred programs of
// the same name, and the others as further candidates. The default is also a handler under the name
// that its program reports, unless paths has that name.
func FindHandlers(ctx context.Context, cfg Config, paths map[string]string) Handlers {
	program := func(name string) string {
		if paths[name] != "" {
			return paths[name]
		}
		return name
	}
	names := slices.Sorted(maps.Keys(paths))
	first := cfg
	first.Runtimes = nil
	for _, name := range append(slices.Clone(preferred), names...) {
		if path := program(name); !slices.Contains(first.Runtimes, path) {
			first.Runtimes = append(first.Runtimes, path)
		}
	}
	runtime, rejected, missing := Find(ctx, first)
	h := Only(runtime, missing)
	h.Rejected = rejected
	for _, name := range names {
		one := cfg
		one.Runtimes = []string{program(name)}
		if missing == nil && locate(program(name)).Path == runtime.Path {
			h.named[name] = handler{Runtime: runtime}
			continue
		}
		found, why, err := find(ctx, one, "runtime-"+name+".json")
		if err != nil && len(why) > 0 {
			err = errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("runtime handler %s can't be used: %s: %s", name, why[0].Name, why[0].Why))
		}
		h.named[name] = handler{found, err}
	}
	return h
}

// Get returns the runtime of a handler; the default for an empty name.
func (h Handlers) Get(name string) (Runtime, error) {
	if name == "" {
		return h.Default, h.Missing
	}
	found, ok := h.named[name]
	if !ok {
		return Runtime{}, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("runtime handler %.80q is not known here: %s", name, h.known()))
	}
	return found.Runtime, found.missing
}

// Check returns an error if the handler can't run containers, with or without a user namespace.
func (h Handlers) Check(name string, userns bool) error {
	runtime, err := h.Get(name)
	if err == nil && userns && runtime.NoUserNamespaces != "" {
		err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s can't run containers in a user namespace here: %s: ask for none (in a pod: hostUsers: true)", runtime.Name, runtime.NoUserNamespaces))
	}
	return err
}

// byRuntimeName returns a runtime whose program reports name, even if it belongs to no handler.
func (h Handlers) byRuntimeName(name string) Runtime {
	for _, candidate := range h.named {
		if candidate.Name == name {
			return candidate.Runtime
		}
	}
	return Runtime{Name: name, Path: locate(name).Path}
}

func (h Handlers) known() string {
	names := slices.Concat(slices.Collect(maps.Keys(h.named)), h.Also)
	if len(names) == 0 {
		return "there is none"
	}
	slices.Sort(names)
	return fmt.Sprintf("use %s, or none for the default", strings.Join(slices.Compact(names), ", "))
}

// List returns the handlers: first the default, with an empty name, then the others by name.
func (h Handlers) List() []oci.Handler {
	list := []oci.Handler{handler{h.Default, h.Missing}.describe("")}
	for _, name := range slices.Sorted(maps.Keys(h.named)) {
		list = append(list, h.named[name].describe(name))
	}
	return list
}

func (h handler) describe(name string) oci.Handler {
	return oci.Handler{Name: name, Runtime: h.Name, Version: h.Version, Path: h.Path, UserNamespaces: h.missing == nil && h.NoUserNamespaces == "", Missing: h.missing}
}
