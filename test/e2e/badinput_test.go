package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// testEnv is a node with a huskd and a healthy pod, named other, that must not be affected by what
// a test does beside it.
type testEnv struct {
	*node.Node
	t       *testing.T
	d       *node.Daemon
	address string
	began   string   // start time of the healthy pod's container
	healthy []string // what is on the node while only the healthy pod runs
}

// podOf returns the manifest of a pod; spec is the inside of a YAML flow mapping.
func podOf(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 1, %s}\n", name, spec)
}

// only returns the containers of a spec: one, named c, with the fields in more.
func only(more string) string {
	return "containers: [{name: c, image: 'localhost/web:1', " + more + "}]"
}

// newTestEnv starts huskd and the healthy pod on a new node.
func newTestEnv(t *testing.T, options ...node.Option) *testEnv {
	t.Helper()
	return testEnvOn(t, node.New(t), options...)
}

// testEnvOn starts huskd and the healthy pod on a node.
func testEnvOn(t *testing.T, n *node.Node, options ...node.Option) *testEnv {
	t.Helper()
	w := &testEnv{Node: n, t: t, d: n.Huskd(options...)}
	n.MustHusk("image", "load", write(t, n, "web.tar", string(webArchive(t))))
	n.MustHusk("run", "--wait", write(t, n, "other.yaml", podOf("other", only("command: [/bin/httpd, -f, -p, '80', -h, /www]"))))
	w.address = inspect(t, n, "other").IPs[0] + ":80"
	mustGet(t, n.Net(), w.address)
	w.began = w.pod("other").Containers[0].Started
	w.healthy = n.Left()
	return w
}

// checkUnharmed checks that the healthy pod answers and was not restarted, and waits until nothing
// else is left on the node.
func (w *testEnv) checkUnharmed(after string) {
	w.t.Helper()
	if body := mustGet(w.t, w.Net(), w.address); !strings.HasPrefix(body, "other ") {
		w.t.Errorf("%s: the other pod answers %q", after, body)
	}
	if now := w.pod("other").Containers[0].Started; now != w.began {
		w.t.Errorf("%s: the other pod's container, started at %s, was restarted at %s", after, w.began, now)
	}
	node.Eventually(w.t, 10*time.Second, func() string {
		for _, left := range w.Left() {
			// The web server's processes come and go.
			if !slices.Contains(w.healthy, left) {
				return after + ": left behind: " + left
			}
		}
		return ""
	})
}

// remove removes pods, and checks that nothing of them is left.
func (w *testEnv) remove(names ...string) {
	w.t.Helper()
	w.MustHusk(append([]string{"rm", "-f"}, names...)...)
	w.checkUnharmed("rm " + strings.Join(names, " "))
}

// end removes the healthy pod, stops huskd, and checks that nothing is left.
func (w *testEnv) end() {
	w.t.Helper()
	w.MustHusk("rm", "-f", "other")
	w.d.Stop()
	w.NothingLeft()
}

// run runs husk run with a manifest.
func (w *testEnv) run(manifest string, flags ...string) node.Result {
	w.t.Helper()
	return w.Husk(append([]string{"run", write(w.t, w.Node, "pod.yaml", manifest)}, flags...)...)
}

// fails checks that a command ended with code and that its stderr consists of lines.
func (w *testEnv) fails(what string, r node.Result, code int, lines ...string) {
	w.t.Helper()
	checkLines(w.t, what, r.Stderr, lines...)
	if r.Code != code {
		w.t.Errorf("%s: exit code %d, want %d", what, r.Code, code)
	}
}

// checkLines checks that text consists of lines, each a regular expression for a whole line.
func checkLines(t *testing.T, what, text string, lines ...string) {
	t.Helper()
	t.Logf("%s:\n%s", what, text)
	got := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(got) != len(lines) {
		t.Errorf("%s: %d lines, want %d:\n%s", what, len(got), len(lines), text)
		return
	}
	for i, want := range lines {
		if !regexp.MustCompile("^(?:" + want + ")$").MatchString(got[i]) {
			t.Errorf("%s: got\n%s\nwant\n%s", what, got[i], want)
		}
	}
}

// listed is a pod in the JSON output of husk ps.
type listed struct {
	Name, Phase, Status, Reason, Message string
	Ready                                bool
	Containers                           []listedContainer
}

type listedContainer struct {
	Name, State, Reason, Message, Started string
	Restarts, ExitCode, Pid               int
	Ready                                 bool
	ID                                    string
}

func (w *testEnv) pod(name string) listed {
	w.t.Helper()
	return findPod(w.t, w.Node, name)
}

func findPod(t testing.TB, n *node.Node, name string) listed {
	t.Helper()
	var pods []listed
	if err := json.Unmarshal([]byte(n.MustHusk("ps", "-a", "-o", "json")), &pods); err != nil {
		t.Fatal(err)
	}
	for _, p := range pods {
		if p.Name == name {
			return p
		}
	}
	t.Fatalf("there is no pod %s", name)
	return listed{}
}

// awaitStatus waits until the status of each pod, "reason: message", matches the regular expression
// for it in wanted, which is by name.
func (w *testEnv) awaitStatus(wanted map[string]string) {
	w.t.Helper()
	node.Eventually(w.t, 30*time.Second, func() string {
		var open []string
		for name, want := range wanted {
			p := w.pod(name)
			if said := p.Reason + ": " + p.Message; regexp.MustCompile("^(?:" + want + ")$").MatchString(said) {
				w.t.Logf("pod %s is %s: %s", name, p.Phase, said)
				delete(wanted, name)
			} else {
				open = append(open, fmt.Sprintf("pod %s is %s: %s", name, p.Phase, said))
			}
		}
		return strings.Join(open, "\n")
	})
}

// TestBadManifest checks that husk run rejects malformed manifests without starting anything.
func TestBadManifest(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	file := func(name, content string) string { return write(t, w.Node, name, content) }
	if err := os.Mkdir(filepath.Join(w.Dir, "dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	huge := filepath.Join(w.Dir, "huge.yaml")
	if err := os.WriteFile(huge, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(huge, 50<<20); err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path  string
		code  int
		lines []string
	}{
		{filepath.Join(w.Dir, "missing.yaml"), 1, []string{`husk: .*/missing.yaml.*no such file.*`}},
		{filepath.Join(w.Dir, "dir"), 1, []string{`husk: .*/dir has no manifest: no file in it ends with .*`}},
		{huge, 1, []string{`husk: .*/huge.yaml is too large for a manifest: it has more than 3 MiB`}},
		{file("empty.yaml", ""), 1, []string{`husk: .*/empty.yaml is empty: it must contain a manifest`}},
		{file("comment.yaml", "# nothing\n"), 1, []string{`husk: .*/comment.yaml: there is no pod in it: begin one with apiVersion: v1 and kind: Pod`}},
		{file("noyaml.yaml", "a: [1, 2\nb: }\n"), 1, []string{`husk: .*/noyaml.yaml:\d+: .*`}},
		{file("binary.yaml", string(binary[:64<<10])), 1, []string{`husk: .*/binary.yaml.*`}},
		{file("word.yaml", "hello\n"), 1, []string{`husk: .*/word.yaml:1: document 1: must be an object, not .*`}},
		{file("service.yaml", "apiVersion: v1\nkind: Widget\nmetadata: {name: s}\n"), 1, []string{`husk: .*/service.yaml:2: document 1: kind: Widget of v1 is not supported: use a v1 Pod`}},
		{file("deployment.json", `{"apiVersion": "apps/v1", "kind": "Deployment"}`), 1, []string{
			`husk: .*/deployment.json:1: document 1: metadata.name: missing`, `husk: .*/deployment.json:1: document 1: spec.template: missing`}},
		{file("two.yaml", podOf("two", "containers: [{name: C, command: [x]}]")), 1, []string{
			`husk: .*/two.yaml:4: pod default/two: spec.containers\[0\].image: missing`,
			`husk: .*/two.yaml:4: pod default/two: spec.containers\[0\].name: "C" is not valid: use .*`}},
		{file("field.yaml", podOf("field", only("volumeDevices: [{name: v, devicePath: /dev/x}]"))), 1, []string{
			`husk: .*/field.yaml:4: pod default/field: spec.containers\[0\].volumeDevices: not supported yet: remove it`}},
		{file("claim.yaml", podOf("claim", "volumes: [{name: v, persistentVolumeClaim: {}}], "+only("volumeMounts: [{name: v, mountPath: /v}]"))), 1, []string{
			`husk: .*/claim.yaml:4: pod default/claim: spec.volumes\[0\].persistentVolumeClaim.claimName: missing`}},
		{file("typo.yaml", podOf("typo", only("imagePulPolicy: Never"))), 1, []string{
			`husk: .*/typo.yaml:4: pod default/typo: spec.containers\[0\].imagePulPolicy: .*did you mean imagePullPolicy\?`}},
		{file("type.yaml", podOf("type", only("stdin: 'yes'"))), 1, []string{`husk: .*/type.yaml:4: pod default/type: spec.containers\[0\].stdin: .*`}},
		{file("up.yaml", podOf("up", "volumes: [{name: v, hostPath: {path: /tmp/../etc}}], "+only("volumeMounts: [{name: v, mountPath: /v}]"))), 1, []string{
			`husk: .*/up.yaml:4: pod default/up: spec.volumes\[0\].hostPath.path: .*\.\..*`}},
		{file("upsub.yaml", podOf("upsub", "volumes: [{name: v, emptyDir: {}}], "+only("volumeMounts: [{name: v, mountPath: /v, subPath: ../x}]"))), 1, []string{
			`husk: .*/upsub.yaml:4: pod default/upsub: spec.containers\[0\].volumeMounts\[0\].subPath: .*`}},
		{file("upmount.yaml", podOf("upmount", "volumes: [{name: v, emptyDir: {}}], "+only("volumeMounts: [{name: v, mountPath: /v/../../x}]"))), 1, []string{
			`husk: .*/upmount.yaml:4: pod default/upmount: spec.containers\[0\].volumeMounts\[0\].mountPath: .*\.\..*`}},
		{file("upname.yaml", podOf("upname", "volumes: [{name: ../v, emptyDir: {}}], "+only("volumeMounts: [{name: ../v, mountPath: /v}]"))), 1, []string{
			`husk: .*/upname.yaml:4: pod default/upname: spec.volumes\[0\].name: "../v" is not valid: .*`}},
		{file("uppod.yaml", podOf("../../etc", only("tty: false"))), 1, []string{
			`husk: .*/uppod.yaml:3: pod default/../../etc: metadata.name: "../../etc" is not valid: use .*`}},
		{file("twice.yaml", podOf("twice", only("tty: false"))+"---\n"+podOf("twice", only("tty: true"))), 1, []string{
			`husk: .*/twice.yaml:\d+: pod default/twice: metadata.name: line 1 declares a pod of the same name: rename one`}},
		{file("ports.yaml", podOf("ports", only("ports: [{containerPort: 80, hostPort: 9}, {containerPort: 81, hostPort: 9}]"))), 1, []string{
			`husk: .*/ports.yaml:4: pod default/ports: spec.containers\[0\].ports\[1\].hostPort: 9/TCP is taken by spec.containers\[0\].ports\[0\].hostPort: use another`}},
	} {
		w.fails(filepath.Base(c.path), w.Husk("run", "--wait", c.path), c.code, c.lines...)
	}
	// If one file is bad, none is run.
	w.fails("good and bad", w.Husk("run", file("good.yaml", podOf("good", only("tty: false"))), filepath.Join(w.Dir, "missing.yaml")), 1, `husk: .*/missing.yaml.*`)
	// A manifest with the name of a running pod doesn't replace the pod.
	w.fails("another other", w.run(podOf("other", only("command: [/bin/sleep, '1']"))), 1,
		`husk: pod default/other exists with another manifest \(from .*\): husk run --replace replaces it, husk rm -f default/other removes it`)
	if out := w.MustHusk("ps", "-a"); strings.Count(out, "\n") != 2 {
		t.Errorf("there is more than one pod:\n%s", out)
	}
	w.checkUnharmed("bad manifests")
	w.end()
}

// TestBadPod checks that pods that can't run report why in husk ps and husk run --wait.
func TestBadPod(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	foreign := w.listen()
	defer foreign.Close()
	w.MustHusk("run", "--wait", write(t, w.Node, "keeper.yaml", podOf("keeper", only("ports: [{containerPort: 80, hostPort: 8080}]"))))
	wanted := map[string]string{}
	var manifests []string
	for _, c := range []struct{ name, spec, says string }{
		{"never", "containers: [{name: c, image: 'localhost/absent:1', imagePullPolicy: Never}]", `ErrImageNeverPull: image localhost/absent:1 is not present, and imagePullPolicy is Never: load it with husk image load`},
		{"unreachable", "containers: [{name: c, image: '127.0.0.1:1/absent:1'}]", `(ErrImagePull|ImagePullBackOff): .*127.0.0.1:1/absent:1.*connection refused`},
		{"unnamed", "containers: [{name: c, image: 'Not A Name!'}]", `InvalidImageName: image name "Not A Name!" is malformed: .*`},
		{"nocommand", only("command: [/bin/absent]"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*/bin/absent: no such file or directory`},
		{"nopath", only("command: [absent]"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*"absent": executable file not found in .PATH`},
		{"noexec", only("command: [/etc/passwd]"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*"/etc/passwd": permission denied`},
		{"nodir", only("command: [/bin/true], workingDir: /etc/passwd"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*/etc/passwd: not a directory`},
		{"nouser", only("securityContext: {runAsNonRoot: true}"), `CreateContainerConfigError: container "c": securityContext.runAsNonRoot: true, but the image runs as root: set runAsUser`},
		{"nohost", "volumes: [{name: v, hostPath: {path: /absent, type: Directory}}], " + only("volumeMounts: [{name: v, mountPath: /v}]"), `FailedMount: volume v: hostPath type check failed: it isn.t of type Directory: stat /absent: no such file or directory`},
		{"noport", only(fmt.Sprintf("ports: [{containerPort: 80, hostPort: %d}]", foreign.Addr().(*net.TCPAddr).Port)), `PortInUse: .*host port \d+/tcp is in use on this node: a process listens on .*; stop it or use another hostPort`},
		{"taker", only("ports: [{containerPort: 80, hostPort: 8080}]"), `PortInUse: .*host port 8080/tcp .*default/keeper.*`},
		{"oom", only("command: [/bin/sh, -c, 'tail /dev/zero'], resources: {limits: {memory: 16Mi}}") + ", restartPolicy: Never", `OOMKilled: `},
		{"exits", only("command: [/bin/sh, -c, 'exit 3']"), `CrashLoopBackOff: back-off 10s restarting failed container c`},
	} {
		wanted[c.name] = c.says
		manifests = append(manifests, podOf(c.name, c.spec))
	}
	names := slices.Collect(maps.Keys(wanted))
	w.MustHusk("run", write(t, w.Node, "pods.yaml", strings.Join(manifests, "---\n")))
	w.awaitStatus(wanted)
	if got, want := w.pod("oom").Containers[0].Message, "it used more memory than its limit"; got != want {
		t.Errorf("the message of the OOM-killed container is %q", got)
	}
	r := w.run(podOf("late", "containers: [{name: c, image: 'localhost/absent:1', imagePullPolicy: Never}]"), "--wait", "--timeout", "30s")
	w.fails("run --wait", node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1, `husk: failed: default/late: see husk logs and husk ps -a`)
	checkLines(t, "run --wait of an image that is not here", r.Stdout,
		`pod default/late failed in .*: ErrImageNeverPull: image localhost/absent:1 is not present, and imagePullPolicy is Never: load it with husk image load`)
	// A pod with restartPolicy Never whose program is missing has failed, so run --wait ends.
	r = w.run(podOf("job", only("command: [/bin/absent]")+", restartPolicy: Never"), "--wait", "--timeout", "30s")
	w.fails("run --wait of a job", node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1, `husk: failed: default/job: see husk logs and husk ps -a`)
	checkLines(t, "run --wait of a job", r.Stdout, `pod default/job failed in .*: container c ended with exit code 127: .*/bin/absent: no such file or directory`)
	w.awaitStatus(map[string]string{"job": `StartError: `})
	w.remove(append(names, "late", "keeper", "job")...)
	w.end()
}

// listen listens on a port of the node.
func (w *testEnv) listen() (l net.Listener) {
	w.t.Helper()
	if err := netns.Do(w.Net(), func() (err error) {
		l, err = net.Listen("tcp", ":0")
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return l
}
