package cgroup

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
)

func TestNewRefuses(t *testing.T) {
	for _, root := range []string{"", "/", "husk", "/husk/", "/husk/..", "//husk", "/a/../b", "."} {
		if _, err := New(host.Cgroup{}, root); !errdefs.IsInvalidArgument(err) {
			t.Errorf("New(%q): %v, want an invalid argument", root, err)
		}
	}
}

func TestOutsideIsRefused(t *testing.T) {
	mount := t.TempDir()
	tree, err := New(host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": mount}}, "/husk-1")
	if err != nil {
		t.Fatal(err)
	}
	for _, cgroup := range []string{"", "/", "/other", "/husk-12", "/husk-1/../other", "husk-1", "/husk-1/", "/husk-1//a", "/husk-1/./a"} {
		if err := os.MkdirAll(filepath.Join(mount, cgroup), 0o755); err != nil {
			t.Fatal(err)
		}
		_, pids := tree.PIDs(cgroup)
		for op, err := range map[string]error{
			"create": tree.Create(cgroup, Limits{}), "pids": pids,
			"kill": tree.Kill(t.Context(), cgroup), "remove": tree.Remove(t.Context(), cgroup),
		} {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%s %q: %v, want an invalid argument", op, cgroup, err)
			}
		}
		if tree.Exists(cgroup) {
			t.Errorf("%q exists in the tree", cgroup)
		}
		if _, err := os.Stat(filepath.Join(mount, cgroup)); err != nil {
			t.Errorf("%q was removed: %v", cgroup, err)
		}
	}
}

// TestLimitFiles checks which files are written, with plain directories in place of the
// hierarchies.
func TestLimitFiles(t *testing.T) {
	cpu, memory, pids, unified := t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	v1 := host.Cgroup{Mode: host.CgroupHybrid, Mounts: map[string]string{"cpu": cpu, "cpuacct": cpu, "memory": memory, "pids": pids, "": t.TempDir()}}
	v2 := host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": unified}}
	if err := write(unified, []setting{{file: "cgroup.controllers", value: "cpu memory\n"}}); err != nil {
		t.Fatal(err)
	}
	limits := Limits{CPUShares: 512, CPUQuota: 50_000, Memory: 64 << 20, Pids: 1000}
	for _, c := range []host.Cgroup{v1, v2} {
		tree, err := New(c, "/husk-1")
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // Create can be repeated
			if err := tree.Create("/husk-1/pod", limits); err != nil {
				t.Fatal(err)
			}
		}
	}
	for file, want := range map[string]string{
		cpu + "/husk-1/pod/cpu.shares":                   "512",
		cpu + "/husk-1/pod/cpu.cfs_period_us":            "100000",
		cpu + "/husk-1/pod/cpu.cfs_quota_us":             "50000",
		memory + "/husk-1/pod/memory.limit_in_bytes":     "67108864",
		memory + "/husk-1/pod/memory.use_hierarchy":      "1",
		pids + "/husk-1/pod/pids.max":                    "1000",
		unified + "/husk-1/pod/pids.max":                 "1000",
		unified + "/cgroup.subtree_control":              "+memory", // the last of two writes
		unified + "/husk-1/pod/cpu.weight":               "20",
		unified + "/husk-1/pod/cpu.max":                  "50000 100000",
		unified + "/husk-1/pod/memory.max":               "67108864",
		unified + "/husk-1/pod/memory.limit_in_bytes":    "",
		cpu + "/husk-1/pod/memory.limit_in_bytes":        "",
		v1.Mounts[""] + "/husk-1/pod/cgroup.controllers": "",
	} {
		got, _ := os.ReadFile(file)
		if string(got) != want {
			t.Errorf("%s is %q, want %q", file, got, want)
		}
	}
}

func TestOOMKills(t *testing.T) {
	memory, unified := t.TempDir(), t.TempDir()
	for file, content := range map[string]string{
		memory + "/husk-1/a/memory.oom_control":   "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
		memory + "/husk-1/old/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n",
		unified + "/husk-1/a/memory.events":       "low 0\nmax 9\noom 5\noom_kill 4\noom_group_kill 7\n",
		unified + "/husk-1/old/memory.events":     "torn",
		unified + "/other/memory.events":          "oom_kill 4\n",
	} {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		c      host.Cgroup
		cgroup string
		want   int
	}{
		{host.Cgroup{Mode: host.CgroupV1, Mounts: map[string]string{"memory": memory}}, "/husk-1/a", 3},
		{host.Cgroup{Mode: host.CgroupHybrid, Mounts: map[string]string{"memory": memory, "": unified}}, "/husk-1/a", 3},
		{host.Cgroup{Mode: host.CgroupV1, Mounts: map[string]string{"memory": memory}}, "/husk-1/old", 0},
		{host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": unified}}, "/husk-1/a", 4},
		{host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": unified}}, "/husk-1/old", 0},
		{host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": unified}}, "/husk-1/missing", 0},
		{host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": unified}}, "/other", 0},
	} {
		tree, err := New(test.c, "/husk-1")
		if err != nil {
			t.Fatal(err)
		}
		if got := tree.OOMKills(test.cgroup); got != test.want {
			t.Errorf("OOM kills of %s on %s: %d, want %d", test.cgroup, test.c.Mode, got, test.want)
		}
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[uint64]uint64{0: 1, 1: 1, 2: 1, 1024: 39, 512: 20, 262144: 10000, 1 << 40: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight of %d shares is %d, want %d", shares, got, want)
		}
	}
}

// modes returns this host's cgroups as they are and, on a hybrid host, as if it had only v1, only
// v2, or no freezer.
func modes(t *testing.T) map[string]host.Cgroup {
	t.Helper()
	hosttest.Root(t)
	probed := host.Probe("/").Cgroup
	out := map[string]host.Cgroup{"host": probed}
	if unified, ok := probed.Mounts[""]; ok && probed.Mode == host.CgroupHybrid {
		out["only v2"] = host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": unified}}
		v1 := host.Cgroup{Mode: host.CgroupV1, Controllers: probed.Controllers, Mounts: map[string]string{}}
		for name, mount := range probed.Mounts {
			if name != "" {
				v1.Mounts[name] = mount
			}
		}
		out["only v1"] = v1
		thawed := v1
		thawed.Mounts = maps.Clone(v1.Mounts)
		delete(thawed.Mounts, "freezer")
		out["v1 without freezer"] = thawed
	}
	return out
}

// newTree returns a tree for one test, which is removed at its end.
func newTree(t *testing.T, c host.Cgroup) *Tree {
	t.Helper()
	tree, err := New(c, fmt.Sprintf("/husk-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(context.Background(), tree.Root()); err != nil {
			t.Error(err)
		}
		if tree.Exists(tree.Root()) {
			t.Error("the tree still exists")
		}
	})
	return tree
}

// mkdir creates the cgroup in all hierarchies but cpuset, which takes no process until it is filled
// in.
func mkdir(t *testing.T, tree *Tree, cgroup string) {
	t.Helper()
	for _, mount := range tree.mounts {
		if mount == tree.host.Mounts["cpuset"] {
			continue
		}
		if err := os.MkdirAll(filepath.Join(mount, cgroup), 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// runIn runs a shell script in the cgroup, and in those at the further directories, and returns
// when the script prints "ready".
func runIn(t *testing.T, tree *Tree, cgroup, script string, further ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read go; "+script)
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for _, dir := range append(tree.dirs(cgroup), further...) {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(fmt.Sprint(cmd.Process.Pid)), 0); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(stdin, "go")
	if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "ready\n" {
		t.Fatalf("the script printed %q, %v; want ready", line, err)
	}
	return cmd
}

func TestKillAndRemove(t *testing.T) {
	scripts := map[string]string{
		"one process":       "echo ready; exec sleep 1000",
		"ignoring TERM":     "trap '' TERM INT; echo ready; while :; do sleep 1000; done",
		"in other sessions": "setsid sh -c 'sleep 1000 & setsid sleep 1000 &' & echo ready; wait; sleep 1000",
		"that keep forking": "f() { sleep 0.01 & f & }; f; f; echo ready; while :; do (sleep 0.01 &); (sleep 0.01 &) done",
	}
	for mode, c := range modes(t) {
		for name, script := range scripts {
			t.Run(mode+"/"+name, func(t *testing.T) {
				t.Parallel()
				tree := newTree(t, c)
				pod, ctr := tree.Root()+"/pod", tree.Root()+"/pod/ctr"
				mkdir(t, tree, ctr)
				var further []string
				if name == "that keep forking" {
					further = limitPIDs(t, tree)
				}
				runIn(t, tree, ctr, script, further...)
				if got, err := tree.PIDs(tree.Root()); err != nil || len(got) == 0 {
					t.Fatalf("PIDs of the running tree: %v, %v", got, err)
				}
				if list, err := tree.List(); err != nil || !slices.Equal(list, []string{pod, ctr}) {
					t.Fatalf("cgroups of the running tree: %v, %v", list, err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if err := tree.Remove(ctx, pod); err != nil {
					t.Fatal(err)
				}
				if got, err := tree.PIDs(tree.Root()); err != nil || len(got) != 0 {
					t.Errorf("PIDs after Remove: %v, %v", got, err)
				}
				if list, err := tree.List(); err != nil || len(list) != 0 {
					t.Errorf("cgroups after Remove: %v, %v", list, err)
				}
				if err := tree.Remove(ctx, pod); err != nil {
					t.Errorf("second Remove: %v", err)
				}
			})
		}
	}
}

// limitPIDs keeps a fork bomb in the tree from taking the machine. It returns the cgroups outside
// of the tree that the fork bomb must join for that.
func limitPIDs(t *testing.T, tree *Tree) (further []string) {
	t.Helper()
	mount, ok := tree.host.Mounts["pids"]
	if tree.host.Mode.Unified() {
		mount, ok = tree.host.Mounts[""], tree.host.Has("pids")
	}
	if !ok { // "only v2" of a hybrid host, whose pids controller is on v1
		c := host.Probe("/").Cgroup
		if mount, ok = c.Mounts["pids"]; !ok {
			t.Fatal("this host has no pids controller to limit a fork bomb with")
		}
		tree = newTree(t, c)
		further = append(further, filepath.Join(mount, tree.Root()))
		if err := os.Mkdir(further[0], 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Create(tree.Root(), Limits{}); err != nil { // on v2 this enables pids in the root
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mount, tree.Root(), "pids.max"), []byte("64"), 0); err != nil {
		t.Fatal(err)
	}
	return further
}

func TestKillFrozen(t *testing.T) {
	hosttest.Root(t)
	c := host.Probe("/").Cgroup
	tree := newTree(t, c)
	mkdir(t, tree, tree.Root()+"/ctr")
	cmd := runIn(t, tree, tree.Root()+"/ctr", "echo ready; exec sleep 1000")
	if c.Mode.Unified() {
		if err := write(filepath.Join(c.Mounts[""], tree.Root(), "ctr"), []setting{{file: "cgroup.freeze", value: "1"}}); err != nil {
			t.Fatal(err)
		}
	} else {
		tree.freeze(tree.Root()+"/ctr", "FROZEN")
	}
	if err := tree.Kill(t.Context(), tree.Root()+"/ctr"); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process exited by itself")
	}
}

func TestKillLeavesSiblings(t *testing.T) {
	for mode, c := range modes(t) {
		t.Run(mode, func(t *testing.T) {
			tree := newTree(t, c)
			mkdir(t, tree, tree.Root()+"/a")
			mkdir(t, tree, tree.Root()+"/ab")
			runIn(t, tree, tree.Root()+"/a", "echo ready; exec sleep 1000")
			other := runIn(t, tree, tree.Root()+"/ab", "echo ready; exec sleep 1000")
			if err := tree.Kill(t.Context(), tree.Root()+"/a"); err != nil {
				t.Fatal(err)
			}
			if got, err := tree.PIDs(tree.Root()); err != nil || !slices.Equal(got, []int{other.Process.Pid}) {
				t.Errorf("processes left: %v, %v; want %d", got, err, other.Process.Pid)
			}
		})
	}
}

func TestKillRefusesItself(t *testing.T) {
	cmd := exec.Command(os.Args[0], "-test.run=^TestKillRefusesItselfChild$", "-test.v")
	cmd.Env = append(os.Environ(), "HUSK_CGROUP_CHILD=1")
	hosttest.Root(t)
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "PASS") {
		t.Errorf("the child process failed: %v: %s", err, out)
	}
}

func TestKillRefusesItselfChild(t *testing.T) {
	if os.Getenv("HUSK_CGROUP_CHILD") == "" {
		t.Skip("run by TestKillRefusesItself")
	}
	tree := newTree(t, host.Probe("/").Cgroup)
	mkdir(t, tree, tree.Root())
	dirs := tree.dirs(tree.Root())
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.Remove(t.Context(), tree.Root()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("Remove: %v, want a failed precondition", err)
	}
	for _, dir := range dirs {
		if err := os.WriteFile(filepath.Join(filepath.Dir(dir), "cgroup.procs"), []byte("0"), 0); err != nil {
			t.Error(err)
		}
	}
}

// TestKillGivesUp checks that Kill returns when its context ends, as it must if a process is stuck
// in the kernel.
func TestKillGivesUp(t *testing.T) {
	hosttest.Root(t)
	tree := newTree(t, host.Probe("/").Cgroup)
	mkdir(t, tree, tree.Root()+"/ctr")
	runIn(t, tree, tree.Root()+"/ctr", "echo ready; exec sleep 1000")
	ctx, cancel := context.WithCancelCause(t.Context())
	reason := errors.New("enough")
	cancel(reason)
	if err := tree.Kill(ctx, tree.Root()+"/ctr"); !errors.Is(err, reason) {
		t.Errorf("Kill: %v, want %v", err, reason)
	}
}

func TestCreateOnThisHost(t *testing.T) {
	hosttest.Root(t)
	c := host.Probe("/").Cgroup
	tree := newTree(t, c)
	pod := tree.Root() + "/pod"
	for _, memory := range []int64{64 << 20, 128 << 20} {
		if err := tree.Create(pod, Limits{CPUShares: 512, CPUQuota: 50_000, CPUPeriod: 100_000, Memory: memory}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(c.Mounts["memory"], pod, "memory.limit_in_bytes")
		if c.Mode.Unified() {
			file = filepath.Join(c.Mounts[""], pod, "memory.max")
		}
		got, err := os.ReadFile(file)
		if strings.TrimSpace(string(got)) != fmt.Sprint(memory) {
			t.Errorf("%s is %q, %v; want %d", file, got, err, memory)
		}
	}
	if err := tree.Create(pod, Limits{CPUQuota: 1}); err == nil || !strings.Contains(err.Error(), "create cgroup "+pod) {
		t.Errorf("Create with a quota of 1 µs: %v", err)
	}
	runIn(t, tree, pod, "echo ready; exec sleep 1000")
}

func TestOtherOOMKills(t *testing.T) {
	mount := t.TempDir()
	for dir, kills := range map[string]int{"": 7, "a": 2, "a/deep": 2, "b": 1} {
		path := filepath.Join(mount, "pod", dir)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, "memory.events"), fmt.Appendf(nil, "max 40\noom_kill %d\noom_group_kill 3\n", kills), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	none := func(string) bool { return false }
	for _, test := range []struct {
		root string
		mode host.CgroupMode
		keep func(string) bool
		want int
	}{
		{"/pod", host.CgroupV2, none, 7},
		{"/pod", host.CgroupV2, func(string) bool { return true }, 4},
		{"/pod", host.CgroupV2, func(child string) bool { return child != "/pod/a" }, 6},
		{"/other", host.CgroupV2, none, 0},
		{"/pod", host.CgroupV1, none, 0},
	} {
		tree, err := New(host.Cgroup{Mode: test.mode, Mounts: map[string]string{"": mount}}, test.root)
		if err != nil {
			t.Fatal(err)
		}
		if got := tree.OtherOOMKills(test.keep); got != test.want {
			t.Errorf("other OOM kills of %s on %s: %d, want %d", test.root, test.mode, got, test.want)
		}
	}
}
