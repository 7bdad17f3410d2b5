package cgroup

import (
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// OOMKills returns the number of OOM kills in the cgroup; 0 where the kernel doesn't report it.
func (t *Tree) OOMKills(cgroup string) int {
	dir, file := filepath.Join(t.host.Mounts["memory"], cgroup), "memory.oom_control" // Linux 4.13
	if t.host.Mode.Unified() {
		dir, file = filepath.Join(t.host.Mounts[""], cgroup), "memory.events"
	}
	if t.owns(cgroup) != nil {
		return 0
	}
	return oomKills(filepath.Join(dir, file))
}

// oomKills reads the count from a file with lines such as "oom_kill 3".
func oomKills(file string) int {
	raw, _ := os.ReadFile(file)
	for line := range strings.Lines(string(raw)) {
		if count, ok := strings.CutPrefix(line, "oom_kill "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(count))
			return n
		}
	}
	return 0
}

// OtherOOMKills returns the number of OOM kills in the tree without those in the children of its
// root for which keep is true. If keep is true for all, these are the kills in children that are
// gone. It is 0 on v1: only on v2 does a cgroup's count include those of its descendants, and
// outlive them.
func (t *Tree) OtherOOMKills(keep func(child string) bool) int {
	if !t.host.Mode.Unified() {
		return 0
	}
	const events = "memory.events"
	dir := filepath.Join(t.host.Mounts[""], t.root)
	// The total is read first, so a kill in between can't be counted as another's.
	n := oomKills(filepath.Join(dir, events))
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if e.IsDir() && keep(path.Join(t.root, e.Name())) {
			n -= oomKills(filepath.Join(dir, e.Name(), events))
		}
	}
	return max(n, 0)
}
