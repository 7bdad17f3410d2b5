// Package volume sets up the volumes of pods on the host and takes them down.
package volume

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/huskd/husk/internal/manifest"
)

// Volumes sets up volumes below two directories: Root on disk, and State for what a reboot may
// remove.
type Volumes struct{ Root, State string }

// dirs returns the directories of a pod. It checks that the UID, which comes from a manifest, is a
// valid file name.
func (v Volumes) dirs(uid string) ([]string, error) {
	if uid == "" || uid == "." || uid == ".." || strings.ContainsAny(uid, "/\x00") {
		return nil, fmt.Errorf("pod uid %q is not a valid directory name", uid)
	}
	// Other users must not read the files below, which may be secrets.
	for _, base := range []string{v.Root, v.State} {
		if err := os.MkdirAll(filepath.Join(base, "pods"), 0o700); err != nil {
			return nil, err
		}
	}
	return []string{
		filepath.Join(v.Root, "pods", uid, "volumes"),
		filepath.Join(v.State, "pods", uid, "volumes"),
		filepath.Join(v.State, "pods", uid, "parts"),   // mounts of subPaths
		filepath.Join(v.Root, "pods", uid, "messages"), // termination messages
	}, nil
}

// SetUp sets up a volume and returns its path on the host. A volume that exists already stays as it
// is. A new emptyDir is owned by the group, if group is not nil. Calls for the same pod must not
// overlap.
func (v Volumes) SetUp(uid string, volume corev1.Volume, group *int64) (string, error) {
	dirs, err := v.dirs(uid)
	if err != nil {
		return "", err
	}
	var path string
	switch {
	case volume.HostPath != nil:
		path, err = volume.HostPath.Path, prepareHostPath(volume.HostPath)
	case volume.Ephemeral != nil, volume.EmptyDir != nil && volume.EmptyDir.Medium == corev1.StorageMediumDefault:
		path = filepath.Join(dirs[0], volume.Name)
		err = createEmptyDir(path, group)
	case volume.EmptyDir != nil:
		path = filepath.Join(dirs[1], volume.Name)
		err = mountMemory(path, volume.EmptyDir, group)
	default:
		err = errors.New("this kind of volume is not supported")
	}
	if err != nil {
		return "", fmt.Errorf("volume %s: %w", volume.Name, err)
	}
	return path, nil
}

// EmptyDir returns the path of an emptyDir on disk. It may not exist yet.
func (v Volumes) EmptyDir(uid, name string) string {
	return filepath.Join(v.Root, "pods", uid, "volumes", name)
}

// createEmptyDir creates a directory that all users may write to, as in kubelet. It does nothing if
// path exists, because the pod may have changed the mode of the directory.
func createEmptyDir(path string, group *int64) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	making := path + ".new" // names of volumes contain no dot
	if err := os.MkdirAll(making, 0o755); err != nil {
		return err
	}
	if err := setOwner(making, group, 0o777); err != nil {
		return err
	}
	return os.Rename(making, path)
}

func mountMemory(path string, dir *corev1.EmptyDirVolumeSource, group *int64) error {
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	if mounted, err := mountinfo.Mounted(path); err != nil || mounted {
		return err
	}
	// A kubelet keeps tmpfs's default mode, which has the sticky bit.
	kind, mode, options := "tmpfs", 0o1777, []string{}
	if dir.Medium != corev1.StorageMediumMemory {
		kind, mode = "hugetlbfs", 0o777
		if page, ok := manifest.MediumPageSize(dir.Medium); ok {
			options = append(options, fmt.Sprintf("pagesize=%d", page.Value()))
		}
	}
	if limit := dir.SizeLimit; limit != nil && limit.Value() > 0 {
		options = append(options, fmt.Sprintf("size=%d", limit.Value()))
	}
	if group != nil {
		mode |= unix.S_ISGID
		options = append(options, fmt.Sprintf("gid=%d", *group))
	}
	options = append(options, fmt.Sprintf("mode=%#o", mode))
	if err := unix.Mount(kind, path, kind, unix.MS_NOSUID|unix.MS_NODEV, strings.Join(options, ",")); err != nil {
		return fmt.Errorf("mount %s at %s: %w", kind, path, err)
	}
	return nil
}

// prepareHostPath checks the type of a hostPath volume. It creates what an …OrCreate type asks for.
func prepareHostPath(v *corev1.HostPathVolumeSource) error {
	kind := corev1.HostPathUnset
	if v.Type != nil {
		kind = *v.Type
	}
	switch kind {
	case corev1.HostPathUnset:
		return nil
	case corev1.HostPathDirectoryOrCreate:
		if err := os.MkdirAll(v.Path, 0o755); err != nil {
			return err
		}
	case corev1.HostPathFileOrCreate:
		f, err := os.OpenFile(v.Path, os.O_RDONLY|os.O_CREATE, 0o644)
		if err != nil {
			return err
		}
		_ = f.Close()
	}
	info, err := os.Stat(v.Path)
	if err != nil {
		return fmt.Errorf("hostPath type check failed: it isn't of type %s: %w", kind, err)
	}
	mode := info.Mode()
	is := map[corev1.HostPathType]bool{
		corev1.HostPathDirectoryOrCreate: mode.IsDir(),
		corev1.HostPathDirectory:         mode.IsDir(),
		corev1.HostPathFileOrCreate:      mode.IsRegular(),
		corev1.HostPathFile:              mode.IsRegular(),
		corev1.HostPathSocket:            mode&fs.ModeSocket != 0,
		corev1.HostPathCharDev:           mode&fs.ModeCharDevice != 0,
		corev1.HostPathBlockDev:          mode&fs.ModeDevice != 0 && mode&fs.ModeCharDevice == 0,
	}
	if !is[kind] {
		return fmt.Errorf("hostPath type check failed: %s is not of type %s", v.Path, kind)
	}
	return nil
}

// TearDown removes the volumes of a pod and releases its claims, whose files stay. It first
// unmounts everything below them, so that it deletes no files behind a mount.
func (v Volumes) TearDown(uid string) error {
	dirs, err := v.dirs(uid)
	if err != nil {
		return err
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		if err := unmountBelow(dir); err != nil {
			return err
		}
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove volumes: %w", err)
		}
		_ = os.Remove(filepath.Dir(dir)) // fails if the directory has other files
	}
	return v.release(uid)
}

func unmountBelow(dir string) error {
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	mounts, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return fmt.Errorf("remove volumes: %w", err)
	}
	for i := len(mounts) - 1; i >= 0; i-- {
		if err := unix.Unmount(mounts[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", mounts[i].Mountpoint, err)
		}
	}
	return nil
}
