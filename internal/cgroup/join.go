package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
)

// Join moves a process into the cgroup, except on v2, where a process is better created in it: see
// Open. It creates the cgroup in the hierarchies that Create leaves out. The process stays in its
// own cpuset, as a new one is empty and would have to be filled in.
func (t *Tree) Join(cgroup string, pid int) error {
	if err := t.owns(cgroup); err != nil {
		return err
	}
	if t.host.Mode.Unified() {
		return nil
	}
	for _, mount := range t.mounts {
		if mount == t.host.Mounts["cpuset"] {
			continue
		}
		dir := filepath.Join(mount, cgroup)
		err := os.MkdirAll(dir, 0o755)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		if err != nil {
			return fmt.Errorf("move process %d into cgroup %s: %w", pid, cgroup, err)
		}
	}
	return nil
}

// Open returns the directory of a cgroup, as clone3(2) takes it on a v2 host. On a v1 host it is
// the directory of one of the hierarchies.
func (t *Tree) Open(cgroup string) (*os.File, error) {
	dirs := t.dirs(cgroup)
	if len(dirs) == 0 {
		return nil, fmt.Errorf("open cgroup %s: %w", cgroup, os.ErrNotExist)
	}
	return os.Open(dirs[0])
}
