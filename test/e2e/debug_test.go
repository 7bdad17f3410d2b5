package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
)

// debugged is what inspect says of a pod's containers, the ephemeral ones last.
type debugged struct {
	Containers []struct {
		ID           string `json:"Id"`
		Name, State  string
		RestartCount int
	}
}

// TestDebugContainer adds containers with tools to pods, as husk debug does: to an ordinary one,
// one with users of its own and one whose container doesn't run.
func TestDebugContainer(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	if err := os.Chmod(w.Dir, 0o711); err != nil { // the root user of a user namespace must reach its files
		t.Fatal(err)
	}
	sleep := "command: " + shell("echo inside > /tmp/mark; exec sleep 12345")
	manifests := map[string]string{
		"plain":  podOf("plain", only(sleep+", securityContext: {runAsUser: 1234}")),
		"mapped": podOf("mapped", "hostUsers: false, "+only(sleep)),
	}
	look := func(name string) (out debugged) {
		if err := json.Unmarshal([]byte(w.MustHusk("inspect", name)), &out); err != nil {
			t.Fatal(err)
		}
		return out
	}
	const image = "localhost/web:1"
	script := `hostname; tr '\000' ' ' < /proc/1/cmdline; echo; cat /proc/1/root/tmp/mark; exit 5`
	for name, manifest := range manifests {
		w.run(manifest, "--wait")
		before := look(name)
		r := w.Husk("debug", name, "--image", image, "--", "sh", "-c", script)
		if want := name + "\nsleep 12345 \ninside\n"; r.Stdout != want || r.Code != 5 {
			t.Errorf("%s: exit code %d, output %q, want %q; %s", name, r.Code, r.Stdout, want, r.Stderr)
		}
		if !regexp.MustCompile(`^container debugger-\w{5} of pod default/` + name + ` sees the processes of container c\n$`).MatchString(r.Stderr) {
			t.Errorf("%s: %q", name, r.Stderr)
		}
		// It is confined as any container of the pod.
		confined := `CapBnd:\s00000000800c25fb\nNoNewPrivs:\s0\nSeccomp:\s2\n4096\n`
		r = w.Husk("debug", name, "--image", image, "--", "sh", "-c", "grep -E '^(CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; cat /sys/fs/cgroup/pids/pids.max 2>/dev/null || cat /sys/fs/cgroup/pids.max")
		if !regexp.MustCompile("^" + confined + "$").MatchString(r.Stdout) {
			t.Errorf("%s: the tools run with %q", name, r.Stdout)
		}
		// The pod is as before, and the same manifest is the same pod.
		if again := w.run(manifest, "--wait"); !strings.Contains(again.Stdout, "unchanged") {
			t.Errorf("run again: %s %s", again.Stdout, again.Stderr)
		}
		if after := look(name); after.Containers[0].ID != before.Containers[0].ID || after.Containers[0].RestartCount != 0 {
			t.Errorf("%s: the pod's own container is another: %+v", name, after.Containers)
		}
	}
	if got := w.Must("sh", "-c", "echo typed | "+w.Binary("husk")+" debug plain -i --image "+image+" -- cat"); got != "typed\n" {
		t.Errorf("standard input came back as %q", got)
	}
	w.fails("no image", w.Husk("debug", "plain"), 125, `husk: husk debug needs the --image that has the tools: --image localhost/\S+ has a shell, and is on this node`)
	r := w.Husk("debug", "plain", "--image", "localhost/none:1")
	r.Stderr = strings.TrimPrefix(r.Stderr, "pulling localhost/none:1\n") // unless it fails too early to be seen
	w.fails("an image that is absent", r, 125, `husk: container debugger-\w+ of pod default/plain doesn't start: .*localhost/none:1.*`)
	w.fails("a program that is absent", w.Husk("debug", "plain", "--image", image, "--", "/none"), 127, `container debugger-.*`, `husk: .*/none.*`)
	w.fails("a target that is absent", w.Husk("debug", "plain", "--image", image, "-c", "none"), 125, `husk: pod default/plain has no container "none": it has c, debugger-.*`)

	// What has ended doesn't run again, neither now nor with a new huskd or in a new sandbox.
	ended := look("plain")
	w.d.Kill()
	w.d = w.Huskd()
	again := look("plain")
	if len(ended.Containers) < 4 || len(again.Containers) != len(ended.Containers) {
		t.Fatalf("%d containers became %d", len(ended.Containers), len(again.Containers))
	}
	for i, c := range ended.Containers[1:] {
		if now := again.Containers[i+1]; now.ID != c.ID || now.State != "Terminated" || now.RestartCount != 0 {
			t.Errorf("%s is %+v, and was %+v", c.Name, now, c)
		}
	}
	w.MustHusk("inspect", ended.Containers[1].ID)
	w.MustHusk("restart", "plain")
	w.MustHusk("wait", "plain", "--for=condition=Ready")
	for _, c := range look("plain").Containers[1:] {
		if c.State != "Terminated" || c.ID != "" {
			t.Errorf("after a restart of the pod, %s is %+v", c.Name, c)
		}
	}
	if text := w.MustHusk("describe", "plain"); !strings.Contains(text, "Container debugger-") {
		t.Errorf("husk describe says:\n%s", text)
	}
	if text := w.MustHusk("generate", "plain"); strings.Contains(text, "debugger") {
		t.Errorf("husk generate says:\n%s", text)
	}

	// The network of a pod can be looked at although its container doesn't run.
	w.run(podOf("crashing", only("command: [\"false\"]")))
	w.eventually("crashing", "waiting for its restart", func(p listed) bool {
		return len(p.Containers) > 0 && p.Containers[0].Reason == "CrashLoopBackOff"
	})
	r = w.Husk("debug", "crashing", "--image", image, "--", "hostname")
	if r.Code != 0 || r.Stdout != "crashing\n" {
		t.Errorf("beside a container that crashes: %+v", r)
	}
	w.MustHusk("stop", "plain")
	w.fails("a stopped pod", w.Husk("debug", "plain", "--image", image), 125, `husk: pod default/plain isn't running: husk start default/plain starts it`)
	w.remove("plain", "mapped", "crashing")
	w.end()
}
