package userns

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// MakeDir makes a directory of root's that no other user can list or pass through, except, if group
// isn't 0, a group that may pass through it: the one that a user namespace has as its root's, whose
// processes find their files below. A directory that exists gets the same mode and group, and
// parents that don't exist are made likewise.
//
// What a container leaves may be an executable with a setuid bit, so the directories above it are
// what keeps it from users of the node (CVE-2021-41091 of moby).
func MakeDir(path string, group int) error {
	mode := fs.FileMode(0o700)
	if group > 0 {
		mode = 0o710
	}
	err := os.Mkdir(path, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err = MakeDir(filepath.Dir(path), group); err == nil {
			err = os.Mkdir(path, 0o700)
		}
	}
	if err != nil {
		info, statErr := os.Lstat(path)
		switch {
		case statErr != nil:
			return err
		case !info.IsDir():
			return &fs.PathError{Op: "mkdir", Path: path, Err: unix.ENOTDIR}
		}
	}
	if group > 0 {
		if err := os.Lchown(path, -1, group); err != nil {
			return err
		}
	}
	return os.Chmod(path, mode)
}
