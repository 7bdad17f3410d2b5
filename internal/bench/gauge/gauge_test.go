package gauge

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestListener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	must(t, err)
	defer l.Close()
	if pid, err := Listener(path); err != nil || pid != os.Getpid() {
		t.Errorf("process %d, %v, want this process, %d", pid, err, os.Getpid())
	}
	if _, err := Listener(path + "-gone"); err == nil {
		t.Error("Listener found a process for a missing socket")
	}
}

func TestPSS(t *testing.T) {
	one, err := PSS(os.Getpid())
	must(t, err)
	if one < 100_000 || one > 10_000_000_000 {
		t.Errorf("PSS of this process is %d bytes", one)
	}
	gone := exec.Command("true")
	must(t, gone.Run())
	if n, err := PSS(gone.Process.Pid); err != nil || n != 0 {
		t.Errorf("PSS of a process that is gone is %d bytes, %v", n, err)
	}
	if n, err := PSS(); n != 0 || err != nil {
		t.Errorf("PSS of no process is %d bytes, %v", n, err)
	}
}

// sleeper starts a process with a number as its only argument.
func sleeper(t *testing.T, number string) int {
	t.Helper()
	cmd := exec.Command("sleep", number)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd.Process.Pid
}

func TestOf(t *testing.T) {
	id := fmt.Sprint(1_000_000_000 + os.Getpid())
	mine, other := sleeper(t, id), sleeper(t, id+"5")
	monitors, members, err := Of([]string{"unknown", id})
	must(t, err)
	if !slices.Contains(monitors, mine) || slices.Contains(members, mine) {
		t.Errorf("%d is not among the monitors %v", mine, monitors)
	}
	if slices.Contains(monitors, other) {
		t.Errorf("%d is among the monitors, but its argument only starts with the ID", other)
	}
}

func TestMentions(t *testing.T) {
	wanted := map[string]bool{"abc123": true}
	for text, want := range map[string]bool{
		"": false, "abc123": true, "-id\x00abc123\x00": true, "4:memory:/k8s.io/abc123\n": true, "/pod-abc123/x": true,
		"abc1234": false, "xabc123": false, "ABC123": false, "/run/abc123.sock": true,
	} {
		if got := mentions([]byte(text), wanted); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// TestCount checks that programs started after Count are counted, including those that they start;
// or that Read returns the reason.
func TestCount(t *testing.T) {
	c := Count(os.Getpid())
	defer c.Close()
	const runs = 3
	for range runs {
		must(t, exec.Command("sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; true & wait; exec sync -d .").Run())
	}
	for kind, least := range map[Kind]int64{CPU: int64(time.Millisecond), Execs: 2 * runs, Syncs: runs} {
		switch got, err := c.Read(kind); {
		case err != nil && !strings.Contains(err.Error(), "perf_event_open") && !strings.Contains(err.Error(), "trace"):
			t.Errorf("kind %d: %v", kind, err)
		case err != nil:
			t.Logf("kind %d can't be counted here: %v", kind, err)
		case got < least:
			t.Errorf("kind %d: %d, want at least %d", kind, got, least)
		}
	}
}

func TestCountOfMissingProcess(t *testing.T) {
	gone := exec.Command("true")
	must(t, gone.Run())
	c := Count(gone.Process.Pid)
	defer c.Close()
	if _, err := c.Read(CPU); err == nil {
		t.Error("Read succeeds for a process that is gone")
	}
}

func TestMachine(t *testing.T) {
	m := Machine()
	if m.Kernel == "" || m.CPUs < 1 || m.Memory < 1<<20 || m.CPU == "" || !slices.Contains([]string{"v1", "hybrid", "v2"}, m.Cgroup) {
		t.Errorf("%+v", m)
	}
}
