package source

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/manifest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: localhost/x}]}\n"

// directoryTest watches a directory and records the deliveries and the log.
type directoryTest struct {
	t   *testing.T
	dir string
	mu  sync.Mutex
	set []string // names of pods
	// unread has the unread files of the last delivery.
	unread []string
	// policies are the names of policies, and hidden the unread files that may have some.
	policies, hidden []string
	seq              int
	log              bytes.Buffer
	refused          []string
	d                *Directory
}

func (w *directoryTest) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(p)
}

// note logs an object without effect, as a line of the log.
func (w *directoryTest) note(location string, unused manifest.Unused) {
	_, _ = fmt.Fprintf(w, "%s: %v\n", location, unused)
}

func (w *directoryTest) refuse(reason string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.refused = append(w.refused, reason)
}

func watch(t *testing.T, dir string) *directoryTest {
	w := &directoryTest{t: t, dir: dir}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	d := &Directory{Path: dir, Node: "node", Log: slog.New(slog.NewTextHandler(w, nil)), Policies: true, Note: w.note, Refused: w.refuse, Deliver: func(set Set) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.seq++
		w.set, w.unread, w.hidden = nil, nil, nil
		w.policies = slices.Sorted(maps.Keys(set.Policies))
		for _, path := range set.UnreadPolicies {
			w.hidden = append(w.hidden, filepath.Base(path))
		}
		for _, p := range set.Pods {
			w.set = append(w.set, p.Name)
		}
		for _, path := range set.Unread {
			w.unread = append(w.unread, filepath.Base(path))
		}
	}}
	w.d = d
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return w
}

func (w *directoryTest) eventually(what string, ok func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(15 * time.Second); ; time.Sleep(2 * time.Millisecond) {
		w.mu.Lock()
		good := ok()
		state := fmt.Sprintf("set %v (%d), log:\n%s", w.set, w.seq, w.log.String())
		w.mu.Unlock()
		if good {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("timeout waiting for %s; %s", what, state)
		}
	}
}

func (w *directoryTest) expect(names ...string) {
	w.t.Helper()
	w.eventually(fmt.Sprint(names), func() bool { return w.seq > 0 && slices.Equal(w.set, names) })
}

func (w *directoryTest) expectLog(text string) {
	w.t.Helper()
	w.eventually("log says "+text, func() bool { return strings.Contains(w.log.String(), text) })
}

func (w *directoryTest) write(name, content string) {
	w.t.Helper()
	if err := os.WriteFile(filepath.Join(w.dir, name), []byte(content), 0o600); err != nil {
		w.t.Fatal(err)
	}
}

func TestDeliversInitialSetAndChanges(t *testing.T) {
	w := watch(t, t.TempDir())
	w.expect()
	w.write("b.yaml", fmt.Sprintf(pod, "b"))
	w.expect("b")
	w.write("a.yaml", fmt.Sprintf(pod, "a1")+"---\n"+fmt.Sprintf(pod, "a2"))
	w.expect("a1", "a2", "b")
	w.write("web.yaml~", fmt.Sprintf(pod, "editor"))
	w.write("notes", fmt.Sprintf(pod, "notes"))
	w.write("d.json", `{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "d"}, "spec": {"containers": [{"name": "c", "image": "localhost/x"}]}}`)
	w.write(".hidden.yaml", fmt.Sprintf(pod, "hidden"))
	w.write(".tmp", fmt.Sprintf(pod, "c"))
	if err := os.Rename(filepath.Join(w.dir, ".tmp"), filepath.Join(w.dir, "c.yml")); err != nil {
		t.Fatal(err)
	}
	w.expect("a1", "a2", "b", "c", "d")
	w.eventually("what is ignored", func() bool {
		r := w.d.Report()
		return len(r.Problems) == 0 && slices.Equal(r.Ignored, []string{"notes", "web.yaml~"})
	})
	if err := os.Remove(filepath.Join(w.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	w.expect("b", "c", "d")
}

// TestPolicies checks that policies are delivered, that a mistake keeps the last ones, and that a
// file that can't be read is only said to have policies if it may.
func TestPolicies(t *testing.T) {
	const policies = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s}\nspec: {policyTypes: [%s]}\n"
	dir := t.TempDir()
	w := &directoryTest{t: t, dir: dir}
	w.write("a.yaml", fmt.Sprintf(policies, "a", "Ingress"))
	w.write("b.yaml", fmt.Sprintf(policies, "a", "Egress")+"---\n"+fmt.Sprintf(policies, "b", "Egress"))
	w.write("c.yaml", fmt.Sprintf(policies, "c", "Both"))
	w.write("d.yaml", "kind: Pod")
	w = watch(t, dir)
	want := func(names, hidden string) {
		t.Helper()
		w.eventually("policies "+names, func() bool { return fmt.Sprint(w.policies) == names && fmt.Sprint(w.hidden) == hidden })
	}
	want("[NetworkPolicy default/a NetworkPolicy default/b]", "[c.yaml]")
	w.expectLog("NetworkPolicy default/a is already declared in " + filepath.Join(dir, "a.yaml"))
	w.expectLog(`c.yaml:4: NetworkPolicy default/c: spec.policyTypes[0]: \"Both\" is unknown: use Ingress or Egress`)
	w.write("c.yaml", fmt.Sprintf(policies, "c", "Egress"))
	want("[NetworkPolicy default/a NetworkPolicy default/b NetworkPolicy default/c]", "[]")
	w.write("a.yaml", fmt.Sprintf(policies, "a", "Both"))
	w.write("d.yaml", fmt.Sprintf(policies, "d", "Egress"))
	want("[NetworkPolicy default/a NetworkPolicy default/b NetworkPolicy default/c NetworkPolicy default/d]", "[]")
}

func TestUnused(t *testing.T) {
	w := watch(t, t.TempDir())
	w.write("web.yaml", "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: web, namespace: shop}\n---\n"+fmt.Sprintf(pod, "web"))
	w.expect("web")
	w.expectLog("web.yaml: line 1: ServiceAccount shop/web has no effect: there are no service accounts without an API server")
}

func TestFaultRemovesNothing(t *testing.T) {
	w := watch(t, t.TempDir())
	w.write("web.yaml", fmt.Sprintf(pod, "web"))
	w.expect("web")
	w.write("web.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: web")
	w.expectLog("its running pods are kept")
	w.write("other.yaml", fmt.Sprintf(pod, "other"))
	w.expect("other", "web")
	if err := os.Rename(w.dir, w.dir+".away"); err != nil {
		t.Fatal(err)
	}
	w.expectLog("the pods from it are kept")
	w.expect("other", "web")
	if err := os.Rename(w.dir+".away", w.dir); err != nil {
		t.Fatal(err)
	}
	w.write("web.yaml", fmt.Sprintf(pod, "web2"))
	w.expect("other", "web2") // the resync finds the directory again
}

func TestUnreadableFilesAreReported(t *testing.T) {
	w := watch(t, t.TempDir())
	if err := os.Mkdir(filepath.Join(w.dir, "dir.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(w.dir, "fifo.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("loop.yaml", filepath.Join(w.dir, "loop.yaml")); err != nil {
		t.Fatal(err)
	}
	w.write("big.yaml", strings.Repeat("#", maxFile+1))
	w.write("a.yaml", fmt.Sprintf(pod, "web"))
	w.write("b.yaml", fmt.Sprintf(pod, "web"))
	w.expectLog("dir.yaml: is not a regular file")
	w.expectLog("fifo.yaml: is not a regular file")
	w.expectLog("loop.yaml: too many levels")
	w.expectLog("big.yaml: is larger than 10 MiB")
	w.expectLog("pod default/web is already declared in " + filepath.Join(w.dir, "a.yaml"))
	w.expect("web")
	w.eventually("the unread files", func() bool { return slices.Equal(w.unread, []string{"big.yaml", "dir.yaml", "fifo.yaml", "loop.yaml"}) })
	w.eventually("the report", func() bool {
		var files []string
		for _, problem := range w.d.Report().Problems {
			file, _, _ := strings.Cut(filepath.Base(strings.TrimPrefix(problem, "stat ")), ":")
			files = append(files, file)
		}
		return slices.Equal(files, []string{"big.yaml", "dir.yaml", "fifo.yaml", "loop.yaml", "a.yaml"}) && len(w.refused) >= 5
	})
	// What is cured or removed is no longer reported.
	for _, name := range []string{"big.yaml", "dir.yaml", "loop.yaml", "b.yaml"} {
		if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("the report without what was removed", func() bool {
		problems := w.d.Report().Problems
		return len(problems) == 1 && strings.Contains(problems[0], "fifo.yaml: is not a regular file")
	})
}
