package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// TestCapacity checks that a pod without enough free resources waits, says why, and starts once
// there are enough.
func TestCapacity(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	asks := func(name, requests, more string) string {
		return podOf(name, more+only("resources: {requests: {"+requests+"}}, command: [sleep, '1000']"))
	}
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes int
	if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kilobytes); err != nil {
		t.Fatal(err)
	}
	most := fmt.Sprintf("memory: %dKi", kilobytes/10*6)
	w.run(asks("huge", "cpu: 1000", ""))
	w.awaitStatus(map[string]string{"huge": `OutOfcpu: the pod requests 1k of cpu, but the node has only \d+: request less`})
	if out := w.MustHusk("ps"); !strings.Contains(out, "OutOfcpu") {
		t.Error(out)
	}
	for _, command := range []string{"events", "describe"} {
		if out := w.MustHusk(command, "huge"); !strings.Contains(out, "OutOfcpu") || !strings.Contains(out, "the node has only") {
			t.Errorf("husk %s: %s", command, out)
		}
	}
	w.run(asks("first", most, ""), "--wait")
	w.run(asks("second", most, "nodeSelector: {a: b}, "))
	w.eventually("second", "waiting", func(p listed) bool { return p.Reason == "OutOfmemory" })
	if out := w.MustHusk("events", "second"); !strings.Contains(out, "no effect without a cluster: spec.nodeSelector") {
		t.Error(out)
	}
	w.d.Kill()
	w.d = w.Huskd()
	w.eventually("first", "ready", isReady)
	w.eventually("second", "still waiting", func(p listed) bool { return p.Reason == "OutOfmemory" })
	w.MustHusk("stop", "first")
	w.eventually("second", "ready", isReady)
	w.MustHusk("run", write(t, w.Node, "first.yaml", asks("first", most, "")))
	w.eventually("first", "waiting", func(p listed) bool { return p.Reason == "OutOfmemory" })
	w.MustHusk("rm", "-f", "huge", "second")
	w.eventually("first", "ready", isReady)
	w.remove("first")

	// A pod waits for a host port too.
	port := func(name string) string {
		return podOf(name, only("ports: [{containerPort: 80, hostPort: 8080}], command: [sleep, '1000']"))
	}
	w.run(port("one"), "--wait")
	w.run(port("two"))
	w.awaitStatus(map[string]string{"two": `PortInUse: .*8080/tcp.*`})
	if out := w.MustHusk("events", "two"); !strings.Contains(out, "8080/tcp") {
		t.Error(out)
	}
	w.MustHusk("rm", "-f", "one")
	w.eventually("two", "ready", isReady)
	w.remove("two")
	w.end()
}

// TestSecretFileModes checks that secrets are only in files that only root can read.
func TestSecretFileModes(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: login}\nstringData: {password: 5ecr3t-w0rd}\n---\n"
	w.run(secret+podOf("web", "volumes: [{name: s, secret: {secretName: login}}], "+only("volumeMounts: [{name: s, mountPath: /s}], env: [{name: P, valueFrom: {secretKeyRef: {name: login, key: password}}}], command: [sleep, '1000']")), "--wait")
	// grep can't read pinned namespaces, so it skips them.
	out := w.Run("grep", "-rl", "--exclude-dir=images", "--exclude-dir=sandboxes", "5ecr3t-w0rd", w.Root, w.State).Stdout
	if !strings.Contains(out, "/journal/") {
		t.Errorf("the secret is not in the journal, only in %s", out)
	}
	for path := range strings.Lines(out) {
		path = strings.TrimSpace(path)
		if before, _, in := strings.Cut(path, "/pods/"); in { // a tmpfs, in which files have the mode from the manifest
			path = before + "/pods"
			if mode := strings.TrimSpace(w.Must("stat", "-c", "%a", path)); mode != "700" {
				t.Errorf("%s has mode %s", path, mode)
			}
			continue
		}
		if mode := strings.TrimSpace(w.Must("stat", "-c", "%a", path)); mode != "600" {
			t.Errorf("%s has mode %s", path, mode)
		}
	}
	w.remove("web")
	w.end()
}
