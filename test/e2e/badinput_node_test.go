package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestBadName checks that every command reports unknown and ambiguous names.
func TestBadName(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for _, namespace := range []string{"red", "blue"} {
		manifest := strings.Replace(podOf("twin", only("tty: false")+", restartPolicy: Never"), "name: twin", "name: twin, namespace: "+namespace, 1)
		w.MustHusk("run", write(t, w.Node, namespace+".yaml", manifest))
	}
	const (
		unknown   = `husk: no pod "absent": husk ps -a lists them`
		ambiguous = `husk: "twin" is ambiguous, it may be (blue/twin or red/twin|red/twin or blue/twin): give the namespace or more of the ID`
	)
	for _, verb := range []struct {
		before, after []string
		code          int
	}{
		{[]string{"stop"}, nil, 1},
		{[]string{"rm"}, nil, 1},
		{[]string{"rm", "-f"}, nil, 1},
		{[]string{"inspect"}, nil, 1},
		{[]string{"logs"}, nil, 1},
		{[]string{"logs", "-f"}, nil, 1},
		{[]string{"exec"}, []string{"--", "true"}, 125},
		{[]string{"attach"}, nil, 125},
	} {
		for name, line := range map[string]string{"absent": unknown, "twin": ambiguous} {
			args := append(append(append([]string{}, verb.before...), name), verb.after...)
			w.fails(strings.Join(args, " "), w.Husk(args...), verb.code, line)
		}
	}
	w.fails("two names", w.Husk("stop", "absent", "absent2"), 1, `husk: no pod "absent2?": .*`, `husk: no pod "absent2?": .*`)
	w.fails("rm of a running pod", w.Husk("rm", "other"), 1, `husk: pod default/other .*stop.*`)
	w.fails("exec in an unknown container", w.Husk("exec", "other", "-c", "absent", "--", "true"), 125, `husk: pod default/other has no container "?absent"?.*`)
	w.fails("logs of an unknown container", w.Husk("logs", "other", "-c", "absent"), 1, `husk: pod default/other has no container "?absent"?.*`)
	w.fails("logs --previous without an earlier run", w.Husk("logs", "other", "--previous"), 1, `husk: .*`)
	w.fails("exec of nothing", w.Husk("exec", "other"), 2, `husk: husk exec needs a program: husk exec other -- sh: see husk exec --help`)
	w.fails("exec of a missing program", w.Husk("exec", "other", "--", "absent"), 127, `.*absent.*`)
	w.fails("exec of a file", w.Husk("exec", "other", "--", "/etc/passwd"), 126, `.*/etc/passwd.*permission denied.*`)
	w.fails("image rm", w.Husk("image", "rm", "localhost/absent:1"), 1, `husk: .*localhost/absent:1.*`)
	w.fails("image rm of an image in use", w.Husk("image", "rm", "localhost/web:1"), 1, `husk: .*localhost/web:1.*`)
	w.fails("an unknown command", w.Husk("strat"), 2, `husk: unknown command "husk strat", did you mean "start": see husk --help`)
	w.fails("an unknown flag", w.Husk("ps", "--absent"), 2, `husk: .*--absent.*`)
	w.fails("an unknown output format", w.Husk("ps", "-o", "xml"), 2, `husk: .*xml.*`)
	w.fails("a malformed duration", w.Husk("stop", "other", "--time", "soon"), 2, `husk: .*soon.*`)
	w.fails("a malformed number", w.Husk("logs", "other", "--tail", "few"), 2, `husk: invalid argument "few" for "-n, --tail" flag: must be a number: see husk logs --help`)
	w.fails("a malformed boolean", w.Husk("run", "--wait=perhaps", "x.yaml"), 2, `husk: invalid argument "perhaps" for "--wait" flag: must be true or false: see husk run --help`)
	w.remove("red/twin", "blue/twin")
	w.end()
}

// TestBadStart checks that huskd refuses to start, with a message that says why, while another
// huskd is running.
func TestBadStart(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	dir := func(name string) string { return filepath.Join(w.Dir, name) }
	file := func(name, content string) string { return write(t, w.Node, name, content) }
	occupied, err := os.Create(dir("occupied"))
	if err != nil {
		t.Fatal(err)
	}
	_ = occupied.Close()
	apart := []string{"--root", dir("root2"), "--state", "/run/husk2"}
	for _, c := range []struct {
		what  string
		code  int
		flags []string
		lines []string
	}{
		{"a second huskd", 1, nil, []string{`huskd: another huskd \(pid \d+\) uses .*/root: stop it, or give this one another --root`}},
		{"the same root by another path", 1, []string{"--root", w.Dir + "/x/../root"}, []string{`huskd: another huskd \(pid \d+\) uses .*/root: .*`}},
		{"the same state directory", 1, []string{"--root", dir("root2")}, []string{`huskd: another huskd \(pid \d+\) uses /run/husk: stop it, or give this one another --state`}},
		{"the same socket", 1, apart, []string{`huskd: --listen: /run/husk/husk.sock is in use: stop the process that serves it, or choose another socket`}},
		{"a file for a socket", 1, append([]string{"--listen", "unix://" + dir("occupied")}, apart...), []string{`huskd: --listen: .*/occupied exists and is not a socket: remove it, or choose another path`}},
		{"a long path", 1, append([]string{"--listen", "unix:///run/" + strings.Repeat("x", 110)}, apart...), []string{`huskd: --listen: /run/x+ is too long for a socket: at most 107 characters`}},
		{"a file for a directory", 1, []string{"--root", dir("occupied/root")}, []string{`huskd: --root: mkdir .*/occupied: not a directory`}},
		{"no socket address", 2, []string{"--listen", "tcp://:80"}, []string{`huskd: listen: "tcp://:80" is not of the form unix:///path`}},
		{"a relative root", 2, []string{"--root", "here"}, []string{`huskd: root: "here" is not an absolute path`}},
		{"two mistakes", 2, []string{"--log-level", "loud", "--pod-subnets", "10.0.0.1/8"}, []string{
			`huskd: log-level: "loud" is not one of debug, info, warn, error`,
			`huskd: pod-subnets: 10.0.0.1/8 has host bits set: use 10.0.0.0/8`}},
		{"an unknown flag", 2, []string{"--absent"}, []string{`huskd: unknown flag: --absent: see huskd --help`}},
		{"an argument", 2, []string{"pod.yaml"}, []string{`huskd: "pod.yaml": huskd takes only flags; pods are run with husk run`}},
		{"a missing file", 2, []string{"--config", dir("absent.toml")}, []string{`huskd: configuration: open .*/absent.toml: no such file or directory`}},
		// systemd starts huskd again until kubeadm has written the file.
		{"a kubelet's configuration that isn't there yet", 1, []string{"--kubelet-config", dir("absent.yaml")}, []string{`huskd: the kubelet's configuration: stat .*/absent.yaml: no such file or directory: it may not be written yet`}},
		{"a kubelet's configuration with a mistake", 2, []string{"--kubelet-config", file("config.yaml", "kind: KubeletConfiguration\n")}, []string{`huskd: .*/config.yaml:1: apiVersion: missing: write kubelet.config.k8s.io/v1beta1`}},
		{"an unknown key", 2, []string{"--config", file("key.toml", "rot = '/x'\n")}, []string{`huskd: .*/key.toml: rot: unknown key: .*`}},
		{"wrong types", 2, []string{"--config", file("type.toml", "masquerade = 'yes'\nroot = 3\n")}, []string{
			`huskd: .*/type.toml: root: must be a string`, `huskd: .*/type.toml: masquerade: must be true or false`}},
		{"malformed TOML", 2, []string{"--config", file("bad.toml", "root = = 3\n")}, []string{`huskd: .*/bad.toml:1:\d+: .*`}},
	} {
		other := w.Launch(node.Flags(c.flags...))
		if !other.Wait(20 * time.Second) {
			t.Fatalf("%s: huskd is running", c.what)
		}
		checkLines(t, c.what, other.Log(), c.lines...)
		if code := other.Code(); code != c.code {
			t.Errorf("%s: exit code %d, not %d", c.what, code, c.code)
		}
		_ = w.Run("rm", "-rf", dir("root2"), "/run/husk2")
	}
	w.fails("not root", w.Run("setpriv", "--reuid=1000", "--clear-groups", w.Binary("huskd"), "--root", w.Root), 1, `huskd: user 1000 can't make namespaces and mounts: start huskd as root`)
	w.checkUnharmed("bad starts")
	w.end()
	w.fails("no huskd", w.Husk("ps"), 1, `husk: huskd doesn't answer at unix:///run/husk/husk.sock: is it running\? start it with huskd, or name its socket with --socket`)
}

// TestBadDirectory checks that pods from good files keep running beside malformed files, and when
// their own file becomes malformed.
func TestBadDirectory(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	dir := filepath.Join(n.Dir, "manifests")
	d := n.Huskd(node.Flags("--manifests", dir))
	n.MustHusk("image", "load", write(t, n, "web.tar", string(webArchive(t))))
	logged := func(line string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			if regexp.MustCompile(line).MatchString(d.Log()) {
				return ""
			}
			return "huskd's log doesn't say " + line
		})
	}
	ready := func(name string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			if out := n.MustHusk("ps"); !regexp.MustCompile(`(?m)^` + name + ` +1/1 +Running`).MatchString(out) {
				return name + " isn't running:\n" + out
			}
			return ""
		})
	}
	logged(`manifests.*` + dir) // the directory doesn't exist yet
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, n, "manifests/bad.yaml", podOf("bad", only("volumeDevices: [{name: x, devicePath: /dev/x}]")))
	write(t, n, "manifests/.bad.yaml.swp", "rubbish")
	write(t, n, "manifests/good.yaml", podOf("good", only("tty: false")))
	ready("good")
	logged(`bad.yaml:4: pod default/bad: spec.containers\[0\].volumeDevices: not supported yet: remove it`)
	refusal := regexp.MustCompile(`manifests/bad.yaml:4: pod default/bad: spec.containers\[0\].volumeDevices: not supported yet: remove it`)
	if out := n.Husk("doctor").Stdout; !refusal.MatchString(out) {
		t.Errorf("husk doctor doesn't name the refused file:\n%s", out)
	}
	if out := n.MustHusk("events"); !refusal.MatchString(out) || !strings.Contains(out, "ManifestRefused") {
		t.Errorf("husk events doesn't name the refused file:\n%s", out)
	}
	began := findPod(t, n, "good").Containers[0].Started
	write(t, n, "manifests/good.yaml", podOf("good", only("command: {}")))
	logged(`good.yaml:4: pod default/good: spec.containers\[0\].command: `)
	if now := findPod(t, n, "good"); !now.Ready || now.Containers[0].Started != began {
		t.Errorf("after its file became malformed, the pod is %+v", now)
	}
	if r := n.Husk("rm", "-f", "good"); r.Code != 1 || !strings.Contains(r.Stderr, "pod default/good is declared in "+dir+"/good.yaml: remove it there") {
		t.Errorf("rm of a declared pod: %d %s", r.Code, r.Stderr)
	}
	write(t, n, "manifests/bad.yaml", podOf("bad", only("tty: false")))
	ready("bad")
	for _, name := range []string{"good", "bad"} {
		if err := os.Remove(filepath.Join(dir, name+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	node.Eventually(t, 20*time.Second, func() string {
		return strings.TrimPrefix(n.MustHusk("ps", "-a"), "NAME   READY   STATUS   RESTARTS   AGE   IP\n")
	})
	if strings.Contains(d.Log(), ".swp") {
		t.Error("huskd read a file whose name begins with a dot")
	}
	d.Stop()
	n.NothingLeft()
}

// TestNoRuntime checks that huskd serves without any OCI runtime, and says what to install.
func TestNoRuntime(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	hide(n, "/usr/sbin/runc", "/usr/bin/crun")
	d := n.Huskd()
	path := write(t, n, "web.tar", string(webArchive(t)))
	n.MustHusk("image", "load", path)
	if out := n.Husk("doctor").Stdout; !strings.Contains(out, "no OCI runtime works here") || !strings.Contains(out, "apt-get install runc conmon") {
		t.Errorf("doctor says\n%s", out)
	}
	manifest := write(t, n, "pod.yaml", podOf("web", only("tty: false")))
	r := n.Husk("run", "--wait", "--timeout", "2s", manifest)
	checkLines(t, "run", lastLine(r.Stderr), `husk: not ready within 2s: default/web \(.*no OCI runtime works here .*; install one with: apt-get install runc conmon\): they keep running, see husk ps -a`)
	d.Stop()
	// With a runtime installed and huskd restarted, the pod starts.
	show(n, "/usr/sbin/runc", "/usr/bin/crun")
	d = n.Huskd()
	n.MustHusk("run", "--wait", manifest)
	n.MustHusk("rm", "-f", "web")
	d.Stop()
	n.NothingLeft()
}

// hide mounts /dev/null over programs of the node.
func hide(n *node.Node, programs ...string) {
	for _, p := range programs {
		n.Must("mount", "--bind", "/dev/null", p)
	}
}

// show undoes hide.
func show(n *node.Node, programs ...string) {
	for _, p := range programs {
		n.Must("umount", p)
	}
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// TestExhaustedSubnet runs more pods than there are addresses. The pods without one report it, as
// does husk doctor.
func TestExhaustedSubnet(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t, node.Flags("--pod-subnets", "10.77.0.0/29"))
	const exhausted = `range 10\.77\.0\.0/29 is exhausted: 5 of 5 addresses in use, 0 in quarantine: remove pods or configure a larger pod-subnets`
	var names []string
	for i := range 6 {
		name := fmt.Sprintf("p%d", i)
		names = append(names, name)
		w.run(podOf(name, only("tty: false")))
	}
	node.Eventually(t, 30*time.Second, func() string {
		running, waiting := 0, 0
		for _, name := range names {
			switch p := w.pod(name); {
			case p.Ready:
				running++
			case p.Reason == "CreatePodSandboxError" && regexp.MustCompile(exhausted+"$").MatchString(p.Message):
				waiting++
			}
		}
		if running == 4 && waiting == 2 {
			return ""
		}
		return fmt.Sprintf("%d pods are running and %d report that there are no addresses", running, waiting)
	})
	w.awaitFinding(1, "network", exhausted)
	w.remove(names...)
	w.awaitFinding(1, "addresses", `10\.77\.0\.0/29: 1 in use, 4 in quarantine, 0 free`)
	w.end()
}

// awaitFinding waits until husk doctor ends with code and has a finding that matches a pattern. It
// has to wait because links are deleted in the background.
func (w *testEnv) awaitFinding(code int, about, finding string) {
	w.t.Helper()
	node.Eventually(w.t, 10*time.Second, func() string {
		r := w.Husk("doctor", "-o", "json")
		var checks []struct{ Name, Finding string }
		if err := json.Unmarshal([]byte(r.Stdout), &checks); err != nil {
			return err.Error()
		}
		for _, c := range checks {
			if r.Code == code && c.Name == about && regexp.MustCompile(finding).MatchString(c.Finding) {
				return ""
			}
		}
		return fmt.Sprintf("husk doctor ended with %d, want %d, or lacks the finding %s about %s: %s", r.Code, code, finding, about, r.Stdout)
	})
}

// TestKilledMonitor kills the conmon of running containers.
func TestKilledMonitor(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const sleep = "command: [/bin/sh, -c, 'trap \"exit 0\" TERM; sleep 1000 & wait']"
	for _, policy := range []string{"Always", "Never"} {
		name := strings.ToLower(policy)
		w.run(podOf(name, only(sleep)+", restartPolicy: "+policy))
		node.Eventually(t, 20*time.Second, func() string {
			if w.pod(name).Ready {
				return ""
			}
			return name + " isn't ready"
		})
		c := w.pod(name).Containers[0]
		for _, process := range w.monitors(c.ID) {
			_ = syscall.Kill(process, syscall.SIGKILL)
		}
		node.Eventually(t, 30*time.Second, func() string {
			p := w.pod(name)
			if policy == "Never" && p.Phase == "Failed" || policy == "Always" && p.Ready && p.Containers[0].Restarts > 0 {
				return ""
			}
			return fmt.Sprintf("pod %s after its conmon was killed: %+v", name, p)
		})
	}
	if c := w.pod("never").Containers[0]; c.ExitCode != 255 || !strings.HasPrefix(c.Message, "its monitor (conmon) was killed") {
		t.Errorf("the container whose conmon was killed is %+v", c)
	}
	w.remove("always", "never")
	w.end()
}

// TestStoppedMonitor stops the conmon of a running container with SIGSTOP. The container keeps
// running, programs can be run in it, and it can be removed.
func TestStoppedMonitor(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("frozen", only(`command: [/bin/sh, -c, 'trap "exit 0" TERM; sleep 1000 & wait']`)))
	node.Eventually(t, 20*time.Second, func() string {
		if w.pod("frozen").Ready {
			return ""
		}
		return "the pod isn't ready"
	})
	for _, process := range w.monitors(w.pod("frozen").Containers[0].ID) {
		if err := syscall.Kill(process, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	if out := w.MustHusk("exec", "frozen", "--", "echo", "alive"); out != "alive\n" {
		t.Errorf("exec printed %q", out)
	}
	w.remove("frozen")
	w.end()
}

// monitors returns the host PIDs of the conmon processes of a container.
func (w *testEnv) monitors(id string) (pids []int) {
	w.t.Helper()
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		cmdline, err := os.ReadFile(dir + "/cmdline")
		if err != nil || !strings.Contains(string(cmdline), "conmon") || !strings.Contains(string(cmdline), id) {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(dir, "/proc/%d", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	if len(pids) == 0 {
		w.t.Fatalf("container %s has no conmon", id)
	}
	return pids
}

// TestFullDisk fills the disk of a running huskd.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	n.Must("mkdir", "-p", n.Root)
	n.Must("mount", "-t", "tmpfs", "-o", "size=48m", "disk", n.Root)
	w := testEnvOn(t, n)
	n.Run("sh", "-c", "cat /dev/zero >"+n.Root+"/filler")
	archive := filepath.Join(n.Dir, "web.tar")
	r := n.Husk("image", "load", archive)
	w.fails("load", node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1, `husk: image archive: no space left below .*/root/images: prune images or free disk space.*`)
	w.awaitFinding(0, "disk", `^0 MiB are free below .*/root$`)
	// The journal has reserved some space. These pods exceed it soon.
	pad := strings.Repeat("x", 200<<10)
	var names []string
	var last string
	for {
		name := fmt.Sprintf("p%d", len(names))
		last = strings.Replace(podOf(name, only("tty: false")), "metadata: {", "metadata: {annotations: {pad: "+pad+"}, ", 1)
		if r = w.run(last); r.Code != 0 || len(names) == 20 {
			break
		}
		names = append(names, name)
	}
	w.fails("run", r, 1, `husk: pod default/p\d+: journal .*/root/journal: no space left on device: free some space`)
	if out := n.MustHusk("ps", "-a"); strings.Contains(out, fmt.Sprintf("p%d ", len(names))) {
		t.Errorf("the rejected pod exists:\n%s", out)
	}
	if body := mustGet(t, n.Net(), w.address); !strings.HasPrefix(body, "other ") {
		t.Errorf("the other pod answers %q", body)
	}
	// Operations that free or need no disk space still work.
	n.MustHusk("stop", "other")
	n.Must("rm", n.Root+"/filler")
	n.MustHusk("run", "--wait", "--timeout", "1m", filepath.Join(n.Dir, "other.yaml"))
	names = append(names, fmt.Sprintf("p%d", len(names)))
	n.MustHusk("run", "--wait", "--timeout", "1m", filepath.Join(n.Dir, "pod.yaml"))
	n.MustHusk(append([]string{"rm", "-f", "other"}, names...)...)
	w.d.Stop()
	n.Must("umount", n.Root)
	n.NothingLeft()
}
