package host

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Probe finds out the Facts in a few milliseconds. IDMap is about the file system of root, Husk's
// root directory, which need not exist yet. What can't be found out, for example without a
// privilege, counts as missing.
func Probe(root string) Facts {
	current, floor := oomScores()
	boot, _ := BootID()
	return Facts{
		Kernel:            kernelRelease(),
		BootID:            boot,
		CPUs:              onlineCPUs(),
		Memory:            totalMemory(),
		Cgroup:            probeCgroup(),
		Systemd:           exists("/run/systemd/system"), // as sd_booted(3) does
		OOMScoreAdj:       current,
		OOMScoreFloor:     floor,
		Capabilities:      boundingSet(),
		Throttles:         throttles(),
		Seccomp:           seccomp(),
		AppArmor:          strings.HasPrefix(readString("/sys/module/apparmor/parameters/enabled"), "Y"),
		SELinux:           fsType("/sys/fs/selinux") == unix.SELINUX_MAGIC,
		Overlay:           overlay(),
		IDMap:             idmap(existing(root)),
		RecursiveReadOnly: mountSetattr(),
		IPv6:              exists("/proc/net/if_inet6"),
	}
}

// boundingSet returns the bounding set of this process: see proc_pid_status(5).
func boundingSet() uint64 {
	for line := range strings.Lines(readString("/proc/self/status")) {
		if set, ok := strings.CutPrefix(line, "CapBnd:"); ok {
			bits, _ := strconv.ParseUint(strings.TrimSpace(set), 16, 64)
			return bits
		}
	}
	return 0
}

func kernelRelease() string {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return ""
	}
	return unix.ByteSliceToString(uts.Release[:])
}

func totalMemory() int64 {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return 0
	}
	return int64(info.Totalram) * int64(info.Unit)
}

// onlineCPUs counts the machine's CPUs, not those that this process may use.
func onlineCPUs() int {
	return countRanges(readString("/sys/devices/system/cpu/online"))
}

// countRanges counts the numbers in a list like "0-3,8".
func countRanges(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err1 == nil && err2 == nil && from <= to {
			n += to - from + 1
		}
	}
	return n
}

const oomScoreAdj = "/proc/self/oom_score_adj"

// oomScores returns this process's oom_score_adj and the lowest that it can set. Capability bits
// don't say that: the kernel requires CAP_SYS_RESOURCE in the initial user namespace, and a
// security module may object too. So this process sets its own to the lowest for a moment.
func oomScores() (current, floor int) {
	const lowest = -1000
	current, err := strconv.Atoi(readString(oomScoreAdj))
	if err != nil {
		return 0, 0
	}
	if os.WriteFile(oomScoreAdj, []byte(strconv.Itoa(lowest)), 0) != nil {
		return current, current
	}
	// Raising it is always allowed.
	_ = os.WriteFile(oomScoreAdj, []byte(strconv.Itoa(current)), 0)
	return current, lowest
}

// seccomp sets a filter at address 0: EFAULT says that the kernel tried to read it.
func seccomp() bool {
	err := unix.Prctl(unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0, 0, 0)
	return errors.Is(err, unix.EFAULT)
}

// overlay opens a file system context, which loads the module if necessary. Without the privilege
// for that, overlay reports whether the module is loaded.
func overlay() bool {
	fd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err == nil {
		_ = unix.Close(fd)
		return true
	}
	if errors.Is(err, unix.ENODEV) {
		return false
	}
	known, _ := os.ReadFile("/proc/filesystems")
	return bytes.Contains(known, []byte("\toverlay\n"))
}

// mountSetattr reports whether the system call exists. Its arguments are invalid: EBADF comes from
// the system call itself, ENOSYS or EPERM from an old kernel or a seccomp filter.
func mountSetattr() bool {
	err := unix.MountSetattr(-1, "", unix.AT_EMPTY_PATH, &unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY})
	return errors.Is(err, unix.EBADF)
}

// existing returns path or its nearest ancestor that exists.
func existing(path string) string {
	for path = filepath.Clean(path); !exists(path) && path != "/" && path != "."; {
		path = filepath.Dir(path)
	}
	return path
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// fsType returns the magic number of the file system at path; 0 if path doesn't exist.
func fsType(path string) int64 {
	var st unix.Statfs_t
	if unix.Statfs(path, &st) != nil {
		return 0
	}
	return int64(st.Type)
}

// readString returns the trimmed content of a small file; "" if it can't be read.
func readString(path string) string {
	raw, _ := os.ReadFile(path)
	return strings.TrimSpace(string(raw))
}

func throttles() []string {
	found, _ := filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is valid
	return found
}
