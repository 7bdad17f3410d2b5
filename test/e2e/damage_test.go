package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestDamagedFiles overwrites files of running containers while huskd is down. The next huskd
// starts; containers whose records are damaged run anew, others run on, all pods can be removed,
// and nothing is left of them.
func TestDamagedFiles(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for pattern, restarts := range map[string]int{
		"monitor/containers/*/record.json": 1, "monitor/containers/*/pid": 0, "containers/*/config.json": 0,
		"monitor/runtime/*/*/state.json": 0, "monitor/runtime.json": 0, "sandboxes/*/memory/hosts": 0, "sandboxes/*/infra/cgroup": 0,
	} {
		glob := func() []string {
			files, err := filepath.Glob(w.Path(w.State) + "/" + pattern)
			if err != nil {
				t.Fatal(err)
			}
			return files
		}
		others := glob()
		w.run(podOf("one", only("command: [sleep, '1000']")+", shareProcessNamespace: true"), "--wait")
		w.d.Kill()
		files := glob()
		if strings.Contains(pattern, "*") {
			files = slices.DeleteFunc(files, func(f string) bool { return slices.Contains(others, f) })
		}
		if len(files) != 1 {
			t.Fatalf("%s: %v", pattern, files)
		}
		for _, f := range files {
			if err := os.WriteFile(f, []byte(`{"rubbish`), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		w.d = w.Huskd()
		w.eventually("one", "ready after "+pattern, func(p listed) bool { return p.Ready && p.Containers[0].Restarts == restarts })
		w.remove("one")
	}
	w.end()
}

// TestDamagedJournal flips a bit in every record of the journal while huskd is down, as a bad disk
// might. The next huskd says so, removes the pods, of which it knows nothing any more, down to
// their cgroups, and keeps the policies that husk run has brought: for pods that start again, too,
// until someone who was told of the loss gives them up.
func TestDamagedJournal(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	w := &testEnv{Node: n, t: t, d: n.Huskd()}
	w.MustHusk("image", "load", write(t, n, "web.tar", string(webArchive(t))))
	server := "containers: [{name: c, image: 'localhost/web:1', command: [/bin/httpd, -f, -p, '80', -h, /www], ports: [{name: www, containerPort: 80}], resources: {requests: {cpu: 10m}}}]"
	labelled := func(name string) string {
		return strings.Replace(podOf(name, server), "{name: "+name+"}", "{name: "+name+", labels: {app: "+name+"}}", 1)
	}
	w.run(fmt.Sprintf(onlyWeb, "web"))
	w.run(labelled("first"), "--wait")
	w.MustHusk("rm", "-f", "first")
	empty := w.Left() // with huskd's own cgroup, which the first pod has brought
	denied := func(when string) {
		t.Helper()
		keys, db := map[string]string{}, ""
		for _, pod := range []string{"db", "web", "other"} {
			w.run(labelled(pod), "--wait")
			p := inspect(t, w.Node, pod)
			if keys[pod] = w.Path(p.NetworkSettings.SandboxKey); pod == "db" {
				db = p.IPs[0]
			}
		}
		for from, want := range map[string]bool{"web": true, "other": false} {
			if _, err := node.Get(keys[from], db+":80"); (err == nil) != want {
				t.Errorf("%s, %s reaches db: %v, want %v", when, from, err, want)
			}
		}
	}
	denied("at the start")
	w.d.Kill()
	file := filepath.Join(w.Path(w.Root), "journal", "journal")
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for at := len("husk journal 1\n\x00"); at < len(data); at += 25 {
		data[at] ^= 1 << (at % 8)
	}
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	w.d = w.Huskd()
	if got := w.MustHusk("ps", "-q"); got != "" {
		t.Errorf("pods without a record: %s", got)
	}
	if got := w.MustHusk("events"); !strings.Contains(got, "JournalDamaged") {
		t.Errorf("husk events doesn't tell of the damage: %s", got)
	}
	saved, err := filepath.Glob(file[:strings.LastIndex(file, "/")] + "/damaged-*")
	if err != nil || len(saved) != 1 {
		t.Fatalf("files with what was damaged: %v, %v", saved, err)
	}
	if got := w.Husk("doctor").Stdout; !strings.Contains(got, filepath.Base(saved[0])) || !strings.Contains(got, "NetworkPolicy default/only-web as last in force") {
		t.Errorf("husk doctor says\n%s", got)
	}
	node.Eventually(t, 10*time.Second, func() string {
		for _, left := range w.Left() {
			if !slices.Contains(empty, left) {
				return "left of pods that are lost: " + left
			}
		}
		return ""
	})
	denied("after the damage")
	w.MustHusk("rm", "-f", "db", "web", "other")

	// Applied again, it can be removed again.
	w.run(fmt.Sprintf(onlyWeb, "web"))
	if got := w.Husk("doctor").Stdout; strings.Contains(got, "as last in force") {
		t.Errorf("after the policy was applied again, husk doctor says\n%s", got)
	}
	w.MustHusk("rm", "networkpolicy/only-web")
	node.Eventually(t, 10*time.Second, func() string {
		if tables := w.Must("nft", "list", "tables"); strings.Contains(tables, "-policy") {
			return "the removal of the rules: " + tables
		}
		return ""
	})
	if err := os.Remove(saved[0]); err != nil {
		t.Fatal(err)
	}
	if got := w.Husk("doctor").Stdout; strings.Contains(got, "journal") {
		t.Errorf("husk doctor says\n%s", got)
	}
	w.d.Stop()
	w.NothingLeft()
}
