// Package infra runs the infra processes of pods: package pause's program as PID 1 of a PID
// namespace that containers share. Driver starts most of them itself, and others by an OCI runtime:
// docs/decisions/0031 says which, and why.
//
// A process that Driver starts itself has no capabilities and can't gain any, runs as a user that
// no image has, is confined by a seccomp filter of four system calls, and sees a read-only file
// system with nothing but its program. It exits with huskd until it is in its cgroup, by which
// Remove finds it after a crash.
package infra

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/cgroup/systemd"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/internal/oci/spec"
	"github.com/huskd/husk/internal/pidfd"
	"github.com/huskd/husk/internal/userns"
)

// Runtime runs containers. All calls but Create and Start are idempotent.
type Runtime interface {
	Create(ctx context.Context, c oci.Create) (oci.Process, error)
	Start(ctx context.Context, id string) error
	Wait(ctx context.Context, id string) (oci.Exit, error)
	Delete(ctx context.Context, id string) error
}

// Driver starts and ends infra processes.
type Driver struct {
	Host    host.Facts
	Runtime Runtime
}

// Request describes an infra process.
type Request struct {
	ID string // of the sandbox
	// Dir is a directory for the files of the process. Its parent must exist.
	Dir      string
	Sandbox  *runtimeapi.PodSandboxConfig
	Hostname string
	// Handler is the runtime handler, and RuntimeSandbox says that its runtime has to know the
	// sandbox before the pod's containers.
	Handler        string
	RuntimeSandbox bool
	// IDs are the users and groups of the user namespace in Namespaces.
	IDs        userns.Mapping
	Namespaces spec.Namespaces
	Labels     spec.Labels
	// Cgroup is the cgroup of the process and of nothing else.
	Cgroup string
}

func (r Request) rootfs() string { return filepath.Join(r.Dir, "rootfs") }

// native reports whether Driver starts the process itself. It can't enter a user namespace, ask
// systemd for a scope, or set a label.
func (d Driver) native(r Request) bool {
	_, scope := systemd.Unit(r.Cgroup)
	return !r.RuntimeSandbox && r.Namespaces.User == "" && !scope && r.Labels == (spec.Labels{}) && d.Host.Seccomp
}

// Start starts the process. If it fails, Remove removes what is left.
func (d Driver) Start(ctx context.Context, r Request) (oci.Process, error) {
	_, group := r.IDs.Root()
	if err := userns.MakeDir(r.Dir, group); err != nil {
		return oci.Process{}, err
	}
	if err := os.Mkdir(r.rootfs(), 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return oci.Process{}, err
	}
	if err := pause.Write(filepath.Join(r.rootfs(), program)); err != nil {
		return oci.Process{}, err
	}
	if d.native(r) {
		return d.startNative(r)
	}
	return d.startByRuntime(ctx, r)
}

func (d Driver) startByRuntime(ctx context.Context, r Request) (oci.Process, error) {
	// The runtime makes mount points in it as root of the user namespace.
	uid, gid := r.IDs.Root()
	if err := os.Chown(r.rootfs(), uid, gid); err != nil {
		return oci.Process{}, err
	}
	guest := ""
	if r.RuntimeSandbox {
		guest = r.Hostname
	}
	result, err := spec.Infra(spec.InfraRequest{
		Guest:       guest,
		SandboxID:   r.ID,
		Sandbox:     r.Sandbox,
		Host:        d.Host,
		Rootfs:      r.rootfs(),
		Args:        []string{program},
		Namespaces:  r.Namespaces,
		Labels:      r.Labels,
		CgroupsPath: r.Cgroup,
	})
	if err != nil {
		return oci.Process{}, err
	}
	data, err := json.Marshal(result.Spec)
	if err != nil {
		return oci.Process{}, err
	}
	if err := os.WriteFile(filepath.Join(r.Dir, "config.json"), data, 0o600); err != nil {
		return oci.Process{}, err
	}
	process, err := d.Runtime.Create(ctx, oci.Create{ID: r.ID, Bundle: r.Dir, Handler: r.Handler})
	if err != nil {
		return oci.Process{}, err
	}
	return process, d.Runtime.Start(ctx, r.ID)
}

// Wait returns once the process of the sandbox id, whose files are in dir, has exited.
func (d Driver) Wait(ctx context.Context, id, dir string, p oci.Process) (oci.Exit, error) {
	cgroup, err := nativeCgroup(dir)
	switch {
	case err != nil:
		return oci.Exit{}, err
	case cgroup == "":
		return d.Runtime.Wait(ctx, id)
	}
	return oci.Exit{}, waitNative(ctx, p)
}

// Remove kills the process of the sandbox id, whose files are in dir, and removes its cgroup and
// what a runtime has of it. p is zero if it isn't known. Remove can be repeated. The caller removes
// dir.
func (d Driver) Remove(ctx context.Context, id, dir string, p oci.Process) error {
	cgroup, err := nativeCgroup(dir)
	switch {
	case err != nil:
	case cgroup == "":
		err = d.Runtime.Delete(ctx, id)
	case !strings.Contains(filepath.Base(cgroup), id): // damaged; the pod's cgroup is removed with its children
		err = pidfd.End(ctx, p)
	default:
		err = d.removeNative(ctx, cgroup, p)
	}
	if err != nil {
		return fmt.Errorf("end infra process: %w", err)
	}
	return nil
}

// nativeCgroup returns the cgroup of a process that Driver has started itself; empty for others.
func nativeCgroup(dir string) (string, error) {
	cgroup, err := os.ReadFile(filepath.Join(dir, cgroupFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(cgroup), err
}
