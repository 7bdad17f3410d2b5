// Package rootfs mounts the root filesystems of containers: the layers of an
// image, shared and read-only, below a writable layer of the container's own.
//
// A writable layer lives as long as its mount. Nothing of it is ever flushed
// to disk on purpose, so after a reboot it can't be trusted and is thrown away.
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
)

// The names that Mount uses in a container's directory.
const (
	mountPoint = "rootfs"
	upperDir   = "upper"
	workDir    = "work"
	emptyDir   = "empty" // a second lower directory where the kernel wants two
	ownedDir   = "owned" // the layers, as files of the owner
)

// Spec describes a root filesystem.
type Spec struct {
	// Dir is the container's own directory. Mount makes it if it isn't there
	// and puts its files into it; it must not be on an overlay filesystem.
	Dir string
	// Lower are the directories of the image's layers, topmost first.
	Lower []string
	// ReadOnly leaves out the writable layer.
	ReadOnly bool
	// Owner is who owns the files, if it isn't the node's users.
	Owner *Owner
	// Label is what SELinux has all files of it for; empty without.
	Label string
}

// Owner is a user namespace: the owners of files in the image are users of it.
type Owner struct {
	Namespace string // path
	// UID and GID are the node's IDs of its user and group 0.
	UID, GID int
}

// Path is where Mount mounts the root filesystem of the container that owns dir.
func Path(dir string) string { return filepath.Join(dir, mountPoint) }

// Upper is the writable layer of the container that owns dir.
func Upper(dir string) string { return filepath.Join(dir, upperDir) }

// Mount mounts a root filesystem and returns its path. One that is mounted
// already, by an earlier run of the program, is taken as it is. A writable
// layer that isn't mounted is what a crash or a reboot left: Mount begins with
// an empty one.
func Mount(spec Spec) (string, error) {
	path := Path(spec.Dir)
	if err := os.MkdirAll(path, 0o755); err != nil {
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
		_ = discard(spec.Dir) // if not now, then by the next Mount or Unmount
		return "", err
	}
	return path, nil
}

// Unmount undoes Mount and deletes the writable layer. It does what is left to
// do after a crash half-way, and nothing if there is nothing.
func Unmount(dir string) error {
	path := Path(dir)
	for {
		// Detached, because a submount or an open file of somebody who looks
		// on must not keep a removed container alive.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break // not a mount point (any more), as there may be several
		}
		if err != nil {
			return fmt.Errorf("root filesystem: %w", &fs.PathError{Op: "unmount", Path: path, Err: err})
		}
	}
	if err := discard(dir); err != nil {
		return err
	}
	// Not RemoveAll: should something be mounted here against all odds, its
	// files are not ours to delete.
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("root filesystem: %w", err)
	}
	return nil
}

// discard deletes the writable layer.
func discard(dir string) error {
	if err := disown(dir); err != nil {
		return err
	}
	for _, name := range []string{upperDir, workDir, emptyDir} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("writable layer: %w", err)
		}
	}
	return nil
}

// isMounted says whether the mount point in dir has something mounted on it.
// An overlay always has a device number of its own.
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
	lower, err := spec.own()
	if err != nil {
		return err
	}
	// The overlay has private copies of the mounts that it is made of.
	defer func() { _ = disown(spec.Dir) }()
	var options, dirs []string
	if spec.ReadOnly {
		// Without a writable layer the kernel wants two layers at least.
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
		// The upper directory's mode is that of / in the container, so the
		// process's umask must not show in it.
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

// joinLower returns the option that names the lower directories. The kernel
// takes one page of options; where the paths are too long for that, descriptors
// stand for them until release is called.
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

// escape keeps the kernel from taking a character of a path for the end of it.
func escape(path string) string {
	return strings.NewReplacer(`\`, `\\`, `,`, `\,`).Replace(path)
}

// hasVolatile says whether overlay can leave out all syncing, as it can since
// Linux 5.10 (Documentation/filesystems/overlayfs.rst, "Volatile mount").
var hasVolatile = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return false
	}
	var major, minor int
	_, err := fmt.Sscanf(unix.ByteSliceToString(uts.Release[:]), "%d.%d", &major, &minor)
	return err == nil && (major > 5 || major == 5 && minor >= 10)
})

// explain makes one clear line of mount's bare errno.
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
		return fmt.Errorf("root filesystem %s: may not mount: %w: run as root", path, err)
	case unix.Statfs(spec.Dir, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC:
		return fmt.Errorf("root filesystem %s: an overlay can't lie on an overlay: %w: put the state on a disk of the host", path, err)
	}
	return fmt.Errorf("root filesystem %s: mount overlay of %d layers: %w: see the kernel's log", path, len(spec.Lower), err)
}
