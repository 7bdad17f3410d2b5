package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// tagForm is how fluent-bit's Kubernetes filter reads the pod, the namespace, the container and its
// ID from the name of a file.
var tagForm = regexp.MustCompile(`^([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)_([^_]+)_(.+)-([a-z0-9]{64})\.log$`)

// lineForm is its CRI parser.
var lineForm = regexp.MustCompile(`^([^ ]+) (stdout|stderr) ([^ ]*) (.*)$`)

// TestLogCollectors reads the logs of pods as log collectors do, through the links beside the
// configured directory: during the pod's life and after a crash of huskd.
func TestLogCollectors(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	log := filepath.Join(n.Dir, "log")
	links := filepath.Join(log, "containers")
	flags := node.Flags("--pod-logs-dir", filepath.Join(log, "pods"), "--manifests", n.Dir+"/manifests")
	if err := os.MkdirAll(n.Dir+"/manifests", 0o755); err != nil {
		t.Fatal(err)
	}
	w := testEnvOn(t, n, flags)
	const says = `command: [sh, -c, "echo hello; echo oops >&2; sleep 1000"]`
	w.run(podOf("web", "initContainers: [{name: init, image: 'localhost/web:1', command: [echo, first]}], "+only(says)), "--wait")
	write(t, n, "manifests/declared.yaml", podOf("declared", only(says)))

	glob := func(pattern string) []string {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		return paths
	}
	// collect returns the lines of all logs, by pod and container.
	collect := func() map[string]string {
		out := map[string]string{}
		for _, path := range glob(links + "/*.log") {
			tag := tagForm.FindStringSubmatch(filepath.Base(path))
			if tag == nil {
				t.Fatalf("%s has not the form that collectors know", path)
			}
			target, err := os.Readlink(path)
			if err != nil || !regexp.MustCompile(`^`+regexp.QuoteMeta(log)+`/pods/`+tag[2]+`_`+tag[1]+`_[-0-9a-f]+/`+tag[3]+`/\d+\.log$`).MatchString(target) {
				t.Fatalf("%s leads to %s: %v", path, target, err)
			}
			content, err := os.ReadFile(path)
			if err != nil {
				continue // not written yet
			}
			for line := range strings.Lines(string(content)) {
				fields := lineForm.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
				if fields == nil {
					t.Fatalf("%s has the line %q", path, line)
				}
				out[tag[2]+"/"+tag[1]+"/"+tag[3]] += fields[2] + " " + fields[4] + ";"
			}
		}
		return out
	}
	await := func(want map[string]string) {
		t.Helper()
		node.Eventually(t, time.Minute, func() string {
			got := collect()
			for key, lines := range want {
				if got[key] != lines {
					return fmt.Sprintf("the collected logs are %q", got)
				}
			}
			return ""
		})
	}
	const said = "stdout hello;stderr oops;"
	await(map[string]string{"default/web/init": "stdout first;", "default/web/c": said, "default/declared/c": said})
	if got := n.MustHusk("logs", "declared"); got != "hello\n" {
		t.Errorf("husk logs: %q", got)
	}

	// A crash between a container's creation and its link, and one between its removal and its
	// link's: both are repaired at the start.
	w.d.Kill()
	for _, path := range glob(links + "/web_default_c-*.log") {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	dead := filepath.Join(links, "gone_default_c-"+strings.Repeat("0", 64)+".log")
	if err := os.Symlink(filepath.Join(log, "pods", "default_gone_1", "c", "0.log"), dead); err != nil {
		t.Fatal(err)
	}
	w.d = w.Huskd(flags)
	await(map[string]string{"default/web/c": said})
	if _, err := os.Lstat(dead); err == nil {
		t.Error("a link of a pod that is gone was left")
	}

	if err := os.Remove(n.Dir + "/manifests/declared.yaml"); err != nil {
		t.Fatal(err)
	}
	w.remove("web")
	w.end()
	if left := append(glob(links+"/*"), glob(log+"/pods/*")...); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
