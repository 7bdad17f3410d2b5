package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/userns"
)

// mapLower returns the lower directories on an ID-mapped mount, so that files appear
// with the owner's IDs and are copied up with them.
//
// A single mount of their common parent directory serves all of them.
func (s Spec) mapLower() ([]string, error) {
	if s.Owner == nil || len(s.Lower) == 0 {
		return s.Lower, nil
	}
	parent := filepath.Dir(s.Lower[0])
	for _, dir := range s.Lower {
		for parent != "/" && !strings.HasPrefix(dir, parent+"/") {
			parent = filepath.Dir(parent)
		}
	}
	at := filepath.Join(s.Dir, mappedDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, fmt.Errorf("root filesystem: %w", err)
	}
	if err := userns.Mount(parent, at, s.Owner.Namespace); err != nil {
		return nil, fmt.Errorf("root filesystem: %w", err)
	}
	mapped := make([]string, len(s.Lower))
	for i, dir := range s.Lower {
		mapped[i] = at + strings.TrimPrefix(dir, strings.TrimSuffix(parent, "/"))
	}
	return mapped, nil
}

// unmapLower undoes mapLower, if that was done.
func unmapLower(dir string) error {
	at := filepath.Join(dir, mappedDir)
	err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("root filesystem: %w", &fs.PathError{Op: "unmount", Path: at, Err: err})
	}
	// Not RemoveAll: see Unmount.
	if err := os.Remove(at); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("root filesystem: %w", err)
	}
	return nil
}
