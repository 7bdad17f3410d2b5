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

// own returns the lower directories as the owner sees them. What is copied up
// from there, or made by the owner, then is the owner's in the writable layer.
//
// One mount is enough for all of them, of the directory that they are in.
func (s Spec) own() ([]string, error) {
	if s.Owner == nil || len(s.Lower) == 0 {
		return s.Lower, nil
	}
	parent := filepath.Dir(s.Lower[0])
	for _, dir := range s.Lower {
		for parent != "/" && !strings.HasPrefix(dir, parent+"/") {
			parent = filepath.Dir(parent)
		}
	}
	at := filepath.Join(s.Dir, ownedDir)
	if err := os.Mkdir(at, 0o700); err != nil {
		return nil, fmt.Errorf("root filesystem: %w", err)
	}
	if err := userns.Mount(parent, at, s.Owner.Namespace); err != nil {
		return nil, fmt.Errorf("root filesystem: %w", err)
	}
	owned := make([]string, len(s.Lower))
	for i, dir := range s.Lower {
		owned[i] = at + strings.TrimPrefix(dir, strings.TrimSuffix(parent, "/"))
	}
	return owned, nil
}

// disown undoes own, which may not have been done.
func disown(dir string) error {
	at := filepath.Join(dir, ownedDir)
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
