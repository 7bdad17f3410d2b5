package exectag

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/cgroup"
	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
)

func TestNew(t *testing.T) {
	seen := map[Tag]bool{}
	for range 100 {
		tag := New()
		if tag < 2 || seen[tag] || tag > 1<<62 {
			t.Fatalf("tag %d is out of range or not unique", tag)
		}
		seen[tag] = true
		if tag.on(os.Getpid()) {
			t.Errorf("this process has the tag %d", tag)
		}
	}
	if Tag(1).on(1<<30) || Tag(0).on(os.Getpid()) {
		t.Error("found a tag that no process has")
	}
}

func TestAdd(t *testing.T) {
	files := Limit{Type: "RLIMIT_NOFILE", Hard: 9, Soft: 8}
	got := Tag(7).Add([]Limit{{Type: "RLIMIT_LOCKS", Hard: 5, Soft: 5}, files})
	if want := []Limit{files, {Type: "RLIMIT_LOCKS", Hard: 7, Soft: 7}}; !slices.Equal(got, want) {
		t.Errorf("limits are %v, want %v", got, want)
	}
}

// start runs a shell script as a process with the tag, and returns its stdin and its output. The
// script begins once something is written to stdin.
func start(t *testing.T, tag Tag, script string) (*exec.Cmd, io.Writer, *bufio.Reader) {
	t.Helper()
	cmd := exec.Command("sh", "-c", "read go; "+script)
	stdin, _ := cmd.StdinPipe()
	stdout, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	if err := unix.Prlimit(cmd.Process.Pid, rlimitLocks, &unix.Rlimit{Cur: uint64(tag), Max: uint64(tag)}, nil); err != nil {
		t.Fatal(err)
	}
	return cmd, stdin, bufio.NewReader(stdout)
}

func TestOn(t *testing.T) {
	tag, other := New(), New()
	tagged, _, _ := start(t, tag, "")
	stranger, _, _ := start(t, other, "")
	for _, test := range []struct {
		tag  Tag
		pid  int
		want bool
	}{
		{tag, tagged.Process.Pid, true},
		{tag, stranger.Process.Pid, false},
		{other, tagged.Process.Pid, false},
		{other, stranger.Process.Pid, true},
	} {
		if got := test.tag.on(test.pid); got != test.want {
			t.Errorf("tag %d on process %d: %v, want %v", test.tag, test.pid, got, test.want)
		}
	}
	found := tag.among([]int{os.Getpid(), stranger.Process.Pid, tagged.Process.Pid, 1 << 30})
	if len(found) != 1 {
		t.Fatalf("found %d tagged processes, want 1", len(found))
	}
	defer found[0].Close()
	info, err := os.ReadFile(fmt.Sprintf("/proc/self/fdinfo/%d", found[0].Fd()))
	if err != nil || !strings.Contains(string(info), fmt.Sprintf("Pid:\t%d\n", tagged.Process.Pid)) {
		t.Errorf("found another process than %d: %s, %v", tagged.Process.Pid, info, err)
	}
}

// TestKill kills a process and its orphan, which has left the session and cleared its environment.
// A process of the same cgroup with another tag survives.
func TestKill(t *testing.T) {
	hosttest.Root(t)
	tree := newTree(t)
	tag := New()
	tagged, stdin, out := start(t, tag, "(setsid env -i sleep 1000 & echo $!); exec sleep 1000")
	stranger, _, _ := start(t, New(), "")
	join(t, tree, tagged.Process.Pid)
	join(t, tree, stranger.Process.Pid)
	fmt.Fprintln(stdin)
	line, err := out.ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	orphan, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil || !tag.on(orphan) {
		t.Fatalf("the orphan %q has no tag, %v", line, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := tag.Kill(ctx, tree, tree.Root()); err != nil {
		t.Fatal(err)
	}
	if err := tagged.Wait(); err == nil {
		t.Error("the tagged process ended by itself")
	}
	if got, err := tree.PIDs(tree.Root()); err != nil || !slices.Equal(got, []int{stranger.Process.Pid}) {
		t.Errorf("processes left: %v, %v; want %d", got, err, stranger.Process.Pid)
	}
}

// hierarchy is the mount point of a cgroup hierarchy that has no files to fill in first.
func hierarchy(t *testing.T) string {
	t.Helper()
	c := host.Probe("/").Cgroup
	for _, name := range []string{"", "pids", "memory"} {
		if mount, ok := c.Mounts[name]; ok {
			return mount
		}
	}
	t.Fatalf("this host has no cgroup hierarchy for the test: %v", c.Mounts)
	return ""
}

func newTree(t *testing.T) *cgroup.Tree {
	t.Helper()
	tree, err := cgroup.New(host.Probe("/").Cgroup, fmt.Sprintf("/husk-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(hierarchy(t), tree.Root()), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Remove(context.Background(), tree.Root()); err != nil {
			t.Error(err)
		}
	})
	return tree
}

func join(t *testing.T, tree *cgroup.Tree, pid int) {
	t.Helper()
	procs := filepath.Join(hierarchy(t), tree.Root(), "cgroup.procs")
	if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0); err != nil {
		t.Fatal(err)
	}
}
