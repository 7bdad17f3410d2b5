package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// TestLogRotation checks that a growing log is rotated, compressed and bounded, and that the kept
// part has no gaps, even if huskd is killed meanwhile.
func TestLogRotation(t *testing.T) {
	t.Parallel()
	flags := node.Flags("--log-max-size", "1", "--log-max-files", "3")
	w := newTestEnv(t, flags)
	const burst = 8000
	text := strings.Repeat("x", 150)
	w.run(podOf("talks", "volumes: [{name: h, hostPath: {path: "+w.Dir+"}}], "+only("volumeMounts: [{name: h, mountPath: /h}], command: "+
		shell("i=0; b=1; while :; do end=$((b*"+strconv.Itoa(burst)+")); while [ $i -lt $end ]; do echo $i "+text+"; i=$((i+1)); done; touch /h/said.$b; b=$((b+1)); while [ ! -e /h/say.$b ]; do sleep 0.1; done; done"))), "--wait")
	files := func() (names []string) {
		logs, _ := filepath.Glob(w.Root + "/logs/pods/default_talks_*/c/0.log*")
		for _, path := range logs {
			names = append(names, filepath.Base(path))
		}
		return names
	}
	rotated := func() (n int) { return len(files()) - 1 }
	for b := 1; b <= 4; b++ {
		write(t, w.Node, fmt.Sprintf("say.%d", b), "")
		node.Eventually(t, time.Minute, func() string {
			if _, err := os.Stat(fmt.Sprintf("%s/said.%d", w.Dir, b)); err != nil {
				return "the container is still writing"
			}
			return ""
		})
		node.Eventually(t, time.Minute, func() string {
			log, err := os.Stat(filepath.Join(w.logDir("talks"), "0.log"))
			if err != nil || log.Size() >= 1<<20 || rotated() < min(b, 2) {
				return fmt.Sprintf("the log isn't rotated: its files are %v", files())
			}
			return ""
		})
		if b == 2 {
			w.d.Kill()
			w.d = w.Huskd(flags)
		}
	}
	node.Eventually(t, time.Minute, func() string {
		if names := files(); len(names) != 3 || !strings.HasSuffix(names[1], ".gz") || strings.HasSuffix(names[2], ".gz") {
			return fmt.Sprintf("compression: the log's files are %v", names)
		}
		return ""
	})
	lines := strings.Split(strings.TrimSpace(w.MustHusk("logs", "talks")), "\n")
	for i, line := range lines {
		if want := fmt.Sprintf("%d %s", 4*burst-len(lines)+i, text); line != want {
			t.Fatalf("line %d of %d is %.20q, want %.20q", i, len(lines), line, want)
		}
	}
	if len(lines) < burst {
		t.Errorf("only %d lines are kept", len(lines))
	}
	if tail := strings.Split(strings.TrimSpace(w.MustHusk("logs", "--tail", strconv.Itoa(burst-5), "talks")), "\n"); !slices.Equal(tail, lines[len(lines)-burst+5:]) {
		t.Errorf("the tail has %d lines", len(tail))
	}
	w.remove("talks")
	if names := files(); len(names) > 0 {
		t.Errorf("log files are left: %v", names)
	}
	w.end()
}

// logDir returns the directory of the logs of a pod's container c.
func (w *testEnv) logDir(pod string) string {
	w.t.Helper()
	dirs, _ := filepath.Glob(w.Root + "/logs/pods/default_" + pod + "_*/c")
	if len(dirs) != 1 {
		w.t.Fatalf("pod %s has the log directories %v, want one", pod, dirs)
	}
	return dirs[0]
}

// loadLayers loads, under a name, a variant of the web image with this number of layers. Variants
// with different numbers are different images.
func loadLayers(t testing.TB, n *node.Node, name string, layers int) {
	t.Helper()
	image, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Web, Layers: layers})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := testimage.WriteArchive(&out, testimage.Named{Image: image, Names: []string{name}}); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("image", "load", write(t, n, "layers.tar", out.String()))
}

// TestImageCollection checks that, when the disk is nearly full, images are removed that are not in
// use, not recently used and not pinned.
func TestImageCollection(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	first := n.Huskd()
	for i, name := range []string{"pinned", "unused", "used"} {
		loadLayers(t, n, "localhost/"+name+":1", 2+i)
	}
	first.Stop()
	// With these limits, the disk counts as full.
	w := testEnvOn(t, n, node.Flags("--image-gc-high", "0", "--image-gc-low", "0", "--image-gc-min-age", "3", "--pinned-images", "localhost/pin*:1"))
	w.run(strings.Replace(podOf("web", only("command: [sleep, '1000']")), "localhost/web:1", "localhost/used:1", 1), "--wait")
	left := func() string { return w.MustHusk("image", "ls") }
	node.Eventually(t, time.Minute, func() string {
		if strings.Contains(left(), "localhost/unused") {
			return "the unused image is still present"
		}
		return ""
	})
	for _, name := range []string{"pinned", "used", "web"} {
		if !strings.Contains(left(), "localhost/"+name) {
			t.Errorf("image %s was removed:\n%s", name, left())
		}
	}
	if !strings.Contains(w.d.Log(), "removed an image, as the disk is nearly full") {
		t.Error(w.d.Log())
	}
	w.remove("web")
	node.Eventually(t, time.Minute, func() string {
		if strings.Contains(left(), "localhost/used") {
			return "the image that is no longer used is still present"
		}
		return ""
	})
	w.end()
}

// TestOrphans checks that directories of pods without a record are removed, or that huskd says why
// not.
func TestOrphans(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("web", "volumes: [{name: v, emptyDir: {}}], "+only("volumeMounts: [{name: v, mountPath: /v}], command: [sleep, '1000']")), "--wait")
	w.sh("web", "echo x >/v/f")
	w.d.Stop()
	for _, dir := range []string{"/pods/gone/volumes/v", "/pods/odd/else", "/logs/pods/default_gone_gone/c", "/logs/pods/default_theirs_theirs/c", "/logs/default_former_former/c"} {
		if err := os.MkdirAll(w.Root+dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(w.Root+"/logs/pods/default_gone_gone", w.Root+"/pods/gone/logs"); err != nil {
		t.Fatal(err)
	}
	w.d = w.Huskd()
	for dir, there := range map[string]bool{"/pods/gone": false, "/logs/pods/default_gone_gone": false, "/logs/default_former_former": false, "/logs/pods/default_theirs_theirs": true, "/pods/odd": true} {
		if _, err := os.Stat(w.Root + dir); (err == nil) != there {
			t.Errorf("%s exists: %v, want %v: %v", dir, err == nil, there, err)
		}
	}
	if log := w.d.Log(); strings.Count(log, "orphaned pod directory was removed") != 1 || !strings.Contains(log, "orphaned pod directory was kept") {
		t.Error(log)
	}
	w.awaitFinding(0, "pod directories", `^.*/pods/odd belongs to a pod that has no record, and was kept: .* contains more than volumes`)
	if got := w.sh("web", "cat /v/f"); got != "x" {
		t.Errorf("the volume of the running pod has %q", got)
	}
	for _, dir := range []string{"/pods/odd", "/logs/pods/default_theirs_theirs"} {
		if err := os.RemoveAll(w.Root + dir); err != nil {
			t.Fatal(err)
		}
	}
	w.remove("web")
	w.end()
}

// TestEviction checks that a pod that exceeds its disk limits is evicted and its disk space freed,
// and that it is recreated if its restartPolicy is Always. Other pods are not affected, and killing
// huskd changes nothing.
func TestEviction(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	fill := func(dir string) string {
		return "command: " + shell("trap '' TERM; echo $(hostname) fills; dd if=/dev/zero of="+dir+"/fill bs=1M count=3 2>/dev/null; while :; do sleep 1000 & wait; done")
	}
	volume := "volumes: [{name: v, emptyDir: {sizeLimit: 2Mi}}], "
	w.run(podOf("volume", "restartPolicy: Never, "+volume+only("volumeMounts: [{name: v, mountPath: /v}], "+fill("/v"))))
	w.run(podOf("layer", "restartPolicy: Never, "+only("resources: {limits: {ephemeral-storage: 2Mi}}, "+fill("/tmp"))))
	message := shell("head -c 4000000 /dev/zero >/dev/termination-log; sleep 1000")
	w.run(podOf("message", "restartPolicy: Never, "+only("resources: {limits: {ephemeral-storage: 2Mi}}, command: "+message)))
	w.run(podOf("again", volume+only("volumeMounts: [{name: v, mountPath: /v}], "+fill("/v"))))
	w.run(podOf("modest", strings.ReplaceAll(volume, "2Mi", "9Mi")+only("volumeMounts: [{name: v, mountPath: /v}], "+fill("/v"))), "--wait")
	evicted := func(p listed) bool { return p.Phase == "Failed" && p.Reason == "Evicted" }
	for name, message := range map[string]string{
		"volume": "volume v uses .*, more than the emptyDir's sizeLimit of 2Mi", "again": "volume v uses .*, more than the emptyDir's sizeLimit of 2Mi",
		"layer":   "the pod uses .* of disk space, more than the sum of its containers' ephemeral-storage limits, 2Mi",
		"message": "the pod uses .* of disk space, more than the sum of its containers' ephemeral-storage limits, 2Mi",
	} {
		checkLines(t, name, w.eventually(name, "evicted", evicted).Message, message)
		if out := w.MustHusk("events", name); !strings.Contains(out, "Evicted") {
			t.Error(out)
		}
	}
	w.d.Kill()
	w.d = w.Huskd()
	node.Eventually(t, 30*time.Second, func() string {
		left, _ := filepath.Glob(w.Root + "/pods/*/volumes/v/fill")
		layers, _ := filepath.Glob(w.Root + "/containers/*/upper/tmp/fill")
		if len(left) != 1 || len(layers) != 0 {
			return fmt.Sprintf("files are left: %v %v", left, layers)
		}
		return ""
	})
	if p := w.pod("modest"); !p.Ready || p.Containers[0].Restarts != 0 {
		t.Errorf("the pod within its limits is %+v", p)
	}
	again := func(p listed) bool { return p.Phase == "Running" }
	node.Eventually(t, 3*time.Minute, func() string {
		if p := w.pod("again"); !again(p) {
			return fmt.Sprintf("the pod isn't recreated: %+v", p)
		}
		return ""
	})
	if p := w.pod("volume"); !evicted(p) {
		t.Errorf("the evicted pod is %+v", p)
	}
	w.remove("volume", "layer", "message", "again", "modest")
	w.end()
}
