package daemon

import (
	"context"
	"errors"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/monitor"
	"github.com/huskd/husk/internal/oci/shim"
	"github.com/huskd/husk/internal/sandbox/sandboxstate"
)

// handlers are all runtime handlers: OCI runtimes and shims. A shim, which is always configured,
// hides an OCI runtime of the same name that was found.
type handlers struct {
	monitor.Handlers
	shims    shim.Handlers
	runtimes map[string]config.Runtime
}

// RuntimeSandbox reports whether the handler is a shim, which makes its own sandbox.
func (h handlers) RuntimeSandbox(name string) bool { return h.shims.Has(name) }

// Order returns the order that is configured for a handler.
func (h handlers) Order(name string) sandboxstate.Order {
	return sandboxstate.Order(h.runtimes[name].Network)
}

// List returns the handlers: the default first, the others by name.
func (h handlers) List() []oci.Handler {
	list := slices.DeleteFunc(h.Handlers.List(), func(w oci.Handler) bool { return h.shims.Has(w.Name) })
	list = append(list, h.shims.List()...)
	slices.SortFunc(list, func(a, b oci.Handler) int { return strings.Compare(a.Name, b.Name) })
	return list
}

// Check returns an error if a handler can't be used, or not with a user namespace.
func (h handlers) Check(name string, userns bool) error {
	if h.shims.Has(name) {
		return h.shims.Check(name, userns)
	}
	return h.Handlers.Check(name, userns)
}

// findHandlers tries each configured handler.
func (d *daemon) findHandlers(ctx context.Context) handlers {
	paths, settings := map[string]string{}, map[string]shim.Setting{}
	for name, r := range d.cfg.Runtimes {
		if r.Shim() {
			settings[name] = shim.Setting{Path: r.Path, Config: r.Config}
		} else {
			paths[name] = r.Path
		}
	}
	h := handlers{monitor.FindHandlers(ctx, d.monitor(), paths), shim.Find(ctx, d.shim(), settings), d.cfg.Runtimes}
	h.Also = h.shims.Names()
	for _, h := range h.List() {
		switch {
		case h.Missing != nil && h.Name == "":
			d.log.Error("no container can be started", "error", h.Missing)
		case h.Missing != nil:
			d.log.Error("pods with this runtime handler can't be started", "handler", h.Name, "error", h.Missing)
		}
	}
	return h
}

func (d *daemon) monitor() monitor.Config {
	return monitor.Config{StateDir: filepath.Join(d.cfg.State, "monitor"), Instance: d.instance, Host: d.facts, Systemd: d.cfg.Systemd(), Monitors: d.monitors}
}

func (d *daemon) shim() shim.Config {
	return shim.Config{StateDir: filepath.Join(d.cfg.State, "shim"), Instance: d.instance, Host: d.facts, Monitors: d.monitors}
}

// drivers passes each call to the driver that runs the container.
type drivers struct {
	handlers handlers
	monitor  *monitor.Driver
	shim     *shim.Driver
}

// driver is the part that both drivers implement alike.
type driver interface {
	container.Runtime
	container.Sessions
}

func (d *daemon) drivers() drivers {
	return drivers{d.handlers, monitor.New(d.monitor(), d.handlers.Handlers), shim.New(d.shim(), d.handlers.shims)}
}

// inside implements stats.GuestUsage for the containers of shims, whose cgroup may be empty.
func (d *daemon) inside(cgroup string) (oci.Usage, bool) {
	id := path.Base(cgroup)
	if !d.driver.shim.Has(id) {
		return oci.Usage{}, false
	}
	u, err := d.driver.shim.Usage(context.Background(), id)
	return u, err == nil
}

// of returns the driver that runs a container.
func (d drivers) of(id string) driver {
	if d.shim.Has(id) {
		return d.shim
	}
	return d.monitor
}

func (d drivers) Create(ctx context.Context, c oci.Create) (oci.Process, error) {
	switch shim := d.handlers.shims.Has(c.Handler); {
	case shim && c.Restore != "":
		return oci.Process{}, errNoCRIU
	case shim:
		return d.shim.Create(ctx, c)
	}
	return d.monitor.Create(ctx, c)
}

// Delete asks both drivers: the record that says which one ran the container may be lost.
func (d drivers) Delete(ctx context.Context, id string) error {
	return errors.Join(d.shim.Delete(ctx, id), d.monitor.Delete(ctx, id))
}

func (d drivers) Start(ctx context.Context, id string) error { return d.of(id).Start(ctx, id) }

func (d drivers) Signal(ctx context.Context, id string, sig syscall.Signal) error {
	return d.of(id).Signal(ctx, id, sig)
}

func (d drivers) KillAll(ctx context.Context, id string) error { return d.of(id).KillAll(ctx, id) }

func (d drivers) Wait(ctx context.Context, id string) (oci.Exit, error) {
	return d.of(id).Wait(ctx, id)
}

func (d drivers) Exec(ctx context.Context, e oci.Exec) (int, error) { return d.of(e.ID).Exec(ctx, e) }

func (d drivers) Attach(ctx context.Context, id string, s oci.Streams) error {
	return d.of(id).Attach(ctx, id, s)
}

func (d drivers) ReopenLog(ctx context.Context, id string) error { return d.of(id).ReopenLog(ctx, id) }

func (d drivers) Update(ctx context.Context, id string, limits *specs.LinuxResources) error {
	return d.of(id).Update(ctx, id, limits)
}

// Checkpoint fails for containers that a shim runs: only OCI runtimes use CRIU.
func (d drivers) Checkpoint(ctx context.Context, id, into string, whileStopped func() error) error {
	if d.shim.Has(id) {
		return errNoCRIU
	}
	return d.monitor.Checkpoint(ctx, id, into, whileStopped)
}

var errNoCRIU = errdefs.ErrNotImplemented.WithMessage("a runtime of type shim can't checkpoint or restore: use a runtime handler of type oci")
