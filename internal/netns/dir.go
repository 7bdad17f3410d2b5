package netns

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// shareDir makes Dir a shared mount of its own, as the first `ip netns add` does. If that came
// after our first pin, it would cover the pin with a copy, and Remove would only unpin the copy.
// For the same reason Dir stays as it is if others have pinned namespaces there: they could not
// remove theirs any more.
func shareDir() error {
	if err := os.MkdirAll(Dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", Dir, err)
	}
	mounted, err := isMountRoot(Dir)
	if err != nil || mounted {
		return err
	}
	if entries, err := os.ReadDir(Dir); err != nil || len(entries) > 0 {
		return err
	}
	if err := unix.Mount(Dir, Dir, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s to itself: %w", Dir, err)
	}
	if err := unix.Mount("", Dir, "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("share %s: %w", Dir, err)
	}
	return nil
}

func isMountRoot(path string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, path, 0, 0, &st); err != nil {
		return false, fmt.Errorf("stat %s: %w", path, err)
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// ReleaseDir reverts what Create did to Dir, if no namespace is pinned there any more. If others
// use it, it stays.
func ReleaseDir() error {
	entries, err := os.ReadDir(Dir)
	if errors.Is(err, os.ErrNotExist) || err == nil && len(entries) > 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("release %s: %w", Dir, err)
	}
	if mounted, err := isMountRoot(Dir); err != nil || !mounted {
		return err
	}
	if err := unix.Unmount(Dir, 0); err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("release %s: %w", Dir, err)
	}
	// This only removes an empty directory, and only if we could unmount it.
	_ = os.Remove(Dir)
	return nil
}
