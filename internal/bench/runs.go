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

// runPrefix is the prefix of the names of runs, and of their pods and directories.
const runPrefix = "bench-"

// newRun returns the name of a run by this process. It identifies the process, so that others can
// tell whether the run is still in progress.
func newRun() string {
	return fmt.Sprintf("%s%d-%s", runPrefix, os.Getpid(), startTime(os.Getpid()))
}

// parseRun returns the process of a run and its start time; ok is false if the name is invalid.
func parseRun(run string) (pid int, since string, ok bool) {
	number, since, found := strings.Cut(strings.TrimPrefix(run, runPrefix), "-")
	pid, err := strconv.Atoi(number)
	return pid, since, found && err == nil && pid > 0 && since != "" && strings.HasPrefix(run, runPrefix)
}

// isDead reports whether run is the name of a run whose process is gone.
func isDead(run string) bool {
	pid, since, ok := parseRun(run)
	return ok && startTime(pid) != since
}

// startTime returns when a process was started, in ticks since boot; "" if it is gone. See
// proc_pid_stat(5), field 22.
func startTime(pid int) string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	const begin = 22 - 3 // fields after the process name, which may contain anything
	fields := bytes.Fields(data[bytes.LastIndexByte(data, ')')+1:])
	if len(fields) <= begin {
		return ""
	}
	return string(fields[begin])
}

// runOf returns the run of a pod: its name without the number.
func runOf(name string) string {
	if i := strings.LastIndexByte(name, '-'); i > 0 && strings.HasPrefix(name, runPrefix) {
		return name[:i]
	}
	return ""
}

// makeDir creates the directory of a run and removes those of runs that were killed.
func makeDir(run string) (string, error) {
	old, _ := filepath.Glob(filepath.Join(os.TempDir(), "husk-"+runPrefix+"*"))
	for _, dir := range old {
		if isDead(strings.TrimPrefix(filepath.Base(dir), "husk-")) {
			_ = removeDir(dir)
		}
	}
	dir := filepath.Join(os.TempDir(), "husk-"+run)
	return dir, os.Mkdir(dir, 0o700)
}

// pinPrefix is the prefix of namespaces pinned in a run's directory.
const pinPrefix = "ns-"

func removeDir(dir string) error {
	pins, _ := filepath.Glob(filepath.Join(dir, pinPrefix+"*"))
	return errors.Join(netns.Remove(pins...), os.RemoveAll(dir))
}
