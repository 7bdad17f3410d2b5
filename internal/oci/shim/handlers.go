package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/atomicfile"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pod"
)

// Handler is a shim that works on this host, as Find returns it.
type Handler struct {
	Name string `json:"name"`
	// Path is the path of the shim's program, which is named containerd-shim-NAME-VERSION by
	// convention.
	Path    string `json:"path"`
	Version string `json:"version"`
	// Config is the path of the shim's configuration file; empty for none.
	Config string `json:"config,omitempty"`
	// Old says that the shim is started in the way of before containerd 2.3.
	Old bool `json:"old,omitempty"`
	// Conmon is the path of conmon.
	Conmon string `json:"conmon"`
}

const shimPrefix = "containerd-shim-"

// gvisor is the name of gVisor's runtime.
const gvisor = "runsc"

// Runtime returns the runtime's name in the name of the shim's program: runsc, kata.
func (h Handler) Runtime() string {
	if h.Path == "" {
		return ""
	}
	name, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(h.Path), shimPrefix), "-")
	return name
}

// optionsType returns the type of the shim's configuration, by containerd's convention:
// io.containerd.runsc.v1.options.
func (h Handler) optionsType() string {
	name := strings.TrimPrefix(filepath.Base(h.Path), shimPrefix)
	return "io.containerd." + strings.ReplaceAll(name, "-", ".") + ".options"
}

// Handlers are shims by the names of CRI's runtime handlers.
type Handlers struct{ named map[string]handler }

type handler struct {
	Handler
	missing error
}

// Only returns Handlers with a single one.
func Only(h Handler) Handlers { return Handlers{map[string]handler{h.Name: {Handler: h}}} }

// Setting is the configuration of a handler.
type Setting struct {
	// Path is the path of the shim's program; empty to look for containerd-shim-NAME-v2 or -v1.
	Path string
	// Config is the path of the shim's configuration file; may be empty.
	Config string
}

// Find probes the shims of the handlers by running a container with each. It caches the results
// until a program is replaced or the host is booted.
func Find(ctx context.Context, cfg Config, settings map[string]Setting) Handlers {
	h := Handlers{map[string]handler{}}
	for name, setting := range settings {
		found, err := cfg.probeHandler(ctx, name, setting)
		if err != nil {
			err = errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("runtime handler %s can't be used: %v", name, err))
		}
		h.named[name] = handler{found, err}
	}
	return h
}

// Has reports whether there is a handler of that name.
func (h Handlers) Has(name string) bool {
	_, ok := h.named[name]
	return ok
}

// Names returns the names of all handlers, sorted.
func (h Handlers) Names() []string { return slices.Sorted(maps.Keys(h.named)) }

// Get returns a handler, or the reason why it can't be used.
func (h Handlers) Get(name string) (Handler, error) {
	found, ok := h.named[name]
	if !ok {
		return Handler{}, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("runtime handler %.80q is not a shim", name))
	}
	return found.Handler, found.missing
}

// Check returns an error if the handler can't run containers, with or without a user namespace.
func (h Handlers) Check(name string, userns bool) error {
	_, err := h.Get(name)
	if err == nil && userns {
		err = errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("runtime handler %s can't run containers in a user namespace: ask for none (in a pod: hostUsers: true)", name))
	}
	return err
}

// List returns the handlers, sorted by name.
func (h Handlers) List() []oci.Handler {
	var list []oci.Handler
	for _, name := range h.Names() {
		found := h.named[name]
		list = append(list, oci.Handler{Name: name, Runtime: found.Runtime(), Version: found.Version, Path: found.Path, Missing: found.missing})
	}
	return list
}

// probeResult is the cached result of a probe. It is valid until the host is booted or one of the
// files changes.
type probeResult struct {
	Boot    string  `json:"boot"`
	Files   []file  `json:"files"`
	Handler Handler `json:"handler"`
}

// file identifies a version of a file.
type file struct {
	Path  string    `json:"path"`
	Size  int64     `json:"size"`
	MTime time.Time `json:"mtime"`
}

func identify(path string) (file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return file{}, err
	}
	// UTC, as in a time decoded from JSON, to compare with.
	return file{path, info.Size(), info.ModTime().UTC()}, nil
}

// probeHandler probes the shim of a handler, or returns the cached result.
func (cfg Config) probeHandler(ctx context.Context, name string, s Setting) (Handler, error) {
	h := Handler{Name: name, Config: s.Config}
	var err error
	if h.Path, err = locateShim(name, s.Path); err != nil {
		return h, err
	}
	if h.Conmon = cfg.Conmon; h.Conmon == "" {
		h.Conmon = conmon.Locate("conmon")
	}
	if h.Conmon == "" {
		return h, errors.New("conmon is not installed: apt-get install conmon")
	}
	now := probeResult{Boot: cfg.Host.BootID}
	for _, path := range []string{h.Path, h.Conmon, h.Config} {
		if path == "" {
			continue
		}
		f, err := identify(path)
		if err != nil {
			return h, err
		}
		now.Files = append(now.Files, f)
	}
	cache := filepath.Join(cfg.StateDir, "handler-"+name+".json")
	var cached probeResult
	if raw, err := os.ReadFile(cache); err == nil && json.Unmarshal(raw, &cached) == nil {
		if cached.Boot == now.Boot && reflect.DeepEqual(cached.Files, now.Files) {
			return cached.Handler, nil
		}
	}
	if err := cfg.probe(ctx, &h); err != nil {
		// Only an attempt shows in which way a shim must be started.
		first := err
		h.Old = true
		if cfg.probe(ctx, &h) != nil {
			return h, first
		}
	}
	now.Handler = h
	if raw, err := json.Marshal(now); err == nil {
		_ = atomicfile.Write(cache, raw, 0o600) // on an error the next start probes again
	}
	return h, nil
}

// locateShim finds the program of a handler's shim.
func locateShim(name, path string) (string, error) {
	if path != "" {
		if !strings.HasPrefix(filepath.Base(path), shimPrefix) {
			return "", fmt.Errorf("%s is not named %sNAME-VERSION: name the shim's program", path, shimPrefix)
		}
		return path, nil
	}
	for _, version := range []string{"-v2", "-v1"} {
		if path := conmon.Locate(shimPrefix + name + version); path != "" {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s%s-v2 is not in %s: install it or set its path", shimPrefix, name, conmon.Path)
}

// tryLimit bounds the probe of one shim.
const tryLimit = time.Minute

// probe runs a container with the shim, from creation to deletion.
func (cfg Config) probe(ctx context.Context, h *Handler) error {
	ctx, cancel := context.WithTimeoutCause(ctx, tryLimit, fmt.Errorf("running a container took longer than %v", tryLimit))
	defer cancel()
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return err
	}
	h.Version = h.version(ctx, cfg.StateDir)
	dir, err := os.MkdirTemp(cfg.StateDir, "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	id := "husk-" + string(cfg.Instance) + "-probe-" + pod.Short(pod.NewID())
	if err := bundle.WriteProbe(dir, "/"+id, "", "/pause", "now"); err != nil {
		return err
	}
	return cfg.runOnce(ctx, *h, id, dir)
}

func (cfg Config) runOnce(ctx context.Context, h Handler, id, dir string) (err error) {
	d := New(cfg, Only(h))
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		if deleteErr := d.Delete(cleanup, id); err == nil {
			err = deleteErr
		}
	}()
	_, err = d.Create(ctx, oci.Create{ID: id, Bundle: dir, Handler: h.Name})
	if err == nil {
		err = d.Start(ctx, id)
	}
	var refused *oci.StartError
	if errors.As(err, &refused) {
		return refused // its message suffices
	}
	if err != nil {
		return err
	}
	exit, err := d.Wait(ctx, id)
	// The exit code isn't checked: gVisor's shim doesn't always learn it if the program exits at
	// once.
	if err == nil && exit.Lost {
		err = errors.New("the shim died while it ran a container")
	}
	return err
}

// parseVersion finds the version in what a shim prints: a line "Version: v2.4.2", or the last word
// of "… version 3.2.0".
func parseVersion(out string) string {
	for line := range strings.Lines(out) {
		lower := strings.ToLower(line)
		if i := strings.Index(lower, "version"); i >= 0 && !strings.Contains(lower, "go version") {
			if fields := strings.Fields(strings.TrimLeft(line[i+len("version"):], " :,")); len(fields) > 0 {
				return strings.TrimSuffix(fields[0], ",")
			}
		}
	}
	return ""
}
