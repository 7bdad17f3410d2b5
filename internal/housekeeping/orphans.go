package housekeeping

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

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
func Orphans(volumes volume.Volumes, logs string, uids []string) (out []Orphan) {
	for _, dir := range []string{filepath.Join(volumes.Root, "pods"), filepath.Join(volumes.State, "pods")} {
		for _, uid := range subdirectories(dir) {
			if slices.Contains(uids, uid) {
				continue
			}
			path := filepath.Join(dir, uid)
			err := volumes.TearDown(uid)
			if _, gone := os.Lstat(path); err == nil && !errors.Is(gone, fs.ErrNotExist) {
				err = fmt.Errorf("%s contains more than volumes: check its files and remove it", path)
			}
			out = append(out, Orphan{path, err})
		}
	}
	for _, name := range subdirectories(logs) {
		// NAMESPACE_NAME_UID
		if parts := strings.Split(name, "_"); len(parts) == 3 && !slices.Contains(uids, parts[2]) {
			path := filepath.Join(logs, name)
			out = append(out, Orphan{path, os.RemoveAll(path)})
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
