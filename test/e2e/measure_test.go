package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/internal/bench"
	"github.com/huskd/husk/internal/bench/report"
	"github.com/huskd/husk/test/node"
)

// runBench runs husk bench, which must succeed, and returns its report.
func runBench(t *testing.T, n *node.Node, args ...string) (r report.Report) {
	t.Helper()
	out := n.MustHusk(append([]string{"bench", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
	return r
}

// TestBench runs each workload of husk bench that needs a huskd.
func TestBench(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	pids := write(t, n, "huskd.pid", fmt.Sprint(d.Pid()))
	page := filepath.Join(n.Dir, "page.html")
	earlier := write(t, n, "earlier.json", n.MustHusk("bench", "pods", "-n", "3", "-o", "json"))
	r := runBench(t, n, "pods", "containers", "exec", "list", "agent", "-n", "3", "--pods", "2", "--image", "localhost/web:1", "--compare", earlier, "--html", page)
	for _, want := range []struct{ workload, operation string }{
		{"pods", bench.RunPod}, {"pods", bench.StopPod}, {"pods", bench.RemovePod}, {"pods", bench.EndPod},
		{"containers", bench.Create}, {"containers", bench.Start}, {"containers", bench.Stop}, {"containers", bench.Remove},
		{"exec", bench.Exec}, {"list, 2 pods", bench.ListPods}, {"list, 2 pods", bench.PodStatus}, {"agent", bench.Answers}, {"agent", bench.CreateStage},
	} {
		if o := r.Result(want.workload, "husk").Operation(want.operation); o == nil || o.Count != 3 || o.Errors > 0 || o.P50 <= 0 || o.P50 > o.Max {
			t.Errorf("%v: %+v", want, o)
		}
	}
	if f := r.Result("pods", "husk").Figure(bench.DaemonMemory); f == nil || f.Value < 1 {
		t.Errorf("memory of huskd: %+v", f)
	}
	if f := r.Result("list, 2 pods", "husk").Figure(bench.MonitorMemory); f == nil || f.Value <= 0 {
		t.Errorf("memory of monitors: %+v", f)
	}
	if html, err := os.ReadFile(page); err != nil || !bytes.Contains(html, []byte("<svg")) {
		t.Errorf("the page has no plots: %v", err)
	}
	table := n.MustHusk("bench", "pods", "-n", "1", "--parallel", "2", "--compare", earlier)
	if !strings.Contains(table, "CHANGE") || !strings.Contains(table, bench.PodsUp) {
		t.Errorf("the table:\n%s", table)
	}
	crowd := runBench(t, n, "agent", "-n", "3", "--parallel", "3", "--image", "localhost/web:1").Result("agent, 3 at a time", "husk")
	if all, each := crowd.Operation(bench.AllAnswer), crowd.Operation(bench.Answers); all == nil || each == nil || all.Errors > 0 || each.Count != 3*all.Count || all.P50 < each.P50 {
		t.Errorf("several manifests at once: %+v", crowd)
	}
	// A failing restart command is reported, and the pods are still removed.
	if r := n.Husk("bench", "restart", "-n", "1", "--pods", "1", "--image", "localhost/web:1", "--restart", "cat "+pids+"-gone"); r.Code != 1 || !strings.Contains(r.Stderr, "No such file") {
		t.Errorf("exit code %d:\n%s", r.Code, r.Stderr)
	}
	d.Stop()
}

// TestBenchInterrupted checks that an interrupted run removes everything that it created, and that
// the next run does so after a run that was killed.
func TestBenchInterrupted(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGKILL} {
		var says bytes.Buffer
		cmd := n.Command(t.Context(), n.Binary("husk"), "--socket", n.State+"/husk.sock", "bench", "pods", "-n", "100000", "--parallel", "4")
		cmd.Env, cmd.Stderr = append(os.Environ(), "TMPDIR="+n.Dir), &says
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		node.Eventually(t, time.Minute, func() string {
			if have := n.Inventory().Namespaces; len(have) < 5 {
				return fmt.Sprintf("%d pods so far", len(have))
			}
			return ""
		})
		if err := syscall.Kill(onlyChild(t, cmd), signal); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()
		if signal != syscall.SIGKILL && !strings.Contains(says.String(), "interrupted: everything that was created is removed") {
			t.Errorf("%v: stderr is %q", signal, says.String())
		}
		if signal == syscall.SIGKILL {
			if len(n.Inventory().Namespaces) == 0 {
				t.Error("the killed run left nothing behind: the test proves nothing")
			}
			again := n.Command(t.Context(), n.Binary("husk"), "--socket", n.State+"/husk.sock", "bench", "pods", "-n", "1")
			again.Env = cmd.Env
			if out, err := again.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
		if left := n.Inventory().Namespaces; len(left) > 0 {
			t.Errorf("%v: left behind: %v", signal, left)
		}
		if left, _ := filepath.Glob(filepath.Join(n.Dir, "husk-bench-*")); len(left) > 0 {
			t.Errorf("%v: left behind: %v", signal, left)
		}
	}
	d.Stop()
}

// onlyChild returns the PID of the program that nsenter runs.
func onlyChild(t *testing.T, cmd *exec.Cmd) (pid int) {
	t.Helper()
	path := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	children, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := fmt.Sscan(string(children), &pid); n != 1 || err != nil {
		t.Fatalf("nsenter's children are %q, want one PID", children)
	}
	return pid
}
