package host

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/hosttest"
)

func TestCgroupOf(t *testing.T) {
	const other = `21 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 21 0:26 / /sys rw,nosuid shared:7 - sysfs sysfs rw
`
	tests := []struct {
		name, mountinfo string
		mode            CgroupMode
		controllers     []string
		mounts          map[string]string
	}{{
		name: "none", mountinfo: other, mode: CgroupNone,
	}, {
		name: "empty", mountinfo: "", mode: CgroupNone,
	}, {
		name: "v1 with two controllers on one mount",
		mountinfo: other + `31 30 0:27 / /sys/fs/cgroup ro shared:8 - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
33 31 0:29 / /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory
34 31 0:30 / /sys/fs/cgroup/systemd rw shared:11 - cgroup cgroup rw,xattr,name=systemd
`,
		mode: CgroupV1, controllers: []string{"cpu", "cpuacct", "memory"},
		mounts: map[string]string{"cpu": "/sys/fs/cgroup/cpu,cpuacct", "cpuacct": "/sys/fs/cgroup/cpu,cpuacct",
			"memory": "/sys/fs/cgroup/memory", "name=systemd": "/sys/fs/cgroup/systemd"},
	}, {
		name: "hybrid",
		mountinfo: other + `33 31 0:29 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
35 31 0:31 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
`,
		mode: CgroupHybrid, controllers: []string{"memory"},
		mounts: map[string]string{"memory": "/sys/fs/cgroup/memory", "": "/sys/fs/cgroup/unified"},
	}, {
		name:      "v2",
		mountinfo: other + "35 30 0:31 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n",
		mode:      CgroupV2, controllers: nil, // read from a file of this host, so not compared
		mounts: map[string]string{"": "/sys/fs/cgroup"},
	}, {
		name:      "only v2, but not where runtimes look",
		mountinfo: other + "35 30 0:31 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
		mode:      CgroupNone,
	}, {
		name:      "mounted elsewhere",
		mountinfo: other + "35 30 0:31 / /mnt/cgroup rw - cgroup cgroup rw,cpu\n36 30 0:31 / /sys/fs/cgroupx rw - cgroup cgroup rw,cpu\n",
		mode:      CgroupNone,
	}, {
		name:      "truncated lines",
		mountinfo: "35 30 0:31 / /sys/fs/cgroup/cpu\n35 30 - cgroup cgroup rw,cpu\n35 30 0:31 / /sys/fs/cgroup/cpu rw - cgroup\n - \n\n",
		mode:      CgroupNone,
	}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := cgroupOf(tt.mountinfo)
			if got.Mode != tt.mode {
				t.Errorf("mode %q, want %q", got.Mode, tt.mode)
			}
			if tt.mode != CgroupV2 && !slices.Equal(got.Controllers, tt.controllers) {
				t.Errorf("controllers %v, want %v", got.Controllers, tt.controllers)
			}
			if !maps.Equal(got.Mounts, tt.mounts) {
				t.Errorf("mounts %v, want %v", got.Mounts, tt.mounts)
			}
		})
	}
}

func TestSwap(t *testing.T) {
	v1 := func(files ...string) Cgroup {
		return Cgroup{Mode: CgroupV1, Controllers: []string{"memory"}, Mounts: map[string]string{"memory": tree(t, files...)}}
	}
	v2 := func(files ...string) Cgroup {
		return Cgroup{Mode: CgroupV2, Controllers: []string{"memory"}, Mounts: map[string]string{"": tree(t, files...)}}
	}
	tests := []struct {
		name string
		c    Cgroup
		want bool
	}{
		{"v1 accounted", v1("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), true},
		{"v1 not accounted", v1("memory.limit_in_bytes"), false},
		{"v2 accounted", v2("a.slice/memory.max", "a.slice/memory.swap.max"), true},
		{"v2 not accounted", v2("a.slice/memory.max"), false},
		{"v2 accounted, one level down", v2("a/cgroup.procs", "a/b/memory.max", "a/b/memory.swap.max"), true},
		{"no memory controller", Cgroup{Mode: CgroupV2}, false},
	}
	for _, tt := range tests {
		if got := tt.c.swap(); got != tt.want {
			t.Errorf("%s: swap is %v", tt.name, got)
		}
	}
}

// tree returns a new directory with empty files at the given paths.
func tree(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestCountRanges(t *testing.T) {
	for list, want := range map[string]int{"": 0, "0": 1, "0-3": 4, "0-1,4,6-7": 5, "3-1": 0, "x,1": 1, "0-": 0} {
		if got := countRanges(list); got != want {
			t.Errorf("count of %q is %d, want %d", list, got, want)
		}
	}
}

func TestHugePageNames(t *testing.T) {
	for name, want := range map[string]string{
		"hugepages-64kB": "64KB", "hugepages-2048kB": "2MB", "hugepages-32768kB": "32MB", "hugepages-1048576kB": "1GB",
	} {
		size, ok := hugePageSize(name)
		if got := pageSizeName(size); !ok || got != want {
			t.Errorf("size of %s is %s, want %s", name, got, want)
		}
	}
	for _, name := range []string{"", "hugepages-", "hugepages-kB", "hugepages-0kB", "hugepages--1kB", "2048kB", "hugepages-2MB"} {
		if size, ok := hugePageSize(name); ok {
			t.Errorf("size of %q is %d KiB, want none", name, size)
		}
	}
}

func TestExisting(t *testing.T) {
	dir := t.TempDir()
	for path, want := range map[string]string{dir: dir, dir + "/a/b": dir, "/": "/", "no/such": ".", "": "."} {
		if got := existing(path); got != want {
			t.Errorf("existing(%q) is %q, want %q", path, got, want)
		}
	}
}

func TestProbe(t *testing.T) {
	hosttest.Root(t)
	before := readString(oomScoreAdj)
	children := readString("/proc/thread-self/children")
	got := Probe(filepath.Join(t.TempDir(), "not", "yet", "there"))
	if after := readString(oomScoreAdj); after != before {
		t.Errorf("oom_score_adj changed from %s to %s", before, after)
	}
	if left := readString("/proc/thread-self/children"); left != children {
		t.Errorf("processes left behind: %s", left)
	}
	if got.Kernel == "" || got.BootID == "" || got.CPUs < 1 || got.Memory < 1<<26 {
		t.Errorf("facts of the machine are missing: %+v", got)
	}
	if got.Cgroup.Mode == CgroupNone || !got.Cgroup.Has("memory") || !slices.IsSorted(got.Cgroup.Controllers) {
		t.Errorf("cgroups are %+v, want controllers", got.Cgroup)
	}
	if got.OOMScoreFloor > got.OOMScoreAdj {
		t.Errorf("the floor %d is above the current score %d", got.OOMScoreFloor, got.OOMScoreAdj)
	}
	if again := Probe("/"); again.OOMScoreFloor != got.OOMScoreFloor || !reflect.DeepEqual(again.Cgroup, got.Cgroup) {
		t.Errorf("two probes differ: %+v, %+v", got, again)
	}
}

// TestOOMScoreFloor checks that the kernel refuses scores below the floor.
func TestOOMScoreFloor(t *testing.T) {
	hosttest.Root(t)
	_, floor := oomScores()
	if floor == -1000 {
		t.Skip("this process can set the lowest score, so there is no floor to check")
	}
	err := os.WriteFile(oomScoreAdj, []byte("-1000"), 0)
	if err == nil || !strings.Contains(err.Error(), "permission denied") {
		t.Errorf("setting a score below the floor: %v, want permission denied", err)
	}
}

func TestIDMapUnsupported(t *testing.T) {
	hosttest.Root(t)
	if idmap("/proc") {
		t.Error("mounts of proc can be ID-mapped")
	}
	if idmap("/no/such/directory") {
		t.Error("mounts of a directory that doesn't exist can be ID-mapped")
	}
}

func BenchmarkProbe(b *testing.B) {
	for b.Loop() {
		Probe("/var/lib")
	}
}
