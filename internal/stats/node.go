package stats

import (
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Node returns the usage of the machine since it booted. It doesn't use cgroups, because
// the root cgroup of v2 has no memory files.
func Node() (*Usage, error) {
	cpu, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	memory, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil, err
	}
	u := &Usage{At: time.Now()}
	u.CPU = parseStat(string(cpu))
	u.Memory = parseMeminfo(string(memory))
	const psi = "/proc/pressure"
	u.Pressure.CPU, u.Pressure.Memory, u.Pressure.IO = pressure(psi, "cpu"), pressure(psi, "memory"), pressure(psi, "io")
	return u, nil
}

// Booted returns when the machine booted.
func Booted() time.Time {
	var info unix.Sysinfo_t
	if unix.Sysinfo(&info) != nil {
		return time.Time{}
	}
	return time.Now().Add(-time.Duration(info.Uptime) * time.Second)
}

// parseStat parses the first line of /proc/stat: the ticks that all CPUs spent in user,
// nice, system, idle, iowait, irq, softirq and further modes.
func parseStat(text string) (c CPU) {
	line, _, _ := strings.Cut(text, "\n")
	fields := strings.Fields(line)
	if len(fields) < 8 || fields[0] != "cpu" {
		return c
	}
	at := func(i int) uint64 {
		n, _ := strconv.ParseUint(fields[i], 10, 64)
		return n * tick
	}
	c.User = at(1) + at(2)
	c.System = at(3) + at(6) + at(7)
	c.Used = c.User + c.System
	return c
}

// parseMeminfo parses /proc/meminfo.
func parseMeminfo(text string) (m Memory) {
	bytes := map[string]uint64{}
	for line := range strings.Lines(text) {
		name, rest, _ := strings.Cut(line, ":")
		if fields := strings.Fields(rest); len(fields) > 0 {
			n, _ := strconv.ParseUint(fields[0], 10, 64)
			bytes[name] = n << 10
		}
	}
	m.Limit = bytes["MemTotal"]
	m.Used = m.Limit - min(bytes["MemFree"], m.Limit)
	m.InactiveFile = bytes["Inactive(file)"]
	m.WorkingSet = m.Used - min(m.Used, m.InactiveFile)
	m.RSS, m.Cache, m.Mapped = bytes["AnonPages"], bytes["Cached"], bytes["Mapped"]
	m.SwapLimit = bytes["SwapTotal"]
	m.Swap = m.SwapLimit - min(bytes["SwapFree"], m.SwapLimit)
	return m
}
