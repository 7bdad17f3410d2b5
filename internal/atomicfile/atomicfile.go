// Package atomicfile replaces files as a whole.
package atomicfile

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"
)

// Write replaces the file at path, or makes it, with exactly that mode, whatever the umask and the
// mode of an older file are. Readers see the old content or the new one, and so does huskd after a
// power failure: when Write returns, the new content is on the disk. The file's directory must
// exist. A crash may leave a file in it whose name is a dot, the file's name and a number.
func Write(path string, content []byte, mode os.FileMode) error {
	dir := filepath.Dir(path)
	// In the file's directory: the default tries TMPDIR first, where others could read a key.
	f, err := renameio.NewPendingFile(path, renameio.WithTempDir(dir), renameio.WithStaticPermissions(mode))
	if err != nil {
		return err
	}
	defer func() { _ = f.Cleanup() }() // does nothing after the rename
	if _, err := f.Write(content); err != nil {
		return err
	}
	// This closes the file before it renames it: a program that is open for writing can't be
	// executed (ETXTBSY).
	if err := f.CloseAtomicallyReplace(); err != nil {
		return err
	}
	parent, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close())
}
