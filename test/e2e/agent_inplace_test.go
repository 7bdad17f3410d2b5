package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestManifestChange checks that changes of a manifest are applied to the running pod where
// possible, and that only the containers that have to be are restarted: with husk run, and in a
// directory.
func TestManifestChange(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	dir := n.Dir + "/manifests"
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	flags := node.Flags("--manifests", dir)
	w := testEnvOn(t, n, flags)
	text := func(memory, image, command string) string {
		sleep := "command: " + shell("trap 'exit 0' TERM; sleep 1000 & wait")
		return podOf("web", "containers: [{name: c, image: 'localhost/web:1', resources: {limits: {memory: "+memory+"}, requests: {cpu: 100m}}, "+command+sleep+"}, {name: d, image: '"+image+"', "+sleep+"}]")
	}
	limits := func(memory int) {
		t.Helper()
		id := w.pod("web").Containers[0].ID
		node.Eventually(t, 30*time.Second, func() string {
			got := w.cgroupFile("web", id, "memory.limit_in_bytes", "memory.max")
			if got == fmt.Sprint(memory<<20) {
				return ""
			}
			return "the memory limit is " + got
		})
	}
	began := func() (c, d string) {
		p := w.eventually("web", "ready", isReady)
		return p.Containers[0].Started, p.Containers[1].Started
	}
	check := func(apply func(text string)) {
		t.Helper()
		apply(text("64Mi", "localhost/web:1", ""))
		c, d := began()
		limits(64)
		apply(text("96Mi", "localhost/web:1", ""))
		limits(96)
		if c2, d2 := began(); c2 != c || d2 != d {
			t.Error("a resize restarted a container")
		}
		w.d.Kill()
		w.d = w.Huskd(flags)
		limits(96)
		apply(text("96Mi", "localhost/again:1", ""))
		node.Eventually(t, 30*time.Second, func() string {
			if p := w.pod("web"); !p.Ready || p.Containers[1].Started == d {
				return fmt.Sprintf("the other image doesn't run: %+v", p)
			}
			return ""
		})
		if c2, _ := began(); c2 != c {
			t.Error("the container whose image didn't change was restarted")
		}
	}
	loadLayers(t, n, "localhost/again:1", 2)
	check(func(text string) {
		if r := w.run(text); r.Code != 0 {
			t.Fatal(r)
		}
	})
	other := text("96Mi", "localhost/again:1", "env: [{name: A, value: b}], ")
	w.fails("a change that needs a new pod", w.run(other), 1, `husk: pod default/web exists with another manifest \(from run\): husk run --replace replaces it, husk rm -f default/web removes it`)
	c, _ := began()
	if r := w.run(other, "--replace", "--wait"); r.Code != 0 || !strings.HasPrefix(r.Stdout, "pod default/web ready ") {
		t.Errorf("husk run --replace --wait: %+v", r)
	}
	if c2, _ := began(); c2 == c {
		t.Error("run --replace didn't replace the pod")
	}
	w.remove("web")
	check(func(text string) { write(t, n, "manifests/web.yaml", text) })
	if err := os.Remove(dir + "/web.yaml"); err != nil {
		t.Fatal(err)
	}
	w.checkUnharmed("removal of the file")
	w.end()
}

// TestDeferredResize resizes a pod beyond the free memory. The pod keeps its resources, its events
// say so, and it is resized once memory is free. Only the container with restartPolicy
// RestartContainer is restarted.
func TestDeferredResize(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	raw, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	var kilobytes int
	if _, err := fmt.Sscanf(string(raw), "MemTotal: %d kB", &kilobytes); err != nil {
		t.Fatal(err)
	}
	asks := func(name string, percent int) string {
		return podOf(name, "containers: [{name: c, image: 'localhost/web:1', resources: {limits: {memory: "+fmt.Sprint(kilobytes/100*percent)+"Ki}}, "+
			"resizePolicy: [{resourceName: memory, restartPolicy: RestartContainer}], command: [sleep, '1000']}, {name: d, image: 'localhost/web:1', command: [sleep, '1000']}]")
	}
	w.run(asks("first", 30), "--wait")
	w.run(asks("second", 60), "--wait")
	before := w.eventually("first", "ready", isReady)
	for percent, reason := range map[int]string{200: "ResizeInfeasible", 50: "ResizeDeferred"} {
		if r := w.run(asks("first", percent)); r.Code != 0 {
			t.Fatal(r)
		}
		node.Eventually(t, 30*time.Second, func() string {
			if out := w.MustHusk("events", "first"); !strings.Contains(out, reason) {
				return out
			}
			return ""
		})
	}
	w.run(asks("first", 50))
	if p := w.pod("first"); p.Containers[0].ID != before.Containers[0].ID || !p.Ready {
		t.Errorf("the pod was resized without enough free memory: %+v", p)
	}
	w.d.Kill()
	w.d = w.Huskd()
	w.MustHusk("rm", "-f", "second")
	after := w.eventually("first", "restarted", func(p listed) bool { return p.Ready && p.Containers[0].Restarts == 1 })
	want := fmt.Sprint(kilobytes / 100 * 50 << 10 &^ (os.Getpagesize() - 1))
	if got := w.cgroupFile("first", after.Containers[0].ID, "memory.limit_in_bytes", "memory.max"); got != want || after.Containers[1].ID != before.Containers[1].ID {
		t.Errorf("the memory limit is %s, want %s: %+v", got, want, after)
	}
	w.remove("first")
	w.end()
}
