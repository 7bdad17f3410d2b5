// Package rootfs mounts the root filesystems of containers: the layers of an
// image, shared and read-only, below a writable layer of the container's own.
//
// A writable layer lives as long as its mount. It is never synced to disk, so after a
// reboot its content may be damaged and is deleted.
package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/userns"
)

// The names that Mount uses in a container's directory.
const (
	mountPoint = "rootfs"
	upperDir   = "upper"
	workDir    = "work"
	emptyDir   = "empty" // a second lower directory where the kernel wants two
	mappedDir  = "owned" // the layers, ID-mapped to the owner
)

// Spec describes a root filesystem.
type Spec struct {
	// Dir is the container's own directory. Mount creates it if it doesn't exist, so that
	// no user but root and the Owner's group passes through it. It must not be on an
	// overlay filesystem.
	Dir string
	// Lower are the directories of the image's layers, topmost first.
	Lower []string
	// ReadOnly leaves out the writable layer.
	ReadOnly bool
	// Owner maps the owners of files; nil doesn't map them.
	Owner *Owner
	// Label is the SELinux label of all files; empty without SELinux.
	Label string
}

// Owner is a user namespace, to whose IDs the owners of files in the image are mapped.
type Owner struct {
	Namespace string // path
	// UID and GID are the host's IDs for its user and group 0.
	UID, GID int
}

// Path is where Mount mounts the root filesystem of the container that owns dir.
func Path(dir string) string { return filepath.Join(dir, mountPoint) }

// Upper is the writable layer of the container that owns dir.
func Upper(dir string) string { return filepath.Join(dir, upperDir) }

// Mount mounts a root filesystem and returns its path. If it is already mounted, by
// an earlier run of huskd, it is left as it is. A writable layer that isn't mounted
// is left from a crash or a reboot: Mount replaces it by an empty one.
func Mount(spec Spec) (string, error) {
	path, group := Path(spec.Dir), 0
	if spec.Owner != nil {
		group = spec.Owner.GID
	}
	if err := userns.MakeDir(spec.Dir, group); err != nil {
		return "", fmt.Errorf("root filesystem: %w", err)
	}
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", fmt.Errorf("root filesystem: %w", err)
	}
	mounted, err := isMounted(spec.Dir)
	if err != nil || mounted {
		return path, err
	}
	if err := discard(spec.Dir); err != nil {
		return "", err
	}
	if err := mount(spec, path); err != nil {
		_ = discard(spec.Dir) // the next Mount or Unmount tries again
		return "", err
	}
	return path, nil
}

// Unmount undoes Mount and deletes the writable layer. It completes a Mount or
// Unmount that a crash interrupted, and does nothing if nothing is left.
func Unmount(dir string) error {
	path := Path(dir)
	for {
		// Detach, because a submount or another process's open file must not prevent the
		// removal of a container.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not a mount point, or no longer: there may be several mounts on it
		}
		if err != nil {
			return fmt.Errorf("root filesystem: %w", &fs.PathError{Op: "unmount", Path: path, Err: err})
		}
	}
	if err := discard(dir); err != nil {
		return err
	}
	err := os.Remove(path)
	if errors.Is(err, unix.ENOTEMPTY) {
		err = removeStray(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("root filesystem: %w", err)
	}
	return nil
}

// removeStray removes the mount point with files that are in it, not in the root filesystem. A
// runtime that doesn't see the mount, because it runs in a mount namespace of its own, makes such
// files. removeStray works on a copy of the mount without what is mounted in it, so it can't delete
// files of another mount.
func removeStray(path string) error {
	tree, err := unix.OpenTree(unix.AT_FDCWD, path, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer unix.Close(tree)
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return err
	}
	if st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0 {
		return &fs.PathError{Op: "remove", Path: path, Err: unix.EBUSY}
	}
	bare := fmt.Sprintf("/proc/self/fd/%d", tree)
	entries, err := os.ReadDir(bare)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(bare, e.Name())); err != nil {
			return err
		}
	}
	return os.Remove(path)
}

// discard deletes the writable layer.
func discard(dir string) error {
	if err := unmapLower(dir); err != nil {
		return err
	}
	for _, name := range []string{upperDir, workDir, emptyDir} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("writable layer: %w", err)
		}
	}
	return nil
}

// isMounted reports whether something is mounted on the mount point in dir. An
// overlay always has its own device number.
func isMounted(dir string) (bool, error) {
	var outside, inside unix.Stat_t
	if err := unix.Stat(dir, &outside); err != nil {
		return false, &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if err := unix.Stat(Path(dir), &inside); err != nil {
		return false, &fs.PathError{Op: "stat", Path: Path(dir), Err: err}
	}
	return outside.Dev != inside.Dev, nil
}

func mount(spec Spec, path string) error {
	lower, err := spec.mapLower()
	if err != nil {
		return err
	}
	// The overlay has private copies of its layers' mounts.
	defer func() { _ = unmapLower(spec.Dir) }()
	var options, dirs []string
	if spec.ReadOnly {
		// Without an upper directory the kernel requires at least two lower ones.
		lower = append(lower[:len(lower):len(lower)], filepath.Join(spec.Dir, emptyDir))
		dirs = []string{emptyDir}
	} else {
		options = []string{
			"upperdir=" + escape(filepath.Join(spec.Dir, upperDir)),
			"workdir=" + escape(filepath.Join(spec.Dir, workDir)),
		}
		dirs = []string{upperDir, workDir}
		if hasVolatile() {
			options = append(options, "volatile")
		}
	}
	for _, dir := range dirs {
		dir = filepath.Join(spec.Dir, dir)
		if err := os.Mkdir(dir, 0o755); err != nil {
			return fmt.Errorf("writable layer: %w", err)
		}
		// The upper directory's mode becomes that of / in the container, so undo the
		// effect of the umask.
		if err := os.Chmod(dir, 0o755); err != nil {
			return fmt.Errorf("writable layer: %w", err)
		}
		if spec.Owner != nil {
			if err := os.Chown(dir, spec.Owner.UID, spec.Owner.GID); err != nil {
				return fmt.Errorf("writable layer: %w", err)
			}
		}
	}
	if spec.Label != "" {
		options = append(options, `context="`+spec.Label+`"`)
	}
	lowerOption, release, err := joinLower(lower, len(strings.Join(options, ",")))
	if err != nil {
		return err
	}
	defer release()
	data := strings.Join(append(options, lowerOption), ",")
	if err := unix.Mount("overlay", path, "overlay", 0, data); err != nil {
		return explain(err, spec)
	}
	return nil
}

// joinLower returns the lowerdir option. others is the length of the other options.
// The kernel takes one page of options. If the paths don't fit, they are replaced
// by paths of file descriptors, which release closes.
func joinLower(lower []string, others int) (option string, release func(), err error) {
	room := os.Getpagesize() - others - len(",\x00")
	var b strings.Builder
	b.WriteString("lowerdir=")
	for i, dir := range lower {
		if i > 0 {
			b.WriteByte(':')
		}
		b.WriteString(strings.ReplaceAll(escape(dir), ":", `\:`))
	}
	if b.Len() <= room {
		return b.String(), func() {}, nil
	}
	var fds []int
	release = func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
	b.Reset()
	b.WriteString("lowerdir=")
	for i, dir := range lower {
		fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			release()
			return "", nil, fmt.Errorf("image layer: %w", &fs.PathError{Op: "open", Path: dir, Err: err})
		}
		fds = append(fds, fd)
		if i > 0 {
			b.WriteByte(':')
		}
		fmt.Fprintf(&b, "/proc/self/fd/%d", fd)
	}
	if b.Len() > room {
		release()
		return "", nil, errdefs.ErrFailedPrecondition.WithMessage(
			fmt.Sprintf("root filesystem: the image has %d layers, more than the kernel mounts at once: build it with fewer", len(lower)))
	}
	return b.String(), release, nil
}

// escape escapes the characters that separate paths and options.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(path)
}

// hasVolatile reports whether overlay supports mounts that never sync, which it does
// since Linux 5.10 (Documentation/filesystems/overlayfs.rst, "Volatile mount").
var hasVolatile = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return false
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 10)
})

// explain turns mount's errno into one clear line.
func explain(err error, spec Spec) error {
	path := Path(spec.Dir)
	for _, dir := range spec.Lower {
		if _, statErr := os.Stat(dir); statErr != nil {
			return fmt.Errorf("root filesystem %s: image layer: %w: remove the image and pull it again", path, statErr)
		}
	}
	var st unix.Statfs_t
	switch {
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("root filesystem %s: this kernel has no overlay filesystem: %w", path, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("root filesystem %s: not permitted to mount: %w: run as root", path, err)
	case unix.Statfs(spec.Dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC:
		return fmt.Errorf("root filesystem %s: an overlay can't be mounted on an overlay: %w: put the state on a disk of the host", path, err)
	}
	return fmt.Errorf("root filesystem %s: mount overlay of %d layers: %w: see the kernel's log", path, len(spec.Lower), err)
}
