package stats

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// readV2 reads a cgroup's directory. It reports whether that exists.
func (m *Meter) readV2(u *Usage, dir string) bool {
	if _, err := os.Stat(dir); err != nil {
		return false
	}
	v2CPU(u, dir)
	v2Memory(u, dir)
	u.Processes, u.ProcessLimit = number(dir, "pids.current"), number(dir, "pids.max")
	for _, size := range m.cgroups.HugePages {
		u.HugePages = append(u.HugePages, HugePages{Size: size, Usage: number(dir, "hugetlb."+size+".current"), Max: number(dir, "hugetlb."+size+".max")})
	}
	v2Disks(u, dir)
	u.Pressure.CPU, u.Pressure.Memory, u.Pressure.IO = pressure(dir, "cpu.pressure"), pressure(dir, "memory.pressure"), pressure(dir, "io.pressure")
	return true
}

func v2CPU(u *Usage, dir string) {
	const us = uint64(time.Microsecond)
	stat := table(dir, "cpu.stat")
	u.CPU.Used, u.CPU.User, u.CPU.System = stat["usage_usec"]*us, stat["user_usec"]*us, stat["system_usec"]*us
	u.CPU.Periods, u.CPU.Throttled, u.CPU.ThrottledTime = stat["nr_periods"], stat["nr_throttled"], stat["throttled_usec"]*us
	if weight := number(dir, "cpu.weight"); weight > 0 {
		u.CPU.Shares = shares(weight)
	}
	quota, period, _ := strings.Cut(text(dir, "cpu.max"), " ")
	u.CPU.Period, _ = strconv.ParseUint(period, 10, 64)
	u.CPU.Quota, _ = strconv.ParseUint(quota, 10, 64) // "max" doesn't parse and counts as 0
}

// shares converts a v2 weight to v1's scale. It is the inverse of the conversion in package
// cgroup.
func shares(weight uint64) uint64 {
	const lowest, highest = 2, 262144
	return lowest + (weight-1)*(highest-lowest)/9999
}

func v2Memory(u *Usage, dir string) {
	u.Memory.Used, u.Memory.Max, u.Memory.Limit = number(dir, "memory.current"), number(dir, "memory.peak"), number(dir, "memory.max")
	u.Memory.Swap, u.Memory.SwapLimit = number(dir, "memory.swap.current"), number(dir, "memory.swap.max")
	stat := table(dir, "memory.stat")
	u.Memory.RSS, u.Memory.Cache, u.Memory.Mapped, u.Memory.Kernel = stat["anon"], stat["file"], stat["file_mapped"], stat["kernel"]
	u.Memory.InactiveFile = stat["inactive_file"]
	u.Memory.Faults.Minor, u.Memory.Faults.Major = stat["pgfault"], stat["pgmajfault"]
	u.Memory.Own = u.Memory.Faults // v2 has no such counter; a container's cgroup has no children
	events := table(dir, "memory.events")
	u.Memory.Failures, u.Memory.OOMKills = events["max"], events["oom_kill"]
}

// v2Disks parses lines such as "8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0".
func v2Disks(u *Usage, dir string) {
	content, _ := os.ReadFile(filepath.Join(dir, "io.stat"))
	for line := range bytes.Lines(content) {
		fields := strings.Fields(string(line))
		if len(fields) < 2 {
			continue
		}
		d := u.disk(fields[0])
		if d == nil {
			continue
		}
		for _, field := range fields[1:] {
			name, value, _ := strings.Cut(field, "=")
			n, _ := strconv.ParseUint(value, 10, 64)
			switch name {
			case "rbytes":
				d.ReadBytes = n
			case "wbytes":
				d.WrittenBytes = n
			case "rios":
				d.ReadCount = n
			case "wios":
				d.WrittenCount = n
			}
		}
	}
}
