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

// Orphan is a directory of a pod that nothing is known of, as is left when records
// are lost.
type Orphan struct {
	Path string
	// Err says why it is still there; nil if it was removed.
	Err error
}

// Orphans removes what pods have left in the directories of volumes and of logs,
// but for the pods with the UIDs, and tells of each. What is mounted below is
// unmounted first, so that nothing behind a mount is deleted.
func Orphans(volumes volume.Volumes, logs string, uids []string) (out []Orphan) {
	for _, dir := range []string{filepath.Join(volumes.Root, "pods"), filepath.Join(volumes.State, "pods")} {
		for _, uid := range subdirectories(dir) {
			if slices.Contains(uids, uid) {
				continue
			}
			path := filepath.Join(dir, uid)
			err := volumes.TearDown(uid)
			if _, gone := os.Lstat(path); err == nil && !errors.Is(gone, fs.ErrNotExist) {
				err = fmt.Errorf("%s has more in it than volumes: see what that is, and remove it", path)
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

// subdirectories of the directories in a directory.
func subdirectories(dir string) (out []string) {
	entries, _ := os.ReadDir(dir) // it need not be there
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out
}
