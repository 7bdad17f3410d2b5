package bench

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// killed returns the name of a run whose process is gone.
func killed(t testing.TB) string {
	t.Helper()
	gone := exec.Command("true")
	must(t, gone.Run())
	return fmt.Sprintf("%s%d-%s", runPrefix, gone.Process.Pid, "1")
}

func TestNamesOfRuns(t *testing.T) {
	mine := newRun()
	if _, _, ok := parseRun(mine); !ok || isDead(mine) {
		t.Errorf("isDead reports this run, %s, as dead", mine)
	}
	if run := killed(t); !isDead(run) {
		t.Errorf("isDead reports %s as alive", run)
	}
	if reused := fmt.Sprintf("%s%d-1", runPrefix, os.Getpid()); !isDead(reused) {
		t.Errorf("isDead reports %s as alive because its process ID was reused", reused)
	}
	for _, name := range []string{"", "bench-", "bench-1", "bench-1-", "bench-x-1", "bench--1", "web-1-2", "bench-0-5", "bench-99999999999999999999-5"} {
		if isDead(name) {
			t.Errorf("isDead accepts %q, which is not the name of a run", name)
		}
	}
	for pod, want := range map[string]string{mine + "-7": mine, mine: "bench-" + fmt.Sprint(os.Getpid()), "web": "", "web-1": "", "bench": ""} {
		if got := runOf(pod); got != want {
			t.Errorf("pod %q is of run %q, want %q", pod, got, want)
		}
	}
}

// TestDirectories checks that a run removes only the directories of runs that were killed.
func TestDirectories(t *testing.T) {
	hosttest.Root(t)
	t.Setenv("TMPDIR", t.TempDir())
	s := &session{run: killed(t)}
	var err error
	if s.dir, err = makeDir(s.run); err != nil {
		t.Fatal(err)
	}
	if _, err := s.namespace("left"); err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(os.TempDir(), "husk-bench-of-mine")
	must(t, os.Mkdir(other, 0o755))
	dir, err := makeDir(newRun())
	must(t, err)
	if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
		t.Errorf("the directory of a killed run is left: %v", err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Errorf("another directory was removed: %v", err)
	}
	must(t, removeDir(dir))
}

func TestParallel(t *testing.T) {
	var now, most, all atomic.Int32
	parallel(t.Context(), 20, 3, func(int) {
		most.Store(max(most.Load(), now.Add(1)))
		all.Add(1)
		time.Sleep(time.Millisecond)
		now.Add(-1)
	})
	if all.Load() != 20 || most.Load() > 3 {
		t.Errorf("%d calls, %d at a time", all.Load(), most.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	parallel(ctx, 20, 3, func(int) { t.Error("called after cancellation") })
	parallel(t.Context(), 0, 3, func(int) { t.Error("called with n = 0") })
}

// TestLocal runs the workloads that need no runtime, and checks that nothing is left behind.
func TestLocal(t *testing.T) {
	hosttest.Root(t)
	t.Setenv("TMPDIR", t.TempDir())
	var steps atomic.Int32
	r, err := Run(t.Context(), Config{Workloads: []string{"net", "ipam"}, Samples: 2, Progress: func(Step) { steps.Add(1) }})
	must(t, err)
	for _, want := range []struct{ workload, of, operation string }{
		{"net", BuiltIn, Attach}, {"net", BuiltIn, Detach}, {"net", BuiltIn, RoundTrip}, {"net", BareVeth, RoundTrip},
		{"ipam", Leased(0), LeaseRecord}, {"ipam", Leased(20_000), Lease},
	} {
		if o := r.Result(want.workload, want.of).Operation(want.operation); o == nil || o.P50 <= 0 || o.Errors > 0 {
			t.Errorf("%v: %+v", want, o)
		}
	}
	if f := r.Result("net", BuiltIn).Figure(Throughput); f == nil || f.Value <= 0 {
		t.Errorf("throughput %+v", f)
	}
	if steps.Load() == 0 || r.Errors() != 0 || r.Machine.Kernel == "" {
		t.Errorf("%d steps, %d errors, machine %+v", steps.Load(), r.Errors(), r.Machine)
	}
	if left, _ := filepath.Glob(os.TempDir() + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestRunRefuses(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	for name, cfg := range map[string]Config{
		"an unknown workload":       {Workloads: []string{"nap"}},
		"no listener at the socket": {Workloads: []string{"pods"}, Endpoints: []Endpoint{{Socket: filepath.Join(t.TempDir(), "none.sock")}}},
		"no huskd for agent":        {Workloads: []string{"agent"}},
		"no command for restart":    {Workloads: []string{"restart"}},
	} {
		if _, err := Run(t.Context(), cfg); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if left, _ := filepath.Glob(os.TempDir() + "/*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}
