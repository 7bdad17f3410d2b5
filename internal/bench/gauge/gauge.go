// Package gauge measures the cost of programs: memory, CPU time, programs executed and disk
// flushes. It changes nothing.
package gauge

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/bench/report"
)

// Listener returns the PID of the process that listens on a Unix socket.
func Listener(socket string) (int, error) {
	conn, err := net.Dial("unix", socket)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var peer *unix.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil {
		return 0, err
	}
	switch {
	case failed != nil:
		return 0, failed
	case peer.Pid == 0:
		return 0, errors.New("the process behind the socket is in another PID namespace")
	case peer.Pid == 1 && os.Getpid() != 1:
		return 0, errors.New("the socket is held by init, and its service is unknown")
	}
	return int(peer.Pid), nil
}

// PSS returns the proportional set size of processes in bytes, in which shared pages count by their
// share. Processes that are gone count as 0.
func PSS(pids ...int) (int64, error) {
	var sum int64
	for _, pid := range pids {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			return 0, err
		}
		kilobytes, err := field(data, "Pss:")
		if err != nil {
			continue // it has exited
		}
		sum += kilobytes * 1024
	}
	return sum, nil
}

// field returns the number after a name at the start of a line.
func field(data []byte, name string) (int64, error) {
	for line := range bytes.Lines(data) {
		if rest, ok := bytes.CutPrefix(line, []byte(name)); ok {
			if words := bytes.Fields(rest); len(words) > 0 {
				return strconv.ParseInt(string(words[0]), 10, 64)
			}
		}
	}
	return 0, fmt.Errorf("no field %s", name)
}

// Of returns the processes of pods and containers by their IDs: members are in a cgroup with the ID
// in its name, and monitors have the ID in their command line.
func Of(ids []string) (monitors, members []int, err error) {
	wanted := map[string]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, nil, err
	}
	for _, dir := range dirs {
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil || pid == os.Getpid() {
			continue
		}
		command, err := os.ReadFile(dir + "/cmdline")
		if err != nil || len(command) == 0 {
			continue // gone, or a kernel thread
		}
		cgroups, _ := os.ReadFile(dir + "/cgroup")
		switch {
		case mentions(command, wanted):
			monitors = append(monitors, pid)
		case mentions(cgroups, wanted):
			members = append(members, pid)
		}
	}
	return monitors, members, nil
}

// mentions reports whether any word of text is wanted.
func mentions(text []byte, wanted map[string]bool) bool {
	for word := range bytes.FieldsFuncSeq(text, func(r rune) bool {
		return (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	}) {
		if wanted[string(word)] {
			return true
		}
	}
	return false
}

// Load returns the load average of one minute.
func Load() float64 {
	data, _ := os.ReadFile("/proc/loadavg")
	var load float64
	_, _ = fmt.Sscan(string(data), &load)
	return load
}

// Machine describes this machine. The caller sets the loads.
func Machine() report.Machine {
	m := report.Machine{CPUs: runtime.NumCPU(), CPU: runtime.GOARCH, Cgroup: cgroups()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	if f, err := os.Open("/proc/cpuinfo"); err == nil {
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			if key, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	if data, err := os.ReadFile("/proc/meminfo"); err == nil {
		kilobytes, _ := field(data, "MemTotal:")
		m.Memory = kilobytes * 1024
	}
	return m
}

// cgroups returns which version of cgroups is mounted.
func cgroups() string {
	const root = "/sys/fs/cgroup"
	isV2 := func(path string) bool {
		var fs unix.Statfs_t
		return unix.Statfs(path, &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
	}
	switch {
	case isV2(root):
		return "v2"
	case isV2(root + "/unified"):
		return "hybrid"
	}
	return "v1"
}
