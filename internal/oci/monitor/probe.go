package monitor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/atomicfile"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/bundle"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/pod"
)

// Rejected is a runtime that can't be used, and why.
type Rejected struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

const remedy = "install one with: apt-get install runc conmon"

// probeLimit bounds the probe of one runtime. On an emulated machine that had just booted, one took
// more than 30 s, and a runtime that is rejected stays so until huskd is started again.
const probeLimit = 2 * time.Minute

// self is huskd's own program: another version may probe otherwise.
const self = "/proc/self/exe"

// probeResult is the cached result of a probe. It is valid until the host is booted or one of the
// programs changes.
type probeResult struct {
	Boot     string     `json:"boot"`
	Programs []program  `json:"programs"`
	Runtime  Runtime    `json:"runtime"`
	Rejected []Rejected `json:"rejected"`
}

// program identifies a version of a program. Path is empty if it wasn't found.
type program struct {
	Name  string    `json:"name"`
	Path  string    `json:"path"`
	Size  int64     `json:"size"`
	MTime time.Time `json:"mtime"`
}

// Find returns the first runtime of the configuration that can run a container on this host, and
// why those before it can't. It probes each by running a container, and caches the result until a
// program, huskd's included, is replaced or the host is booted. Without conmon or a runtime that
// works the error is errdefs.ErrUnavailable and says what to install.
func Find(ctx context.Context, cfg Config) (Runtime, []Rejected, error) {
	return find(ctx, cfg, "runtime.json")
}

// find caches the result in the named file.
func find(ctx context.Context, cfg Config, file string) (Runtime, []Rejected, error) {
	monitor, candidates := cfg.programs()
	now := probeResult{Boot: cfg.Host.BootID, Programs: append([]program{locate(self), monitor}, candidates...)}
	cache := filepath.Join(cfg.StateDir, file)
	var cached probeResult
	if raw, err := os.ReadFile(cache); err == nil && json.Unmarshal(raw, &cached) == nil {
		if cached.Boot == now.Boot && reflect.DeepEqual(cached.Programs, now.Programs) {
			return cached.Runtime, cached.Rejected, nil
		}
	}
	if monitor.Path == "" {
		return Runtime{}, nil, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("%s is not installed: %s", monitor.Name, remedy))
	}
	for _, c := range candidates {
		runtime, err := cfg.probe(ctx, c, monitor.Path)
		if ctx.Err() != nil {
			return Runtime{}, now.Rejected, context.Cause(ctx)
		}
		if err != nil {
			now.Rejected = append(now.Rejected, Rejected{c.Name, err.Error()})
			continue
		}
		now.Runtime = runtime
		if raw, err := json.Marshal(now); err == nil {
			_ = atomicfile.Write(cache, raw, 0o600) // on an error the next start probes again
		}
		return runtime, now.Rejected, nil
	}
	var why []string
	for _, r := range now.Rejected {
		why = append(why, r.Name+": "+r.Why)
	}
	return Runtime{}, now.Rejected, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("no OCI runtime works here (%s); %s", strings.Join(why, "; "), remedy))
}

// programs looks up conmon and the candidates.
func (cfg Config) programs() (monitor program, candidates []program) {
	name := cfg.Conmon
	if name == "" {
		name = "conmon"
	}
	monitor = locate(name)
	names := cfg.Runtimes
	if len(names) == 0 {
		names = preferred
	}
	for _, name := range names {
		candidates = append(candidates, locate(name))
	}
	return monitor, candidates
}

// locate looks up a program by its path or name.
func locate(name string) program {
	path := conmon.Locate(name)
	info, err := os.Stat(path)
	if err != nil {
		return program{Name: name}
	}
	// UTC, as in a time decoded from JSON, to compare with.
	return program{Name: name, Path: path, Size: info.Size(), MTime: info.ModTime().UTC()}
}

// probe runs a container with the candidate, from creation to deletion.
func (cfg Config) probe(ctx context.Context, c program, monitor string) (Runtime, error) {
	if c.Path == "" {
		return Runtime{}, errors.New("not installed")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, fmt.Errorf("running a container took longer than %v", probeLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, c.Path, "--version")
	cmd.Env = []string{"PATH=" + conmon.Path}
	out, err := cmd.Output()
	if err != nil {
		return Runtime{}, fmt.Errorf("%s --version: %w", c.Path, err)
	}
	runtime := Runtime{Path: c.Path, Conmon: monitor}
	runtime.Name, runtime.Version = parseVersion(string(out))
	if runtime.Name == "" {
		return Runtime{}, fmt.Errorf("%s --version says %q: not an OCI runtime", c.Path, oci.OneLine(string(out)))
	}
	if runtime.Name == "runsc" {
		// runsc reports the sandbox as the container's process: a signal to one container would hit
		// all of the pod.
		return Runtime{}, errors.New("gVisor's runsc runs pods by its shim only: use a runtime handler of type shim")
	}
	if err := cfg.runOnce(ctx, runtime, ""); err != nil {
		return runtime, err
	}
	if err := cfg.runInUserNamespace(ctx, runtime); err != nil {
		runtime.NoUserNamespaces = err.Error()
	}
	return runtime, ctx.Err()
}

func (cfg Config) runInUserNamespace(ctx context.Context, runtime Runtime) error {
	if !cfg.Host.IDMap {
		return errors.New("the kernel or the file system can't map the owners of files")
	}
	return bundle.WithProbeUserns(func(path string) error { return cfg.runOnce(ctx, runtime, path) })
}

// parseVersion returns "runc" and "1.1.5" for "runc version 1.1.5\n…".
func parseVersion(out string) (name, version string) {
	line, _, _ := strings.Cut(out, "\n")
	name, version, ok := strings.Cut(strings.TrimSpace(line), " version ")
	if !ok || bundle.CheckID(name) != nil { // the name becomes a directory's
		return "", ""
	}
	return name, version
}

// runOnce creates, starts and deletes a container of the pause program, which exits at once. The
// container joins the user namespace at the path user, if that isn't empty.
func (cfg Config) runOnce(ctx context.Context, runtime Runtime, user string) (err error) {
	dir, err := bundle.MakeProbe(cfg.StateDir)
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	id := "husk-" + string(cfg.Instance) + "-probe-" + pod.Short(pod.NewID())
	if err := bundle.WriteProbe(dir, "/"+id, user, "/pause", "now"); err != nil {
		return err
	}
	d := New(cfg, Only(runtime, nil))
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupLimit)
		defer cancel()
		if deleteErr := d.Delete(cleanup, id); err == nil {
			err = deleteErr
		}
	}()
	if _, err := d.Create(ctx, oci.Create{ID: id, Bundle: dir}); err != nil {
		var refused *oci.StartError
		if errors.As(err, &refused) {
			return refused // its message suffices
		}
		return err
	}
	if err := d.Start(ctx, id); err != nil {
		return err
	}
	exit, err := d.Wait(ctx, id)
	if err == nil && (exit.Code != 0 || exit.Lost) {
		err = fmt.Errorf("the exit code of the container was %d, want 0", exit.Code)
	}
	return err
}
