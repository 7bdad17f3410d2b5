// Package sharedmount makes a directory a shared mount, and undoes that. Processes in mount
// namespaces of their own then see what is mounted in it later. See mount_namespaces(7).
package sharedmount

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/host"
)

// mark is the extended attribute of a directory that names the mount which Make made on it.
const mark = "trusted.husk.mount"

// Make binds dir to itself and makes that a shared mount. If something is mounted in dir, the error
// is errdefs.ErrFailedPrecondition, because the new mount would cover it. dir must not be a
// symbolic link.
func Make(dir string) error {
	inside, err := mountinfo.GetMounts(mountinfo.PrefixFilter(dir))
	if err != nil {
		return err
	}
	for _, m := range inside {
		if m.Mountpoint != dir {
			return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("%s can't be made a shared mount: %s is mounted", dir, m.Mountpoint))
		}
	}
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("bind %s to itself: %w", dir, err)
	}
	defer unix.Close(tree)
	// The mark comes first, so that a crash leaves no mount without one. Where it can't be written,
	// Release leaves the mount.
	if id, err := mountID(tree); err == nil {
		_ = unix.Setxattr(dir, mark, []byte(id), 0)
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, dir, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("bind %s to itself: %w", dir, err)
	}
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		return fmt.Errorf("share %s: %w", dir, err)
	}
	return nil
}

const (
	// busyTime is how long Release waits for a mount that is in use. A process that looks up a path
	// in it, or is just ending, uses it for a moment, which is long if the CPUs are busy.
	busyTime = 2 * time.Second
	// busyInterval is how often it tries meanwhile.
	busyInterval = 10 * time.Millisecond
)

// Release unmounts dir if Make made the mount, and reports whether it did. A mount that is in use
// for longer than a moment stays. Release doesn't detach it, because another huskd may have begun
// to use it.
func Release(dir string) (bool, error) {
	if mounted, err := IsMount(dir); err != nil || !mounted || !made(dir) {
		return false, err
	}
	err := unix.Unmount(dir, 0)
	for end := time.Now().Add(busyTime); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
		time.Sleep(busyInterval)
		if !made(dir) { // another mount covers it, or it is gone
			return false, nil
		}
		err = unix.Unmount(dir, 0)
	}
	if errors.Is(err, unix.EBUSY) || errors.Is(err, unix.EINVAL) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("unmount %s: %w", dir, err)
	}
	_ = unix.Removexattr(dir, mark)
	return true, nil
}

// IsMount reports whether something is mounted at path.
func IsMount(path string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// Shared reports whether path is on a shared mount.
func Shared(path string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, unix.STATX_MNT_ID, &st); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	mounts, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) {
		found := m.ID == int(st.Mnt_id)
		return !found, found
	})
	if err != nil || len(mounts) == 0 {
		return false, err
	}
	return strings.Contains(mounts[0].Optional, "shared:"), nil
}

// mountID identifies the mount at fd among all since the host was booted. Before Linux 6.8 the
// kernel uses the number of a mount again after it is unmounted.
func mountID(fd int) (string, error) {
	boot, err := host.BootID()
	if err != nil {
		return "", err
	}
	var st unix.Statx_t
	for _, mask := range []int{unix.STATX_MNT_ID_UNIQUE, unix.STATX_MNT_ID} {
		if err := unix.Statx(fd, "", unix.AT_EMPTY_PATH, mask, &st); err != nil {
			return "", err
		}
		if st.Mask&uint32(mask) != 0 {
			return fmt.Sprintf("%s %x %d", boot, mask, st.Mnt_id), nil
		}
	}
	return "", errors.ErrUnsupported
}

// made reports whether Make made the mount at dir.
func made(dir string) bool {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	id, err := mountID(fd)
	if err != nil {
		return false
	}
	value := make([]byte, len(id)+1)
	n, err := unix.Getxattr(dir, mark, value)
	return err == nil && string(value[:n]) == id
}
