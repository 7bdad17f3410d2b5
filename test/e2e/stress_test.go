package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// sleeper is a pod with one container that ends at once on SIGTERM.
const sleeper = `
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  terminationGracePeriodSeconds: 5
  containers:
  - {name: c, image: 'localhost/web:1', command: [/bin/sh, -c, 'trap "exit 0" TERM; while :; do sleep 1000 & wait; done']}
`

// usage holds huskd's own resource usage.
type usage struct{ goroutines, files, addresses int }

var (
	selfWords    = regexp.MustCompile(`(\d+) goroutines, (\d+) open files`)
	addressWords = regexp.MustCompile(`10\.\S+: (\d+) in use`)
)

// usageOf returns huskd's resource usage, as husk doctor reports it.
func usageOf(t testing.TB, n *node.Node) usage {
	t.Helper()
	out := n.Husk("doctor", "-o", "json").Stdout
	number := func(words *regexp.Regexp, i int) int {
		m := words.FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("husk doctor's output has no %v:\n%s", words, out)
		}
		v, _ := strconv.Atoi(m[i])
		return v
	}
	return usage{number(selfWords, 1), number(selfWords, 2), number(addressWords, 1)}
}

// TestRepeatedPods runs, stops and removes many pods, several at a time, and checks that huskd
// leaks nothing.
func TestRepeatedPods(t *testing.T) {
	const rounds, atOnce = 200, 8
	n, d := start(t)
	round := func(i int) {
		name := fmt.Sprintf("p%d", i)
		path := write(t, n, name+".yaml", fmt.Sprintf(sleeper, name))
		for _, args := range [][]string{{"run", "--wait", path}, {"stop", name}, {"rm", name}} {
			if r := n.Husk(args...); r.Code != 0 {
				t.Errorf("husk %v: exit code %d: %s", args, r.Code, r.Stderr)
				return
			}
		}
	}
	many := func(count, offset int) {
		var next atomic.Int32
		var all sync.WaitGroup
		for range atOnce {
			all.Go(func() {
				for i := int(next.Add(1)); i <= count && !t.Failed(); i = int(next.Add(1)) {
					round(offset + i)
				}
			})
		}
		all.Wait()
	}
	many(atOnce, 0) // allocates what huskd allocates only once
	before := usageOf(t, n)
	began := time.Now()
	many(rounds, atOnce)
	t.Logf("%d rounds in %v; before %+v", rounds, time.Since(began).Round(time.Millisecond), before)
	// Some resources are closed in the background.
	node.Eventually(t, 10*time.Second, func() string {
		after := usageOf(t, n)
		if after.addresses == 0 && after.goroutines <= before.goroutines && after.files <= before.files {
			t.Logf("after %+v", after)
			return ""
		}
		return fmt.Sprintf("huskd has grown from %+v to %+v; its open files are %v", before, after, openFiles(d))
	})
	d.Stop()
	n.NothingLeft()
}

// openFiles returns the open files of huskd.
func openFiles(d *node.Daemon) []string {
	var open []string
	names, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.Pid()))
	for _, name := range names {
		to, _ := os.Readlink(name)
		open = append(open, to)
	}
	slices.Sort(open)
	return open
}

// TestRestart restarts huskd with 100 running pods, which it must adopt.
func TestRestart(t *testing.T) {
	const pods = 100
	n, d := start(t)
	var manifest strings.Builder
	for i := range pods {
		manifest.WriteString("---")
		fmt.Fprintf(&manifest, sleeper, fmt.Sprintf("p%d", i))
	}
	path := write(t, n, "pods.yaml", manifest.String())
	began := time.Now()
	n.MustHusk("run", "--wait", path)
	t.Logf("%d pods ready after %v", pods, time.Since(began).Round(time.Millisecond))
	before := processes(t, n)
	if len(before) != pods {
		t.Fatalf("%d pods are running", len(before))
	}
	for _, end := range []func(){d.Kill, func() { d.Stop() }} {
		end()
		began := time.Now()
		d = n.Huskd()
		now := processes(t, n)
		t.Logf("adopted after %v", time.Since(began).Round(time.Millisecond))
		if fmt.Sprint(now) != fmt.Sprint(before) {
			t.Errorf("the pods' processes have changed from %v to %v", before, now)
		}
	}
	if _, err := node.Get(n.Net(), "127.0.0.1:1"); err == nil {
		t.Error("port 1 answers, though nothing listens on it")
	}
	n.MustHusk("run", "--wait", path) // unchanged
	n.MustHusk("shutdown", "--budget", "30s")
	if !d.Wait(20 * time.Second) {
		t.Fatal("huskd is still running after husk shutdown")
	}
	for _, left := range n.Left() {
		if !strings.HasPrefix(left, "file logs/") && !strings.HasPrefix(left, "file pods/") {
			t.Errorf("left after shutdown: %s", left)
		}
	}
	d = n.Huskd()
	n.MustHusk("run", "--wait", path) // a shutdown doesn't stop pods for good
	var names []string
	for i := range pods {
		names = append(names, fmt.Sprintf("p%d", i))
	}
	n.MustHusk(append([]string{"rm", "-f"}, names...)...)
	d.Stop()
	n.NothingLeft()
}

// processes returns the PIDs of the running pods' containers, by pod.
func processes(t testing.TB, n *node.Node) map[string]int {
	t.Helper()
	var list []struct {
		Name       string
		Containers []struct {
			State string
			Pid   int
		}
	}
	if err := json.Unmarshal([]byte(n.MustHusk("ps", "-o", "json")), &list); err != nil {
		t.Fatal(err)
	}
	pids := map[string]int{}
	for _, p := range list {
		for _, c := range p.Containers {
			if c.State == "Running" {
				pids[p.Name] = c.Pid
			}
		}
	}
	return pids
}

// TestStartWhileStopping starts huskd while the previous one is still shutting down. The pod must
// run again.
func TestStartWhileStopping(t *testing.T) {
	t.Parallel()
	n, d := start(t)
	n.MustHusk("run", "--wait", write(t, n, "p.yaml", fmt.Sprintf(sleeper, "p")))
	n.MustHusk("shutdown")
	next := n.Huskd()
	if !d.Wait(10 * time.Second) {
		t.Error("both huskds are running")
	}
	node.Eventually(t, 20*time.Second, func() string {
		if len(processes(t, n)) == 1 {
			return ""
		}
		return "the pod isn't running again"
	})
	n.MustHusk("rm", "-f", "p")
	next.Stop()
	n.NothingLeft()
}

// TestStopDuringStart stops huskd at different moments of its start. It must leave nothing, even if
// it has already set up its network.
func TestStopDuringStart(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	for delay := 5 * time.Millisecond; delay < 300*time.Millisecond; delay = delay * 3 / 2 {
		d := n.Launch()
		time.Sleep(delay)
		d.Stop()
		n.NothingLeft()
	}
}

// TestReboot checks that the pods that ran before a reboot run after it, and stopped pods don't.
func TestReboot(t *testing.T) {
	t.Parallel()
	n, _ := start(t)
	path := write(t, n, "web.yaml", fmt.Sprintf(sleeper, "web"))
	n.MustHusk("run", "--wait", path)
	stopped := write(t, n, "stopped.yaml", fmt.Sprintf(sleeper, "stopped"))
	n.MustHusk("run", "--wait", stopped)
	n.MustHusk("stop", "stopped")
	n.Reboot()
	d := n.Huskd()
	n.MustHusk("run", "--wait", "--timeout", "30s", path)
	out := n.MustHusk("ps", "-a", "-o", "json")
	if !strings.Contains(out, `"Stopped"`) {
		t.Errorf("the stopped pod is no longer stopped: %s", out)
	}
	if now := processes(t, n); len(now) != 1 || now["web"] == 0 {
		t.Errorf("after the reboot, the running processes are %v", now)
	}
	n.MustHusk("rm", "-f", "web", "stopped")
	d.Stop()
	n.NothingLeft()
}
