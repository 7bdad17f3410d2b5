package container

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/oci/spec"
)

// configDevices returns the host's device nodes that the config names. A directory stands for all
// nodes below it.
func configDevices(devices []*runtimeapi.Device) ([]spec.Device, error) {
	var found []spec.Device
	for _, d := range devices {
		below, err := nodes(d.GetHostPath())
		if err != nil {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("device %.80q: it can't be found: %v", d.GetHostPath(), errors.Unwrap(err)))
		}
		if len(below) == 0 {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("device %.80q: it is not a device, and none is below it", d.GetHostPath()))
		}
		for _, node := range below {
			node.Path = filepath.Join(d.GetContainerPath(), strings.TrimPrefix(node.Path, d.GetHostPath()))
			found = append(found, spec.Device{LinuxDevice: node, Access: d.GetPermissions()})
		}
	}
	return found, nil
}

// hostDevices returns the device nodes of /dev, for a privileged container, but those that every
// container has of its own.
func hostDevices() []spec.Device {
	all, _ := nodes("/dev")
	var found []spec.Device
	for _, node := range all {
		if strings.HasPrefix(node.Path, "/dev/pts/") || strings.HasPrefix(node.Path, "/dev/shm/") ||
			strings.HasPrefix(node.Path, "/dev/mqueue/") || node.Path == "/dev/console" || node.Path == "/dev/ptmx" {
			continue
		}
		found = append(found, spec.Device{LinuxDevice: node, Access: "rwm"})
	}
	return found
}

// nodes returns the device nodes at or below path. It follows a symlink at path, but none below.
func nodes(path string) ([]specs.LinuxDevice, error) {
	resolved, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	var found []specs.LinuxDevice
	err = filepath.WalkDir(resolved, func(at string, d fs.DirEntry, err error) error {
		if err != nil {
			if at == resolved {
				return err
			}
			return nil // it has gone, or can't be read
		}
		if d.Type()&fs.ModeDevice == 0 {
			return nil
		}
		if node, ok := node(at); ok {
			node.Path = path + strings.TrimPrefix(at, resolved)
			found = append(found, node)
		}
		return nil
	})
	return found, err
}

func node(path string) (specs.LinuxDevice, bool) {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return specs.LinuxDevice{}, false
	}
	kind := "c"
	if st.Mode&unix.S_IFMT == unix.S_IFBLK {
		kind = "b"
	}
	mode := fs.FileMode(st.Mode & 0o777)
	return specs.LinuxDevice{
		Path:     path,
		Type:     kind,
		Major:    int64(unix.Major(st.Rdev)),
		Minor:    int64(unix.Minor(st.Rdev)),
		FileMode: &mode,
		UID:      &st.Uid,
		GID:      &st.Gid,
	}, true
}
