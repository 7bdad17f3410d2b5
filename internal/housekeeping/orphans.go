package housekeeping

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/huskd/husk/internal/agent/podlogs"
	"github.com/huskd/husk/internal/agent/volume"
)

// Orphan is a directory of an unknown pod. They are left behind when records are lost.
type Orphan struct {
	Path string
	// Err is why it could not be removed; nil if it was.
	Err error
}

// Orphans removes the directories of volumes and logs of all pods except those with the uids, and
// returns them. It first unmounts everything below them, so that it deletes no files behind a
// mount.
func Orphans(volumes volume.Volumes, logs podlogs.Dirs, uids []string) (out []Orphan) {
	for _, dir := range []string{filepath.Join(volumes.Root, "pods"), filepath.Join(volumes.State, "pods")} {
		for _, uid := range subdirectories(dir) {
			if slices.Contains(uids, uid) {
				continue
			}
			path := filepath.Join(dir, uid)
			err := errors.Join(logs.Remove(uid), volumes.TearDown(uid))
			if _, gone := os.Lstat(path); err == nil && !errors.Is(gone, fs.ErrNotExist) {
				err = fmt.Errorf("%s contains more than volumes: check its files and remove it", path)
			}
			out = append(out, Orphan{path, err})
		}
	}
	return out
}

// subdirectories returns the names of the directories in a directory.
func subdirectories(dir string) (out []string) {
	entries, _ := os.ReadDir(dir) // it may not exist
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}
