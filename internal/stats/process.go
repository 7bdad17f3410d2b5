package stats

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Processes are the processes in a cgroup.
type Processes struct {
	Count, Files, Sockets uint64
	// OpenFiles is the first process's limit of open files.
	OpenFiles uint64
}

// Processes counts the processes in a cgroup and their open files and sockets.
func (m *Meter) Processes(cgroup string) Processes {
	mount := m.cgroups.Mounts[""]
	if !m.cgroups.Mode.Unified() {
		mount = m.cgroups.Mounts["memory"]
	}
	var p Processes
	for pid := range strings.FieldsSeq(text(filepath.Join(mount, cgroup), "cgroup.procs")) {
		proc := "/proc/" + pid
		if p.Count == 0 {
			p.OpenFiles = openFiles(proc)
		}
		p.Count++
		files, sockets := descriptors(filepath.Join(proc, "fd"))
		p.Files, p.Sockets = p.Files+files, p.Sockets+sockets
	}
	return p
}

// descriptors counts the descriptors in dir, a process's fd directory, which may be gone.
func descriptors(dir string) (files, sockets uint64) {
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		files++
		if to, _ := os.Readlink(filepath.Join(dir, e.Name())); strings.HasPrefix(to, "socket:") {
			sockets++
		}
	}
	return files, sockets
}

// openFiles returns a process's soft limit of open files, from a line such as "Max open files  1024
// 524288  files".
func openFiles(proc string) uint64 {
	content, _ := os.ReadFile(filepath.Join(proc, "limits"))
	for line := range bytes.Lines(content) {
		if rest, ok := strings.CutPrefix(string(line), "Max open files"); ok {
			soft := ""
			_, _ = fmt.Sscan(rest, &soft)
			n, _ := strconv.ParseUint(soft, 10, 64)
			return n
		}
	}
	return 0
}
