package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestObjectsOfOtherFiles checks that config maps and secrets of one file are there for the pods of
// others, of the same command, of a later one and of the manifests directory, over a kill and a
// reboot, until they are removed.
func TestObjectsOfOtherFiles(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	if err := os.Mkdir(n.Dir+"/manifests", 0o755); err != nil {
		t.Fatal(err)
	}
	flags := node.Flags("--manifests", n.Dir+"/manifests")
	w := testEnvOn(t, n, flags)
	pod := func(name string) string {
		return podOf(name, "volumes: [{name: s, configMap: {name: settings}}], "+
			only("env: [{name: U, valueFrom: {secretKeyRef: {name: login, key: user}}}], volumeMounts: [{name: s, mountPath: /s}], command: [sleep, '1000']"))
	}
	has := func(pod, want string) {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			if got := w.sh(pod, "echo $U; cat /s/color; echo"); got != want {
				return fmt.Sprintf("pod %s has %q", pod, got)
			}
			return ""
		})
	}
	objects := write(t, n, "settings.yaml", fmt.Sprintf(settings, "blue"))
	if r := w.Husk("run", objects); r.Code != 0 || r.Stdout != "configmap default/settings kept\nsecret default/login kept\n" {
		t.Fatal(r)
	}
	w.mustRun(pod("first"))
	has("first", "me\nblue")
	if got := w.MustHusk("objects"); !strings.Contains(got, "ConfigMap   default     settings") || !strings.Contains(got, "Secret      default     login") {
		t.Errorf("husk objects shows\n%s", got)
	}
	if r := w.Husk("run", objects); r.Code != 0 || r.Stdout != "configmap default/settings unchanged\nsecret default/login unchanged\n" {
		t.Errorf("running them again: %v", r)
	}
	// A running pod follows them.
	write(t, n, "settings.yaml", fmt.Sprintf(settings, "green"))
	w.MustHusk("run", objects)
	has("first", "me\ngreen")
	w.d.Kill()
	w.d = w.Huskd(flags)
	write(t, n, "manifests/second.yaml", pod("second"))
	w.eventually("second", "ready", isReady)
	has("second", "me\ngreen")
	w.d.Stop()
	n.Reboot()
	w.d = w.Huskd(flags)
	w.eventually("first", "ready", isReady)
	w.eventually("second", "ready", isReady)
	has("first", "me\ngreen")
	// The manifests directory and husk run don't contradict each other.
	write(t, n, "manifests/other.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs}\ndata: {a: b}\n")
	node.Eventually(t, 10*time.Second, func() string {
		r := w.Husk("run", write(t, n, "theirs.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: theirs}\ndata: {a: c}\n"))
		if want := "configmap/default/theirs is declared in the manifests directory with other content: rename one"; !strings.Contains(r.Stderr, want) {
			w.Husk("rm", "configmap/theirs")
			return fmt.Sprint("the refusal of what the directory has: ", r)
		}
		return ""
	})
	w.MustHusk("rm", "configmap/settings")
	w.fails("another removal", w.Husk("rm", "configmap/settings"), 1, "husk: no configmap/default/settings: husk objects lists what husk run has brought")
	has("first", "me\ngreen")
	for _, f := range []string{"second.yaml", "other.yaml"} {
		if err := os.Remove(n.Dir + "/manifests/" + f); err != nil {
			t.Fatal(err)
		}
	}
	w.MustHusk("rm", "-f", "first")
	w.MustHusk("rm", "secret/login")

	// The files of a directory are one set, whatever their order.
	if err := os.Mkdir(n.Dir+"/shop", 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, n, "shop/a-pod.yaml", pod("third"))
	write(t, n, "shop/b-objects.yaml", fmt.Sprintf(settings, "red"))
	if r := w.Husk("run", n.Dir+"/shop", "--wait", "--timeout", "60s"); r.Code != 0 || strings.Contains(w.MustHusk("events", "third"), "not found") {
		t.Errorf("a directory: %v\n%s", r, w.MustHusk("events", "third"))
	}
	has("third", "me\nred")
	w.fails("a removal by file without -f", w.Husk("rm", n.Dir+"/shop/"), 1, "husk: pod default/third is running: stop it first, or remove it with -f")
	if r := w.Husk("rm", "-f", n.Dir+"/shop/"); r.Code != 0 || r.Stdout != "pod default/third removed\nconfigmap default/settings removed\nsecret default/login removed\n" {
		t.Errorf("a removal by directory: %v", r)
	}
	if got := w.MustHusk("objects"); got != "" && !strings.HasPrefix(got, "KIND") || strings.Contains(got, "default") {
		t.Errorf("husk objects still shows\n%s", got)
	}
	w.end()
}

// TestPolicyOfRun checks that the policy of a file is in force from the start of the file's pods,
// over a kill, until it is removed by its name or file.
func TestPolicyOfRun(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	server := "containers: [{name: c, image: 'localhost/web:1', command: [/bin/httpd, -f, -p, '80', -h, /www], ports: [{name: www, containerPort: 80}]}]"
	labelled := func(name string) string {
		return "---\n" + strings.Replace(podOf(name, server), "{name: "+name+"}", "{name: "+name+", labels: {app: "+name+"}}", 1)
	}
	file := write(t, w.Node, "shop.yaml", labelled("db")+labelled("web")+"---\n"+fmt.Sprintf(onlyWeb, "web"))
	r := w.Husk("run", file, "--wait", "--timeout", "60s")
	if r.Code != 0 || !strings.Contains(r.Stdout, "networkpolicy default/only-web kept\n") {
		t.Fatal(r)
	}
	keys, db := map[string]string{}, ""
	find := func() {
		for _, pod := range []string{"web", "other"} {
			keys[pod] = w.Path(inspect(t, w.Node, pod).NetworkSettings.SandboxKey)
		}
		db = inspect(t, w.Node, "db").IPs[0] + ":80"
	}
	find()
	reaches := func(when, from string, want bool) {
		t.Helper()
		if _, err := node.Get(keys[from], db); (err == nil) != want {
			t.Errorf("%s, %s reaches db: %v, want %v", when, from, err, want)
		}
	}
	inForce := func(when string) {
		t.Helper()
		reaches(when, "web", true)
		reaches(when, "other", false)
	}
	gone := func(when string) {
		t.Helper()
		node.Eventually(t, 10*time.Second, func() string {
			if tables := w.Must("nft", "list", "tables"); strings.Contains(tables, "-policy") {
				return when + ", the removal of the rules: " + tables
			}
			return ""
		})
	}
	inForce("at the start")
	w.d.Kill()
	inForce("while huskd is dead")
	w.d = w.Huskd()
	inForce("after a restart")
	if got := w.MustHusk("rm", "networkpolicy/only-web"); got != "networkpolicy default/only-web removed\n" {
		t.Errorf("husk rm says %q", got)
	}
	gone("removed by its name")
	reaches("without a policy", "other", true)
	w.MustHusk("run", file)
	reaches("again", "other", false)
	w.MustHusk("rm", "-f", file)
	gone("removed by its file")
	w.checkUnharmed("removal of the file")
	w.end()
}
