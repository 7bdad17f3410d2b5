package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/sharedmount"
)

// shareDir makes Dir a shared mount of its own, as the first `ip netns add` does. If that came
// after our first pin, it would cover the pin with a copy: see removeCovered.
// For the same reason Dir stays as it is if others have pinned namespaces there: they could not
// remove theirs any more.
func shareDir() error {
	// The common case: no lock.
	if mounted, err := sharedmount.IsMount(Dir); err == nil && mounted {
		return nil
	}
	lock, err := lockDir()
	if err != nil {
		return err
	}
	defer lock.Close()
	mounted, err := sharedmount.IsMount(Dir)
	if err != nil || mounted {
		return err
	}
	if entries, err := os.ReadDir(Dir); err != nil || len(entries) > 0 {
		return err
	}
	return sharedmount.Make(Dir)
}

// lockDir makes Dir and locks it against other huskds and, as they lock it too, `ip netns add`s.
// The lock doesn't keep Dir busy.
func lockDir() (*os.File, error) {
	for {
		if err := os.MkdirAll(Dir, 0o755); err != nil {
			return nil, fmt.Errorf("make %s: %w", Dir, err)
		}
		f, err := openDetached(Dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed meanwhile
		}
		if err == nil {
			err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		}
		if err != nil {
			return nil, fmt.Errorf("lock %s: %w", Dir, err)
		}
		locked, err := f.Stat()
		if err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("lock %s: %w", Dir, err)
		}
		if now, err := os.Stat(Dir); err == nil && os.SameFile(locked, now) {
			return f, nil
		}
		_ = f.Close()
	}
}

// openDetached opens a directory on a mount of its own that is mounted nowhere.
func openDetached(dir string) (*os.File, error) {
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return nil, err
	}
	defer unix.Close(tree)
	fd, err := unix.Openat(tree, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), dir), nil
}

// ReleaseDir removes the mount that Create made on Dir, if no namespace is pinned there any more. A
// mount that another program made stays.
func ReleaseDir() error {
	if _, err := os.Lstat(Dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	lock, err := lockDir()
	if err != nil {
		return err
	}
	defer lock.Close()
	entries, err := os.ReadDir(Dir)
	if err != nil {
		return fmt.Errorf("release %s: %w", Dir, err)
	}
	if len(entries) > 0 {
		return nil
	}
	if released, err := sharedmount.Release(Dir); err != nil || !released {
		return err
	}
	_ = os.Remove(Dir) // only removes an empty directory
	return nil
}

// removeCovered removes the file at path if a pin of it is left that another mount covers. That
// happens if a program binds the directory to itself after the pin, as the first `ip netns add`
// does: unpin then finds only the copy, and the file stays busy.
//
// The covered pin has no path. But the kernel lets a file be removed that is a mount point in
// other mount namespaces only, and unmounts it in all of them (since Linux 3.18, commit
// 8ed936b5671b). So removeCovered removes it from a mount namespace in which it has unmounted the
// covering mounts, and the pins.
func removeCovered(path string) error {
	return OnThread(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
			return fmt.Errorf("new mount namespace: %w", err)
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			return fmt.Errorf("new mount namespace: %w", err)
		}
		for {
			if err := unmount(path); err != nil {
				return err
			}
			err := os.Remove(path)
			if !errors.Is(err, unix.EBUSY) {
				return err
			}
			if unix.Unmount(filepath.Dir(path), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) != nil {
				return err // nothing covers it: it is busy for another reason
			}
		}
	})
}
