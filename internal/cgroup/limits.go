package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Limits are the limits of a pod's cgroup, whose children are those of its containers. A zero field
// sets no limit.
type Limits struct {
	// CPUShares is the weight relative to siblings, 2 to 262144; by convention 1024 is one CPU.
	CPUShares uint64
	// CPUQuota is the CPU time in microseconds per CPUPeriod; a zero period means 100 ms.
	CPUQuota  int64
	CPUPeriod uint64
	// Memory is in bytes.
	Memory int64
	// Pids is a number of processes and threads.
	Pids int64
}

const defaultPeriod = 100_000

// Create creates the cgroup, which may exist already, and sets its limits.
func (t *Tree) Create(cgroup string, limits Limits) error {
	if err := t.owns(cgroup); err != nil {
		return err
	}
	var err error
	if t.host.Mode.Unified() {
		err = t.createV2(cgroup, limits)
	} else {
		err = t.createV1(cgroup, limits)
	}
	if err != nil {
		return fmt.Errorf("create cgroup %s: %w", cgroup, err)
	}
	return nil
}

// createV1 creates the cgroup in the hierarchies that have limits. The runtime creates it in the
// others with the container's, since it knows how to fill in a cpuset.
func (t *Tree) createV1(cgroup string, limits Limits) error {
	settings := map[string][]setting{"cpu": limits.cpuV1(), "memory": limits.memoryV1()}
	if limits.Pids > 0 {
		settings["pids"] = limits.pids()
	}
	for controller, files := range settings {
		mount, ok := t.host.Mounts[controller]
		if !ok {
			continue
		}
		dir := filepath.Join(mount, cgroup)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := write(dir, files); err != nil {
			return err
		}
	}
	return nil
}

// createV2 creates the cgroup and enables all controllers in each ancestor. It ignores errors of
// that: an ancestor may be unable to delegate a controller (cpu, if a realtime process is in the
// root), and to set a limit of that controller fails later.
func (t *Tree) createV2(cgroup string, limits Limits) error {
	mount := t.host.Mounts[""]
	dir := mount
	for element := range strings.SplitSeq(strings.TrimPrefix(cgroup, "/"), "/") {
		available, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		for _, controller := range strings.Fields(string(available)) {
			_ = os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		}
		dir = filepath.Join(dir, element)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return write(dir, limits.v2())
}

// setting is a file of a cgroup and the value to write into it.
type setting struct {
	file, value string
	// optional settings may fail: only old kernels have them.
	optional bool
}

func (l Limits) cpuV1() []setting {
	var out []setting
	if l.CPUShares != 0 {
		out = append(out, setting{file: "cpu.shares", value: strconv.FormatUint(l.CPUShares, 10)})
	}
	if l.CPUQuota != 0 {
		out = append(out, setting{file: "cpu.cfs_period_us", value: strconv.FormatUint(l.period(), 10)},
			setting{file: "cpu.cfs_quota_us", value: strconv.FormatInt(l.CPUQuota, 10)})
	}
	return out
}

// memoryV1 returns settings whose limit includes the children, which Linux before 5.11 does only
// with memory.use_hierarchy.
func (l Limits) memoryV1() []setting {
	out := []setting{{file: "memory.use_hierarchy", value: "1", optional: true}}
	if l.Memory != 0 {
		out = append(out, setting{file: "memory.limit_in_bytes", value: strconv.FormatInt(l.Memory, 10)})
	}
	return out
}

func (l Limits) v2() []setting {
	var out []setting
	if l.CPUShares != 0 {
		out = append(out, setting{file: "cpu.weight", value: strconv.FormatUint(weight(l.CPUShares), 10)})
	}
	if l.CPUQuota > 0 {
		out = append(out, setting{file: "cpu.max", value: fmt.Sprintf("%d %d", l.CPUQuota, l.period())})
	}
	if l.Memory > 0 {
		out = append(out, setting{file: "memory.max", value: strconv.FormatInt(l.Memory, 10)})
	}
	if l.Pids > 0 {
		out = append(out, l.pids()...)
	}
	return out
}

// pids returns the same setting for v1 and v2.
func (l Limits) pids() []setting {
	return []setting{{file: "pids.max", value: strconv.FormatInt(l.Pids, 10)}}
}

func (l Limits) period() uint64 {
	if l.CPUPeriod == 0 {
		return defaultPeriod
	}
	return l.CPUPeriod
}

// weight maps v1's cpu.shares linearly to v2's cpu.weight, 1 to 10000, as the kubelet does
// (KEP-2254).
func weight(shares uint64) uint64 {
	shares = min(max(shares, minShares), maxShares)
	return 1 + (shares-minShares)*9999/(maxShares-minShares)
}

func write(dir string, settings []setting) error {
	for _, s := range settings {
		err := os.WriteFile(filepath.Join(dir, s.file), []byte(s.value), 0o644)
		if err != nil && !s.optional {
			return fmt.Errorf("set %s to %s: %w", path.Base(s.file), s.value, err)
		}
	}
	return nil
}
