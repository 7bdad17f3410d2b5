package host

import (
	"cmp"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const cgroupRoot = "/sys/fs/cgroup"

func probeCgroup() Cgroup {
	mountinfo, _ := os.ReadFile("/proc/self/mountinfo")
	c := cgroupOf(string(mountinfo))
	c.Swap = c.swap()
	if c.Has("hugetlb") {
		c.HugePages = hugePages()
	}
	return c
}

// cgroupOf finds out the mode, the controllers and their mount points from a mountinfo table. On v2
// it reads the controllers from a file.
func cgroupOf(mountinfo string) Cgroup {
	c := Cgroup{Mounts: cgroupMounts(mountinfo)}
	unified, hasUnified := c.Mounts[""]
	switch {
	case hasUnified && unified == cgroupRoot:
		c.Mode = CgroupV2
		c.Mounts = map[string]string{"": unified}
		c.Controllers = strings.Fields(readString(filepath.Join(unified, "cgroup.controllers")))
	case len(c.Mounts) == 0 || hasUnified && len(c.Mounts) == 1:
		return Cgroup{Mode: CgroupNone}
	default:
		c.Mode = CgroupV1
		if hasUnified {
			c.Mode = CgroupHybrid
		}
		for name := range c.Mounts {
			if name != "" && !strings.HasPrefix(name, "name=") {
				c.Controllers = append(c.Controllers, name)
			}
		}
	}
	slices.Sort(c.Controllers)
	return c
}

// v1Controllers are the names of controllers among a v1 hierarchy's mount options, which also has
// options such as "rw" and "xattr".
var v1Controllers = []string{"blkio", "cpu", "cpuacct", "cpuset", "devices", "freezer", "hugetlb",
	"memory", "misc", "net_cls", "net_prio", "perf_event", "pids", "rdma"}

// cgroupMounts returns the mount point of each controller and named hierarchy in a mountinfo table,
// with "" for v2's. Only mounts below /sys/fs/cgroup count, because OCI runtimes look nowhere else.
func cgroupMounts(mountinfo string) map[string]string {
	mounts := map[string]string{}
	for line := range strings.Lines(mountinfo) {
		// 36 35 0:30 / /sys/fs/cgroup/cpu rw,relatime shared:9 - cgroup cgroup rw,cpu
		before, after, _ := strings.Cut(line, " - ")
		mount, super := strings.Fields(before), strings.Fields(after)
		if len(mount) < 6 || len(super) < 3 {
			continue
		}
		point := mount[4]
		if point != cgroupRoot && !strings.HasPrefix(point, cgroupRoot+"/") {
			continue
		}
		switch super[0] {
		case "cgroup2":
			mounts[""] = point
		case "cgroup":
			for option := range strings.SplitSeq(super[2], ",") {
				if strings.HasPrefix(option, "name=") || slices.Contains(v1Controllers, option) {
					mounts[option] = point
				}
			}
		}
	}
	return mounts
}

// swap reports whether the kernel accounts for swap. On v2 the root cgroup has no file for it, so
// any other cgroup is looked at. If there is none yet, a kernel with swap accounts for it unless it
// was booted with swapaccount=0.
func (c Cgroup) swap() bool {
	if !c.Has("memory") {
		return false
	}
	if !c.Mode.Unified() {
		return exists(filepath.Join(c.Mounts["memory"], "memory.memsw.limit_in_bytes"))
	}
	for _, pattern := range []string{"*/memory.max", "*/*/memory.max"} {
		if files, _ := filepath.Glob(filepath.Join(c.Mounts[""], pattern)); len(files) > 0 {
			return exists(filepath.Join(filepath.Dir(files[0]), "memory.swap.max"))
		}
	}
	return exists("/proc/swaps") && !strings.Contains(readString("/proc/cmdline"), "swapaccount=0")
}

func hugePages() []string {
	entries, _ := os.ReadDir("/sys/kernel/mm/hugepages")
	var sizes []int // in KiB
	for _, e := range entries {
		if size, ok := hugePageSize(e.Name()); ok {
			sizes = append(sizes, size)
		}
	}
	slices.SortFunc(sizes, cmp.Compare[int])
	var out []string
	for _, size := range sizes {
		out = append(out, pageSizeName(size))
	}
	return out
}

// hugePageSize returns the KiB in a name like "hugepages-2048kB".
func hugePageSize(name string) (int, bool) {
	digits, ok := strings.CutPrefix(name, "hugepages-")
	digits, ok2 := strings.CutSuffix(digits, "kB")
	size, err := strconv.Atoi(digits)
	return size, ok && ok2 && err == nil && size > 0
}

// pageSizeName formats a size in KiB as in the file names of the hugetlb controller.
func pageSizeName(kib int) string {
	switch {
	case kib%(1<<20) == 0:
		return strconv.Itoa(kib>>20) + "GB"
	case kib%(1<<10) == 0:
		return strconv.Itoa(kib>>10) + "MB"
	}
	return strconv.Itoa(kib) + "KB"
}
