package stats

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// tick is the length of a tick (1/USER_HZ), the unit of user and system time in v1.
const tick = uint64(time.Second / 100)

// readV1 reads a cgroup in the controllers' hierarchies. It reports whether it exists in
// any.
func (m *Meter) readV1(u *Usage, cgroup string) bool {
	found := false
	for controller, read := range map[string]func(*Usage, string){
		"cpuacct": v1Cpuacct, "cpu": v1CPU, "memory": v1Memory, "pids": v1Pids, "blkio": v1Disks, "hugetlb": m.v1HugePages,
	} {
		mount := m.cgroups.Mounts[controller]
		if mount == "" {
			continue
		}
		dir := filepath.Join(mount, cgroup)
		if _, err := os.Stat(dir); err == nil {
			found = true
			read(u, dir)
		}
	}
	return found
}

func v1Cpuacct(u *Usage, dir string) {
	u.CPU.Used = number(dir, "cpuacct.usage")
	split := table(dir, "cpuacct.stat")
	u.CPU.User, u.CPU.System = split["user"]*tick, split["system"]*tick
}

func v1CPU(u *Usage, dir string) {
	u.CPU.Shares = number(dir, "cpu.shares")
	u.CPU.Quota, u.CPU.Period = number(dir, "cpu.cfs_quota_us"), number(dir, "cpu.cfs_period_us") // a quota of -1 doesn't parse and counts as 0
	stat := table(dir, "cpu.stat")
	u.CPU.Periods, u.CPU.Throttled, u.CPU.ThrottledTime = stat["nr_periods"], stat["nr_throttled"], stat["throttled_time"]
}

func v1Memory(u *Usage, dir string) {
	u.Memory.Used, u.Memory.Max = number(dir, "memory.usage_in_bytes"), number(dir, "memory.max_usage_in_bytes")
	u.Memory.Limit = limit(number(dir, "memory.limit_in_bytes"))
	u.Memory.Kernel, u.Memory.Failures = number(dir, "memory.kmem.usage_in_bytes"), number(dir, "memory.failcnt")
	stat := table(dir, "memory.stat")
	u.Memory.RSS, u.Memory.Cache, u.Memory.Mapped, u.Memory.Swap = stat["total_rss"], stat["total_cache"], stat["total_mapped_file"], stat["total_swap"]
	u.Memory.InactiveFile = stat["total_inactive_file"]
	u.Memory.Faults.Minor, u.Memory.Faults.Major = stat["total_pgfault"], stat["total_pgmajfault"]
	u.Memory.Own = MemoryFaults{stat["pgfault"], stat["pgmajfault"]}
	u.Memory.OOMKills = table(dir, "memory.oom_control")["oom_kill"]
	if both := limit(number(dir, "memory.memsw.limit_in_bytes")); both > u.Memory.Limit {
		u.Memory.SwapLimit = both - u.Memory.Limit
	}
}

func v1Pids(u *Usage, dir string) {
	u.Processes, u.ProcessLimit = number(dir, "pids.current"), number(dir, "pids.max")
}

func (m *Meter) v1HugePages(u *Usage, dir string) {
	for _, size := range m.cgroups.HugePages {
		u.HugePages = append(u.HugePages, HugePages{
			Size: size, Usage: number(dir, "hugetlb."+size+".usage_in_bytes"), Max: number(dir, "hugetlb."+size+".max_usage_in_bytes"),
		})
	}
}

// v1Disks parses lines such as "8:0 Read 4096".
func v1Disks(u *Usage, dir string) {
	for _, f := range []struct {
		file string
		into func(d *DiskIO, operation string) *uint64
	}{
		{"blkio.throttle.io_service_bytes_recursive", func(d *DiskIO, op string) *uint64 { return readOrWrite(op, &d.ReadBytes, &d.WrittenBytes) }},
		{"blkio.throttle.io_serviced_recursive", func(d *DiskIO, op string) *uint64 { return readOrWrite(op, &d.ReadCount, &d.WrittenCount) }},
	} {
		content, _ := os.ReadFile(filepath.Join(dir, f.file))
		for line := range bytes.Lines(content) {
			fields := strings.Fields(string(line))
			if len(fields) != 3 {
				continue // the total
			}
			if d := u.disk(fields[0]); d != nil {
				if n := f.into(d, fields[1]); n != nil {
					*n, _ = strconv.ParseUint(fields[2], 10, 64)
				}
			}
		}
	}
}

func readOrWrite(operation string, read, written *uint64) *uint64 {
	switch operation {
	case "Read":
		return read
	case "Write":
		return written
	}
	return nil
}

// disk returns the counters of a device, such as "8:0".
func (u *Usage) disk(device string) *DiskIO {
	a, b, _ := strings.Cut(device, ":")
	major, err1 := strconv.ParseUint(a, 10, 64)
	minor, err2 := strconv.ParseUint(b, 10, 64)
	if err1 != nil || err2 != nil {
		return nil
	}
	i := slices.IndexFunc(u.Disks, func(d DiskIO) bool { return d.Major == major && d.Minor == minor })
	if i < 0 {
		i = len(u.Disks)
		u.Disks = append(u.Disks, DiskIO{Major: major, Minor: minor})
	}
	return &u.Disks[i]
}
