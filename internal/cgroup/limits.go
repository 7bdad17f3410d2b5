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

// Limits of a pod's cgroup, of which its containers' are children. Zero sets
// none.
type Limits struct {
	// CPUShares is the weight against siblings, 2 to 262144; 1024 is one CPU's
	// worth by convention.
	CPUShares uint64
	// CPUQuota is the time in microseconds that may be used in each CPUPeriod;
	// a period of zero is 100 ms.
	CPUQuota  int64
	CPUPeriod uint64
	// Memory is in bytes.
	Memory int64
}

const defaultPeriod = 100_000

// Create makes the cgroup, which may be there already, and sets its limits.
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

// createV1 makes the directory where a limit goes. The runtime makes the other
// hierarchies' when it makes a container's, and knows how to fill a cpuset.
func (t *Tree) createV1(cgroup string, limits Limits) error {
	for _, controller := range []string{"cpu", "memory"} {
		mount, ok := t.host.Mounts[controller]
		if !ok {
			continue
		}
		dir := filepath.Join(mount, cgroup)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		var files []setting
		if controller == "cpu" {
			files = limits.cpuV1()
		} else {
			files = limits.memoryV1()
		}
		if err := write(dir, files); err != nil {
			return err
		}
	}
	return nil
}

// createV2 makes the directory and has each ancestor hand its controllers down.
// A controller that an ancestor can't hand down (a realtime process in the root
// keeps cpu from it) shows when a limit of it is set.
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

// setting is a file of a cgroup and what to write into it.
type setting struct {
	file, value string
	// optional settings may be refused: they are there on old kernels only.
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

// memoryV1 makes the limit hold for the children too, which Linux before 5.11
// did on demand only.
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
	return out
}

func (l Limits) period() uint64 {
	if l.CPUPeriod == 0 {
		return defaultPeriod
	}
	return l.CPUPeriod
}

// weight maps the range of v1's cpu.shares onto that of v2's cpu.weight, 1 to
// 10000, by the line through their ends, as the kubelet does (KEP-2254).
func weight(shares uint64) uint64 {
	const lowest, highest = 2, 262144
	shares = min(max(shares, lowest), highest)
	return 1 + (shares-lowest)*9999/(highest-lowest)
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
