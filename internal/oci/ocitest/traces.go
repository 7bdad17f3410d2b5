package ocitest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/host"
)

// Traces returns descriptions of what exists of a container: processes with its ID in their command
// line or in its cgroup, the cgroup itself, mounts, sockets and FIFOs below dirs, and files there
// with its ID in their names.
func Traces(c host.Cgroup, id, group string, dirs ...string) []string {
	var out []string
	found := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if line, _ := os.ReadFile(file); strings.Contains(string(line), id) {
			found("process %s: %s", file, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	if tree, err := cgroup.New(c, group); err == nil {
		if pids, _ := tree.PIDs(group); len(pids) > 0 {
			found("processes %v in the cgroup", pids)
		}
		if tree.Exists(group) {
			found("cgroup %s", group)
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for _, dir := range dirs {
		if strings.Contains(string(mounts), dir) {
			found("a mount below %s", dir)
		}
		_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err == nil && (strings.Contains(e.Name(), id) || e.Type()&(fs.ModeSocket|fs.ModeNamedPipe) != 0) {
				found("file %s", path)
			}
			return nil
		})
	}
	return out
}
