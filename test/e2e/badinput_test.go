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

// testEnv is a node on which things go wrong beside a healthy pod, which is named
// other and must not notice.
type testEnv struct {
	*node.Node
	t       *testing.T
	d       *node.Daemon
	address string
	began   string // when the healthy pod's container did
	healthy []string
}

// podOf is the manifest of a pod; spec is what a YAML flow mapping has inside.
func podOf(name, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {terminationGracePeriodSeconds: 1, %s}\n", name, spec)
}

// only is the spec of one container, which more goes on.
func only(more string) string {
	return "containers: [{name: c, image: 'localhost/web:1', " + more + "}]"
}

func newTestEnv(t *testing.T, options ...node.Option) *testEnv {
	t.Helper()
	return testEnvOn(t, node.New(t), options...)
}

// wardOn starts huskd and the healthy pod on a node.
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

// unharmed checks that the healthy pod answers as if nothing had happened, and
// that nothing is on the node beside it.
func (w *testEnv) checkUnharmed(after string) {
	w.t.Helper()
	if body := mustGet(w.t, w.Net(), w.address); !strings.HasPrefix(body, "other ") {
		w.t.Errorf("%s: the other pod answers %q", after, body)
	}
	if now := w.pod("other").Containers[0].Started; now != w.began {
		w.t.Errorf("%s: the other pod's container was started at %s and again at %s", after, w.began, now)
	}
	node.Eventually(w.t, 10*time.Second, func() string {
		for _, left := range w.Left() {
			// The web server answers by processes that come and go.
			if !slices.Contains(w.healthy, left) {
				return after + ": left behind: " + left
			}
		}
		return ""
	})
}

// rid removes pods, after which all must be as before.
func (w *testEnv) remove(names ...string) {
	w.t.Helper()
	w.MustHusk(append([]string{"rm", "-f"}, names...)...)
	w.checkUnharmed("rm " + strings.Join(names, " "))
}

// end takes everything down.
func (w *testEnv) end() {
	w.t.Helper()
	w.MustHusk("rm", "-f", "other")
	w.d.Stop()
	w.NothingLeft()
}

// run runs the manifest of one pod.
func (w *testEnv) run(manifest string, flags ...string) node.Result {
	w.t.Helper()
	return w.Husk(append([]string{"run", write(w.t, w.Node, "pod.yaml", manifest)}, flags...)...)
}

// fails checks that a command ended with a code and said the lines, each a
// regular expression of a whole line, and no other.
func (w *testEnv) fails(what string, r node.Result, code int, lines ...string) {
	w.t.Helper()
	checkLines(w.t, what, r.Stderr, lines...)
	if r.Code != code {
		w.t.Errorf("%s: exit code %d, not %d", what, r.Code, code)
	}
}

func checkLines(t *testing.T, what, text string, lines ...string) {
	t.Helper()
	t.Logf("%s:\n%s", what, text)
	got := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if len(got) != len(lines) {
		t.Errorf("%s: %d lines, not %d:\n%s", what, len(got), len(lines), text)
		return
	}
	for i, want := range lines {
		if !regexp.MustCompile("^(?:" + want + ")$").MatchString(got[i]) {
			t.Errorf("%s: it says\n%s\nwhich is not\n%s", what, got[i], want)
		}
	}
}

// listed is a pod as scripts see it.
type listed struct {
	Name, Phase, Status, Reason, Message string
	Ready                                bool
	Containers                           []listedContainer
}

type listedContainer struct {
	Name, State, Reason, Message, Started string
	Restarts, ExitCode, Pid               int
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

// turnOut waits until pods are as wanted: by name, a regular expression of
// what husk ps says of each, "reason: message".
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

// TestBadManifest refuses files before anything begins.
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
		{filepath.Join(w.Dir, "dir"), 1, []string{`husk: .*/dir is a directory: name its files, as in husk run .*/dir/\*\.yaml`}},
		{huge, 1, []string{`husk: .*/huge.yaml is too large for a manifest: it has more than 3 MiB`}},
		{file("empty.yaml", ""), 1, []string{`husk: .*/empty.yaml is empty: it must contain a manifest`}},
		{file("comment.yaml", "# nothing\n"), 1, []string{`husk: .*/comment.yaml: there is no pod in it: begin one with apiVersion: v1 and kind: Pod`}},
		{file("noyaml.yaml", "a: [1, 2\nb: }\n"), 1, []string{`husk: .*/noyaml.yaml:\d+: .*`}},
		{file("binary.yaml", string(binary[:64<<10])), 1, []string{`husk: .*/binary.yaml.*`}},
		{file("word.yaml", "hello\n"), 1, []string{`husk: .*/word.yaml:1: document 1: must be an object, not .*`}},
		{file("service.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: s}\n"), 1, []string{`husk: .*/service.yaml:2: document 1: kind: Service of v1 is not supported: use a v1 Pod`}},
		{file("deployment.json", `{"apiVersion": "apps/v1", "kind": "Deployment"}`), 1, []string{`husk: .*/deployment.json:1: document 1: kind: Deployment of apps/v1 is not supported: use a v1 Pod`}},
		{file("two.yaml", podOf("two", "containers: [{name: C, command: [x]}]")), 1, []string{
			`husk: .*/two.yaml:4: pod default/two: spec.containers\[0\].image: missing`,
			`husk: .*/two.yaml:4: pod default/two: spec.containers\[0\].name: "C" is not valid: use .*`}},
		{file("field.yaml", podOf("field", only("volumeDevices: [{name: v, devicePath: /dev/x}]"))), 1, []string{
			`husk: .*/field.yaml:4: pod default/field: spec.containers\[0\].volumeDevices: not supported yet: remove it`}},
		{file("claim.yaml", podOf("claim", "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}], "+only("volumeMounts: [{name: v, mountPath: /v}]"))), 1, []string{
			`husk: .*/claim.yaml:4: pod default/claim: spec.volumes\[0\].persistentVolumeClaim: claims are not supported: mount a directory with hostPath`}},
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
	// A good file beside a bad one isn't run either.
	w.fails("good and bad", w.Husk("run", file("good.yaml", podOf("good", only("tty: false"))), filepath.Join(w.Dir, "missing.yaml")), 1, `husk: .*/missing.yaml.*`)
	// Another pod of a name that is taken: the one that runs stays.
	w.fails("another other", w.run(podOf("other", only("command: [/bin/sleep, '1']"))), 1,
		`husk: pod default/other exists with another manifest \(from .*\): husk run --replace replaces it, husk rm -f default/other removes it`)
	if out := w.MustHusk("ps", "-a"); strings.Count(out, "\n") != 2 {
		t.Errorf("there are more pods than one:\n%s", out)
	}
	w.checkUnharmed("bad manifests")
	w.end()
}

// TestBadPod runs pods that can't run: each says why, where it is asked for.
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
		{"unnamed", "containers: [{name: c, image: 'Not A Name!'}]", `(ErrImagePull|ImagePullBackOff): .*image name "Not A Name!" is malformed: .*`},
		{"nocommand", only("command: [/bin/absent]"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*/bin/absent: no such file or directory`},
		{"nopath", only("command: [absent]"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*"absent": executable file not found in .PATH`},
		{"noexec", only("command: [/etc/passwd]"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*"/etc/passwd": permission denied`},
		{"nodir", only("command: [/bin/true], workingDir: /etc/passwd"), `CreateContainerError: container "c": create container [0-9a-f]{12}: runc create failed: .*/etc/passwd: not a directory`},
		{"nouser", only("securityContext: {runAsNonRoot: true}"), `CreateContainerConfigError: container "c": securityContext.runAsNonRoot: true, but the image runs as root: set runAsUser`},
		{"nohost", "volumes: [{name: v, hostPath: {path: /absent, type: Directory}}], " + only("volumeMounts: [{name: v, mountPath: /v}]"), `CreateContainerConfigError: volume v: hostPath of type Directory: stat /absent: no such file or directory`},
		{"noport", only(fmt.Sprintf("ports: [{containerPort: 80, hostPort: %d}]", foreign.Addr().(*net.TCPAddr).Port)), `CreatePodSandboxError: .*host port \d+/tcp is in use on this node: a process listens on .*; stop it or use another hostPort`},
		{"taker", only("ports: [{containerPort: 80, hostPort: 8080}]"), `CreatePodSandboxError: .*host port 8080/tcp .*default/keeper.*`},
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
		t.Errorf("of a container that was killed for its memory it says %q", got)
	}
	r := w.run(podOf("late", "containers: [{name: c, image: 'localhost/absent:1', imagePullPolicy: Never}]"), "--wait", "--timeout", "1s")
	w.fails("run --wait", node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1,
		`husk: not ready within 1s: default/late \(ErrImageNeverPull: image localhost/absent:1 is not present, and .*\): they keep running, see husk ps -a`)
	// A job whose program isn't there has failed; nobody waits for it in vain.
	r = w.run(podOf("job", only("command: [/bin/absent]")+", restartPolicy: Never"), "--wait", "--timeout", "30s")
	w.fails("run --wait of a job", node.Result{Stderr: lastLine(r.Stderr), Code: r.Code}, 1, `husk: failed: default/job: see husk logs and husk ps -a`)
	checkLines(t, "run --wait of a job", r.Stdout, `pod default/job failed in .*: container c ended with exit code 127: .*/bin/absent: no such file or directory`)
	w.awaitStatus(map[string]string{"job": `StartError: `})
	w.remove(append(names, "late", "keeper", "job")...)
	w.end()
}

// listen has a process of the node listen on a port of it.
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
