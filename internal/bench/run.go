package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/huskd/husk/internal/netns"
)

// runPrefix begins the names of runs, of their pods and directories.
const runPrefix = "bench-"

// newRun names a run by this process, so that whoever finds its pods later can
// tell whether it goes on.
func newRun() string {
	return fmt.Sprintf("%s%d-%s", runPrefix, os.Getpid(), started(os.Getpid()))
}

// parse returns the process of a run, and when it began; ok is false for what
// is no name of a run.
func parse(run string) (pid int, since string, ok bool) {
	number, since, found := strings.Cut(strings.TrimPrefix(run, runPrefix), "-")
	pid, err := strconv.Atoi(number)
	return pid, since, found && err == nil && pid > 0 && since != "" && strings.HasPrefix(run, runPrefix)
}

// dead says whether run is the name of one whose process is gone.
func dead(run string) bool {
	pid, since, ok := parse(run)
	return ok && started(pid) != since
}

// started returns when a process began, in ticks since the boot; empty if there
// is none. See proc_pid_stat(5), field 22.
func started(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	const begin = 22 - 3 // fields after the name, which may hold anything
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) <= begin {
		return ""
	}
	return string(fields[begin])
}

// runOf returns the run of the name of a pod, of which all but the number is it.
func runOf(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 && strings.HasPrefix(name, runPrefix) {
		return name[:i]
	}
	return ""
}

// makeDir makes the directory of a run, and removes those of runs that were killed.
func makeDir(run string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), "husk-"+runPrefix+"*"))
	for _, dir := range old {
		if dead(strings.TrimPrefix(filepath.Base(dir), "husk-")) {
			_ = removeDir(dir)
		}
	}
	dir := filepath.Join(os.TempDir(), "husk-"+run)
	return dir, os.Mkdir(dir, 0o700)
}

// pinPrefix begins the names of namespaces that are pinned in a run's directory.
const pinPrefix = "ns-"

func removeDir(dir string) error {
	pins, _ := filepath.Glob(filepath.Join(dir, pinPrefix+"*"))
	return errors.Join(netns.Remove(pins...), os.RemoveAll(dir))
}
