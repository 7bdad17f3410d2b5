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
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/conmon"
	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/internal/pod"
	"github.com/huskd/husk/internal/userns"
)

// Rejected is a runtime that is not used, and why.
type Rejected struct {
	Name string `json:"name"`
	Why  string `json:"why"`
}

const remedy = "install one with: apt-get install runc conmon"

// probeLimit bounds the trial of one runtime.
const probeLimit = 30 * time.Second

// finding is what Find remembers. It holds as long as the host has not been
// booted and all programs in question are the same files.
type finding struct {
	Boot     string     `json:"boot"`
	Programs []program  `json:"programs"`
	Runtime  Runtime    `json:"runtime"`
	Rejected []Rejected `json:"rejected"`
}

// program identifies a candidate: a path of "" says that it wasn't found.
type program struct {
	Name  string    `json:"name"`
	Path  string    `json:"path"`
	Size  int64     `json:"size"`
	MTime time.Time `json:"mtime"`
}

// Find returns the first runtime of the configuration that can run a container
// on this host, and why those before it can't. It tries by running one, and
// remembers the outcome until a program is replaced or the host booted. Without
// conmon or any runtime the error is errdefs.ErrUnavailable and says what to
// install.
func Find(ctx context.Context, cfg Config) (Runtime, []Rejected, error) {
	return find(ctx, cfg, "runtime.json")
}

// find remembers the outcome in the named file.
func find(ctx context.Context, cfg Config, file string) (Runtime, []Rejected, error) {
	monitor, candidates := cfg.programs()
	now := finding{Boot: cfg.Host.BootID, Programs: append([]program{monitor}, candidates...)}
	cache := filepath.Join(cfg.StateDir, file)
	var before finding
	if raw, err := os.ReadFile(cache); err == nil && json.Unmarshal(raw, &before) == nil {
		if before.Boot == now.Boot && reflect.DeepEqual(before.Programs, now.Programs) {
			return before.Runtime, before.Rejected, nil
		}
	}
	if monitor.Path == "" {
		return Runtime{}, nil, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("%s is not installed: %s", monitor.Name, remedy))
	}
	for _, c := range candidates {
		runtime, err := cfg.try(ctx, c, monitor.Path)
		if ctx.Err() != nil {
			return Runtime{}, now.Rejected, context.Cause(ctx)
		}
		if err != nil {
			now.Rejected = append(now.Rejected, Rejected{c.Name, err.Error()})
			continue
		}
		now.Runtime = runtime
		if raw, err := json.Marshal(now); err == nil {
			_ = replace(cache, raw) // else the next start tries again
		}
		return runtime, now.Rejected, nil
	}
	var why []string
	for _, r := range now.Rejected {
		why = append(why, r.Name+": "+r.Why)
	}
	return Runtime{}, now.Rejected, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("no OCI runtime works here (%s); %s", strings.Join(why, "; "), remedy))
}

// programs looks for conmon and the candidates.
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

// locate finds a program by its path or its name.
func locate(name string) program {
	paths := []string{name}
	if !filepath.IsAbs(name) {
		paths = nil
		for _, dir := range filepath.SplitList(conmon.Path) {
			paths = append(paths, filepath.Join(dir, name))
		}
	}
	for _, path := range paths {
		info, err := os.Stat(path)
		if err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			// UTC, as it comes back from the file.
			return program{Name: name, Path: path, Size: info.Size(), MTime: info.ModTime().UTC()}
		}
	}
	return program{Name: name}
}

// try runs a container with the candidate from beginning to end.
func (cfg Config) try(ctx context.Context, c program, monitor string) (Runtime, error) {
	if c.Path == "" {
		return Runtime{}, errors.New("not installed")
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, fmt.Errorf("it took longer than %v to run a container", probeLimit))
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
		return Runtime{}, fmt.Errorf("%s --version says %q: not an OCI runtime", c.Path, oneLine(string(out)))
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
	ns, err := userns.Open(userns.Whole(probeIDs, probeIDs))
	if err != nil {
		return err
	}
	defer ns.Close()
	return cfg.runOnce(ctx, runtime, fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), ns.Fd()))
}

// probeIDs is how many IDs a pod's user namespace has, and the first of those on
// the host that the trial takes: no file or process has them.
const probeIDs = 1 << 16

// parseVersion takes "runc" and "1.1.5" from "runc version 1.1.5\n…".
func parseVersion(out string) (name, version string) {
	line, _, _ := strings.Cut(out, "\n")
	name, version, ok := strings.Cut(strings.TrimSpace(line), " version ")
	if !ok || checkID(name) != nil { // the name becomes that of a directory
		return "", ""
	}
	return name, version
}

// runOnce creates, starts and deletes a container of the pause program, which
// ends at once. With a user namespace that is joined.
func (cfg Config) runOnce(ctx context.Context, runtime Runtime, user string) (err error) {
	if err := os.MkdirAll(cfg.StateDir, 0o711); err != nil {
		return err
	}
	bundle, err := os.MkdirTemp(cfg.StateDir, "probe-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bundle)
	id := "husk-" + string(cfg.Instance) + "-probe-" + pod.Short(pod.NewID())
	// The root of a user namespace has to find its way through.
	for _, dir := range []string{cfg.StateDir, bundle} {
		if err := os.Chmod(dir, 0o711); err != nil {
			return err
		}
	}
	if err := writeProbe(bundle, "/"+id, user, "/pause", "now"); err != nil {
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
	if _, err := d.Create(ctx, oci.Create{ID: id, Bundle: bundle}); err != nil {
		var refused *oci.StartError
		if errors.As(err, &refused) {
			return refused // its words are enough
		}
		return err
	}
	if err := d.Start(ctx, id); err != nil {
		return err
	}
	exit, err := d.Wait(ctx, id)
	if err == nil && (exit.Code != 0 || exit.Lost) {
		err = fmt.Errorf("a container that should end with 0 ended with %d", exit.Code)
	}
	return err
}

// writeProbe makes the smallest bundle that has what matters: namespaces, a
// cgroup and a program.
func writeProbe(bundle, cgroup, user string, args ...string) error {
	rootfs := filepath.Join(bundle, "rootfs")
	for _, dir := range []string{"proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(rootfs, dir), 0o755); err != nil {
			return err
		}
	}
	if err := pause.Write(filepath.Join(rootfs, "pause")); err != nil {
		return err
	}
	spec := specs.Spec{
		Version: "1.0.0",
		Process: &specs.Process{Args: args, Cwd: "/", NoNewPrivileges: true},
		// The remount for read-only drops the noexec that /run often has.
		Root: &specs.Root{Path: "rootfs", Readonly: true},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}},
		},
	}
	if user != "" {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: user})
		ids := []specs.LinuxIDMapping{{HostID: probeIDs, Size: probeIDs}}
		spec.Linux.UIDMappings, spec.Linux.GIDMappings = ids, ids
	}
	raw, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(bundle, specFile), raw, 0o600)
}
