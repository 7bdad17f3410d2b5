package stats

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
)

// tree writes files into a new directory and returns that.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// want is the usage that both test cgroups represent.
func want() *Usage {
	return &Usage{
		CPU:       CPU{Used: 7_000_000, User: 30_000_000, System: 10_000_000, Periods: 9, Throttled: 2, ThrottledTime: 5_000, Shares: 1024, Quota: 20000, Period: 100000},
		Memory:    Memory{Used: 1000, WorkingSet: 700, Max: 1200, Limit: 4096, RSS: 400, Cache: 500, Mapped: 60, Kernel: 70, InactiveFile: 300, Swap: 11, SwapLimit: 100, Failures: 3, OOMKills: 1, Own: MemoryFaults{20, 2}, Faults: MemoryFaults{20, 2}},
		Processes: 5, ProcessLimit: 50,
		HugePages: []HugePages{{Size: "2MB", Usage: 2 << 20, Max: 4 << 20}},
		Disks:     []DiskIO{{Major: 8, Minor: 1, ReadBytes: 4096, WrittenBytes: 8192, ReadCount: 1, WrittenCount: 2}},
	}
}

func TestCgroupV1(t *testing.T) {
	dir := tree(t, map[string]string{
		"cpuacct/c/cpuacct.usage": "7000000\n", "cpuacct/c/cpuacct.stat": "user 3\nsystem 1\n",
		"cpu/c/cpu.shares": "1024\n", "cpu/c/cpu.cfs_quota_us": "20000\n", "cpu/c/cpu.cfs_period_us": "100000\n",
		"cpu/c/cpu.stat":                 "nr_periods 9\nnr_throttled 2\nthrottled_time 5000\n",
		"memory/c/memory.usage_in_bytes": "1000\n", "memory/c/memory.max_usage_in_bytes": "1200\n", "memory/c/memory.limit_in_bytes": "4096\n",
		"memory/c/memory.memsw.limit_in_bytes": "4196\n", "memory/c/memory.kmem.usage_in_bytes": "70\n", "memory/c/memory.failcnt": "3\n",
		"memory/c/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 1\n",
		"memory/c/memory.stat":        "pgfault 20\npgmajfault 2\ntotal_rss 400\ntotal_cache 500\ntotal_mapped_file 60\ntotal_swap 11\ntotal_inactive_file 300\ntotal_pgfault 20\ntotal_pgmajfault 2\n",
		"pids/c/pids.current":         "5\n", "pids/c/pids.max": "50\n",
		"hugetlb/c/hugetlb.2MB.usage_in_bytes": "2097152\n", "hugetlb/c/hugetlb.2MB.max_usage_in_bytes": "4194304\n",
		"blkio/c/blkio.throttle.io_service_bytes_recursive": "8:1 Read 4096\n8:1 Write 8192\n8:1 Sync 0\nTotal 12288\n",
		"blkio/c/blkio.throttle.io_serviced_recursive":      "8:1 Read 1\n8:1 Write 2\nx y z\nTotal 3\n",
	})
	mounts := map[string]string{}
	for _, c := range []string{"cpu", "cpuacct", "memory", "pids", "hugetlb", "blkio"} {
		mounts[c] = filepath.Join(dir, c)
	}
	check(t, host.Cgroup{Mode: host.CgroupV1, Mounts: mounts, HugePages: []string{"2MB"}}, want())
}

func TestCgroupV2(t *testing.T) {
	dir := tree(t, map[string]string{
		"c/cpu.stat":   "usage_usec 7000\nuser_usec 30000\nsystem_usec 10000\nnr_periods 9\nnr_throttled 2\nthrottled_usec 5\n",
		"c/cpu.weight": "39\n", "c/cpu.max": "20000 100000\n",
		"c/memory.current": "1000\n", "c/memory.peak": "1200\n", "c/memory.max": "4096\n", "c/memory.swap.current": "11\n", "c/memory.swap.max": "100\n",
		"c/memory.stat":   "anon 400\nfile 500\nfile_mapped 60\nkernel 70\ninactive_file 300\npgfault 20\npgmajfault 2\n",
		"c/memory.events": "low 0\nhigh 0\nmax 3\noom 1\noom_kill 1\n",
		"c/pids.current":  "5\n", "c/pids.max": "50\n",
		"c/hugetlb.2MB.current": "2097152\n", "c/hugetlb.2MB.max": "4194304\n",
		"c/io.stat":         "8:1 rbytes=4096 wbytes=8192 rios=1 wios=2 dbytes=0 dios=0\n8:2\nbroken a=b\n",
		"c/memory.pressure": "some avg10=1.50 avg60=0.20 avg300=0.03 total=7\nfull avg10=0.50 avg60=0.00 avg300=0.00 total=3\n",
	})
	u := want()
	u.CPU.Shares = 998 // v2's weights are coarser
	u.Pressure.Memory = &Pressure{
		Some: Stall{Total: 7000, Avg10: 1.5, Avg60: 0.2, Avg300: 0.03},
		Full: Stall{Total: 3000, Avg10: 0.5},
	}
	check(t, host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": dir}, HugePages: []string{"2MB"}}, u)
}

func check(t *testing.T, c host.Cgroup, want *Usage) {
	t.Helper()
	m := New(c, nil)
	got, err := m.Cgroup("/c")
	if err != nil {
		t.Fatal(err)
	}
	if time.Since(got.At) > time.Minute {
		t.Errorf("read at %v", got.At)
	}
	got.At = time.Time{}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if _, err := m.Cgroup("/none"); !errdefs.IsNotFound(err) {
		t.Errorf("no cgroup: %v", err)
	}
}

// TestNoLimits checks that "max" and v1's largest number mean no limit.
func TestNoLimits(t *testing.T) {
	v1 := tree(t, map[string]string{"c/memory.limit_in_bytes": "9223372036854771712\n", "c/memory.memsw.limit_in_bytes": "9223372036854771712\n", "c/cpu.cfs_quota_us": "-1\n", "c/pids.max": "max\n"})
	mounts := map[string]string{"memory": v1, "cpu": v1, "pids": v1}
	v2 := tree(t, map[string]string{"c/memory.max": "max\n", "c/memory.swap.max": "max\n", "c/cpu.max": "max 100000\n", "c/pids.max": "max\n"})
	for _, c := range []host.Cgroup{{Mode: host.CgroupHybrid, Mounts: mounts}, {Mode: host.CgroupV2, Mounts: map[string]string{"": v2}}} {
		u, err := New(c, nil).Cgroup("/c")
		if err != nil {
			t.Fatal(err)
		}
		if u.Memory.Limit != 0 || u.Memory.SwapLimit != 0 || u.CPU.Quota != 0 || u.ProcessLimit != 0 {
			t.Errorf("%s: %+v", c.Mode, u)
		}
	}
}

func TestParseDev(t *testing.T) {
	const dev = `Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       1    0    0    0     0          0         0      100       1    0    0    0     0       0          0
  eth0: 1 2 3 4 0 0 0 0 5 6 7 8 0 0 0 0
broken: 1 2
`
	got := parseDev([]byte(dev))
	if want := []Interface{{"eth0", Traffic{1, 2, 3, 4}, Traffic{5, 6, 7, 8}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestLayer(t *testing.T) {
	dir := tree(t, map[string]string{"upper/a": "x", "upper/d/b": string(make([]byte, 1<<20))})
	if err := os.Link(filepath.Join(dir, "upper/d/b"), filepath.Join(dir, "upper/c")); err != nil {
		t.Fatal(err)
	}
	m := New(host.Cgroup{}, nil)
	l := m.Layer("id", dir)
	if l.Inodes != 4 || l.Bytes < 1<<20 || l.Bytes > 1<<20+1<<16 {
		t.Errorf("two directories and two files, one of them with two names: %+v", l)
	}
	if err := os.Remove(filepath.Join(dir, "upper/a")); err != nil {
		t.Fatal(err)
	}
	if again := m.Layer("id", dir); again != l {
		t.Errorf("the cached usage was not used: %+v", again)
	}
	m.dirs["id"].used = time.Now().Add(-2 * forgetAfter)
	m.Layer("another", dir)
	if again := m.Layer("id", dir); again.Inodes != 3 || len(m.dirs) != 2 {
		t.Errorf("after forgetAfter: %+v, and %d are cached", again, len(m.dirs))
	}
	if none := m.Layer("other", filepath.Join(dir, "none")); none.Bytes != 0 || none.Inodes != 0 {
		t.Errorf("no layer: %+v", none)
	}
}

func TestRate(t *testing.T) {
	m := New(host.Cgroup{}, nil)
	at := time.Now()
	for i, step := range []struct {
		after time.Duration
		used  uint64
		want  uint64
		ok    bool
	}{
		{0, 1000, 0, false},
		{time.Second, 3000, 2000, true},
		{1100 * time.Millisecond, 9000, 2000, true}, // within the rateWindow
		{3 * time.Second, 5000, 1000, true},
		{4 * time.Second, 10, 0, false}, // a new cgroup with the same ID
		{6 * time.Second, 30, 10, true},
	} {
		if got, ok := m.Rate("id", at.Add(step.after), step.used); got != step.want || ok != step.ok {
			t.Errorf("step %d: %d, %v", i, got, ok)
		}
	}
}

// TestProcesses reads a file like that of a cgroup, and the descriptors of this process.
func TestProcesses(t *testing.T) {
	dir := tree(t, map[string]string{"c/cgroup.procs": "1073741824\n"})
	p := New(host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": dir}}, nil).Processes("/c")
	if p.Count != 1 || p.Files != 0 {
		t.Errorf("a process that is gone: %+v", p)
	}
	if files, _ := descriptors("/proc/self/fd"); files < 3 {
		t.Errorf("%d files are open", files)
	}
	if openFiles("/proc/self") == 0 {
		t.Error("no limit of open files")
	}
}

// TestGuestUsage checks that a cgroup without processes gets the usage of its guest.
func TestGuestUsage(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	m := New(host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": dir}}, func(cgroup string) (oci.Usage, bool) {
		return oci.Usage{CPU: 1, Memory: 2, Processes: 3}, cgroup != "/other"
	})
	for _, cgroup := range []string{"/empty", "/missing"} {
		u, err := m.Cgroup(cgroup)
		if err != nil || u.CPU.Used != 1 || u.Memory.Used != 2 || u.Memory.WorkingSet != 2 || u.Processes != 3 {
			t.Errorf("%s: %+v, %v", cgroup, u, err)
		}
	}
	if u, err := m.Cgroup("/other"); err == nil {
		t.Errorf("%+v", u)
	}
}
