package stats

import (
	"errors"
	"os"
	"strconv"
	"strings"
)

// Tasks returns how many processes and threads the machine has, and how many it can have.
func Tasks() (has, most int64, err error) {
	average, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return 0, 0, err
	}
	if has, err = parseTasks(string(average)); err != nil {
		return 0, 0, err
	}
	for _, file := range []string{"/proc/sys/kernel/pid_max", "/proc/sys/kernel/threads-max"} {
		content, err := os.ReadFile(file)
		if err != nil {
			return 0, 0, err
		}
		limit, err := strconv.ParseInt(strings.TrimSpace(string(content)), 10, 64)
		if err != nil {
			return 0, 0, err
		}
		if most == 0 || limit < most {
			most = limit
		}
	}
	return has, most, nil
}

// parseTasks returns the number of tasks in /proc/loadavg, whose fourth field is RUNNABLE/ALL.
// sysinfo(2) has it in 16 bits only.
func parseTasks(average string) (int64, error) {
	fields := strings.Fields(average)
	if len(fields) < 4 {
		return 0, errors.New("/proc/loadavg has fewer than four fields")
	}
	_, all, _ := strings.Cut(fields[3], "/")
	return strconv.ParseInt(all, 10, 64)
}
