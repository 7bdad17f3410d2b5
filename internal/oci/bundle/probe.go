package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/huskd/husk/internal/oci/pause"
	"github.com/huskd/husk/internal/userns"
)

// probeIDs is the number of IDs in a probe's user namespace, and the first of the host's IDs that
// it maps to. No file or process has those.
const probeIDs = 1 << 16

// WithProbeUserns calls fn with the path of a user namespace for a probe's container, which exists
// until fn returns.
//
// The path is /proc/PID/ns/user. runc from 1.2 on compares the mappings of the spec with those of
// the namespace at the path, and takes any path that begins with /proc/PID/, even /proc/PID/fd/N,
// for a namespace of that process (GetUserNamespaceMappings, libcontainer/internal/userns in 1.4).
func WithProbeUserns(fn func(path string) error) error {
	return userns.Hold(userns.Whole(probeIDs, probeIDs), 0, func(pid int) error {
		return fn(fmt.Sprintf("/proc/%d/ns/user", pid))
	})
}

// MakeProbe makes a directory below parent for the bundle of a probe. The root of the user
// namespace of WithProbeUserns can pass through both.
func MakeProbe(parent string) (string, error) {
	if err := userns.MakeDir(parent, probeIDs); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(parent, "probe-")
	if err != nil {
		return "", err
	}
	return dir, userns.MakeDir(dir, probeIDs)
}

// WriteProbe writes the bundle of a minimal container, with namespaces, a cgroup and a program, to
// probe a runtime with. The container joins the user namespace at the path user, one of
// WithProbeUserns, if that isn't empty.
func WriteProbe(dir, cgroup, user string, args ...string) error {
	rootfs := filepath.Join(dir, "rootfs")
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
		// Read-only, because the remount for that also drops the noexec that /run often has.
		Root: &specs.Root{Path: "rootfs", Readonly: true},
		Mounts: []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs"}},
		Linux: &specs.Linux{
			CgroupsPath: cgroup,
			Resources:   &specs.LinuxResources{}, // the Go versions of Kata's shim panic without
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
	return os.WriteFile(filepath.Join(dir, SpecFile), raw, 0o600)
}
