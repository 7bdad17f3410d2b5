//go:build vm

package guest

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

func TestMain(m *testing.M) { node.Main(m) }

// unified is the mount point of the cgroup v2 hierarchy.
const unified = "/sys/fs/cgroup"

const web = `
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: server
    image: localhost/web:1
    resources:
      requests: {cpu: 250m}
      limits: {cpu: 1500m, memory: 64Mi}
  - name: talker
    image: localhost/web:1
    command: [/bin/sh, -c, "trap 'exit 0' TERM; echo said so; sleep 1000 & wait $!"]
    resources:
      limits: {cpu: 500m, memory: 32Mi}
`

const hungry = `
apiVersion: v1
kind: Pod
metadata: {name: hungry}
spec:
  restartPolicy: Never
  containers:
  - name: eater
    image: localhost/web:1
    command: [dd, if=/dev/zero, of=/dev/null, bs=256M, count=1]
    resources:
      limits: {memory: 32Mi} # runc itself needs up to 20 of them before the program is there
`

// TestPods runs pods from start to removal with each runtime alone.
func TestPods(t *testing.T) {
	for _, runtime := range []string{"runc", "crun"} {
		t.Run(runtime, func(t *testing.T) {
			only(t, runtime)
			began := time.Now()
			done := func(what string) {
				t.Logf("%s after %v", what, time.Since(began).Round(time.Millisecond))
				began = time.Now()
			}
			t.Setenv("TMPDIR", disk(t))
			n := node.New(t)
			done("a machine")
			d := n.Huskd()
			done("huskd serves")
			checkDoctor(t, n, runtime)
			n.MustHusk("image", "load", "/web.tar")
			done("image loaded")
			n.MustHusk("run", "--wait", write(t, n, "web.yaml", web))
			done("pod ready")
			checkAnswers(t, n)
			done("it has answered")
			checkLimits(t, n)
			done("limits seen")
			checkExec(t, n)
			checkLogs(t, n)
			done("exec and logs seen")
			checkOOM(t, n)
			done("out of memory")
			users := runApart(t, n)
			checkHostUsers(t, n)
			done("users of their own seen")
			checkClaimSize(t, n)
			done("the size of a claim seen")
			d = checkAdopts(t, n, d)
			users.end(t)
			done("adopted")
			n.MustHusk("stop", "web")
			for _, c := range inspect(t, n, "web").Containers {
				if c.State != "Terminated" {
					t.Errorf("%s is %s after stop", c.Name, c.State)
				}
			}
			n.MustHusk("rm", "web", "hungry")
			done("stopped and removed")
			d.Stop()
			n.NothingLeft()
			done("nothing left")
		})
	}
}

// only hides the other runtime from huskd.
func only(t *testing.T, runtime string) {
	t.Helper()
	for _, name := range []string{"runc", "crun"} {
		if name == runtime {
			continue
		}
		path, err := exec.LookPath(name)
		if err != nil {
			t.Fatal(err)
		}
		hidden := filepath.Join(filepath.Dir(path), name+".hidden")
		if err := os.Rename(path, hidden); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := os.Rename(hidden, path); err != nil {
				t.Error(err)
			}
		})
	}
}

func write(t *testing.T, n *node.Node, name, content string) string {
	t.Helper()
	path := filepath.Join(n.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func checkDoctor(t *testing.T, n *node.Node, runtime string) {
	t.Helper()
	var checks []struct{ Name, Level, Finding string }
	out := n.MustHusk("doctor", "-o", "json")
	if err := json.Unmarshal([]byte(out), &checks); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	said := map[string]string{}
	for _, c := range checks {
		if c.Level == "ok" {
			said[c.Name] = c.Finding
		}
	}
	if !strings.HasPrefix(said["cgroups"], "v2 with ") || !strings.HasPrefix(said["runtime"], runtime+" ") {
		t.Errorf("doctor says %s", out)
	}
	for _, controller := range []string{"cpu", "memory", "pids"} {
		if !strings.Contains(said["cgroups"], controller) {
			t.Errorf("doctor doesn't know the controller %s: %s", controller, said["cgroups"])
		}
	}
}

type container struct {
	Name, State, Reason, Cgroup string
	Pid, ExitCode               int
	OOMKilled                   bool
}

type inspected struct {
	Phase      string
	IPs        []string
	Sandbox    struct{ Cgroup string }
	Containers []container
}

func inspect(t *testing.T, n *node.Node, name string) inspected {
	t.Helper()
	return decode(t, n.MustHusk("inspect", name))
}

// decode reads the output of husk inspect.
func decode(t *testing.T, said string) (out inspected) {
	t.Helper()
	if err := json.Unmarshal([]byte(said), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func checkAnswers(t *testing.T, n *node.Node) {
	t.Helper()
	pod := inspect(t, n, "web")
	if len(pod.IPs) != 2 {
		t.Fatalf("the pod has the addresses %v", pod.IPs)
	}
	for _, ip := range pod.IPs {
		for _, from := range []string{n.Net(), n.OtherNet()} {
			if from == n.OtherNet() {
				route(t, n, ip)
			}
			node.Eventually(t, 20*time.Second, func() string {
				answer, err := node.Get(from, net.JoinHostPort(ip, "80"))
				if err != nil || !strings.HasPrefix(answer, "web "+pod.IPs[0]) {
					return ip + " answers " + strconv.Quote(answer) + ": " + errText(err)
				}
				return ""
			})
		}
	}
}

func errText(err error) string {
	if err == nil {
		return "no error"
	}
	return err.Error()
}

// route adds a route to a pod through the node on the other host.
func route(t *testing.T, n *node.Node, ip string) {
	t.Helper()
	via := node.Address4
	if strings.Contains(ip, ":") {
		via = node.Address6
	}
	if r := n.RunOther("ip", "route", "replace", ip, "via", via); r.Code != 0 {
		t.Fatalf("route to %s: %s", ip, r.Stderr)
	}
}

// setting reads a file of a cgroup.
func setting(t *testing.T, cgroup, file string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(unified, cgroup, file))
	if err != nil {
		t.Error(err)
	}
	return strings.TrimSpace(string(raw))
}

// checkLimits checks the cgroup files from the root of the hierarchy down to the containers.
func checkLimits(t *testing.T, n *node.Node) {
	t.Helper()
	pod := inspect(t, n, "web")
	for _, cgroup := range []string{"/", filepath.Dir(pod.Sandbox.Cgroup), pod.Sandbox.Cgroup} {
		handed := " " + setting(t, cgroup, "cgroup.subtree_control") + " "
		for _, controller := range []string{"cpu", "memory", "pids"} {
			if !strings.Contains(handed, " "+controller+" ") {
				t.Errorf("cgroup %s hands down %q, without %s", cgroup, handed, controller)
			}
		}
		if procs := setting(t, cgroup, "cgroup.procs"); cgroup != "/" && procs != "" {
			t.Errorf("cgroup %s, which has children, has the processes %q", cgroup, procs)
		}
	}
	// 1500m and 500m, 64 Mi and 32 Mi; the weight is that of 250m, 256 shares.
	server, talker := pod.Containers[0], pod.Containers[1]
	for _, want := range []struct{ cgroup, file, value string }{
		{server.Cgroup, "cpu.max", "150000 100000"},
		{server.Cgroup, "cpu.weight", "10"},
		{server.Cgroup, "memory.max", "67108864"},
		{talker.Cgroup, "cpu.max", "50000 100000"},
		{talker.Cgroup, "memory.max", "33554432"},
		{pod.Sandbox.Cgroup, "cpu.max", "200000 100000"},
		{pod.Sandbox.Cgroup, "memory.max", "100663296"},
	} {
		if got := setting(t, want.cgroup, want.file); got != want.value {
			t.Errorf("%s of cgroup %s is %q, want %q", want.file, want.cgroup, got, want.value)
		}
	}
	for _, c := range pod.Containers {
		if got := n.Must("cat", "/proc/"+strconv.Itoa(c.Pid)+"/cgroup"); got != "0::"+c.Cgroup+"\n" {
			t.Errorf("%s is in cgroup %q, want %s", c.Name, got, c.Cgroup)
		}
		if setting(t, c.Cgroup, "pids.current") == "0" {
			t.Errorf("no process is counted in cgroup %s", c.Cgroup)
		}
	}
	if r := n.Husk("exec", "web", "-c", "talker", "--", "timeout", "0.5", "/bin/sh", "-c", "while :; do :; done"); r.Code != 143 {
		t.Errorf("a busy program in timeout(1): exit code %d: %s", r.Code, r.Stderr)
	}
	if stat := setting(t, talker.Cgroup, "cpu.stat"); strings.Contains(stat, "nr_throttled 0\n") {
		t.Errorf("a busy container was never throttled: %s", stat)
	}
}

func checkExec(t *testing.T, n *node.Node) {
	t.Helper()
	pod := inspect(t, n, "web")
	// A container sees only its own cgroup, and can't raise its limits.
	r := n.Husk("exec", "web", "-c", "server", "--", "/bin/sh", "-c", `
		cat /sys/fs/cgroup/memory.max /proc/self/cgroup
		echo max > /sys/fs/cgroup/memory.max || exit 7`)
	if r.Code != 7 || r.Stdout != "67108864\n0::/\n" {
		t.Errorf("exit code %d, want 7: %q, %s", r.Code, r.Stdout, r.Stderr)
	}
	if after := inspect(t, n, "web"); after.Containers[0].Pid != pod.Containers[0].Pid {
		t.Error("the container was restarted meanwhile")
	}
}

func checkLogs(t *testing.T, n *node.Node) {
	t.Helper()
	if got := n.MustHusk("logs", "web", "-c", "talker"); got != "said so\n" {
		t.Errorf("logs: %q", got)
	}
}

func checkOOM(t *testing.T, n *node.Node) {
	t.Helper()
	r := n.Husk("run", "--wait", write(t, n, "hungry.yaml", hungry))
	t.Logf("run says %q", r.Stderr)
	node.Eventually(t, 60*time.Second, func() string {
		if phase := inspect(t, n, "hungry").Phase; phase != "Failed" {
			return "the pod is " + phase
		}
		return ""
	})
	c := inspect(t, n, "hungry").Containers[0]
	if c.Reason != "OOMKilled" || !c.OOMKilled || c.ExitCode != 137 {
		t.Errorf("it ended as %+v", c)
	}
}

// checkAdopts restarts huskd, after SIGTERM and after SIGKILL.
func checkAdopts(t *testing.T, n *node.Node, d *node.Daemon) *node.Daemon {
	t.Helper()
	before := inspect(t, n, "web").Containers
	for _, end := range []func(){d.Kill, func() { d.Stop() }} {
		end()
		d = n.Huskd()
		after := inspect(t, n, "web").Containers
		for i, c := range after {
			if c != before[i] || c.State != "Running" {
				t.Errorf("%s was %+v and is %+v", c.Name, before[i], c)
			}
		}
	}
	checkAnswers(t, n)
	return d
}
