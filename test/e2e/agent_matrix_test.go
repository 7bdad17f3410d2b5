package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
)

// manifestServer serves manifests, or garbage while broken is set.
type manifestServer struct {
	mu     sync.Mutex
	pods   map[string]string // versions by name
	broken bool
}

func (s *manifestServer) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken {
		fmt.Fprint(w, "<html>")
		return
	}
	fmt.Fprint(w, "{apiVersion: v1, kind: List, items: []}\n")
	for name, version := range s.pods {
		fmt.Fprint(w, "---\n", versioned(name, version))
	}
}

func versioned(name, version string) string {
	pod := podOf(name, only("command: "+shell("trap 'exit 0' TERM; sleep 1000 & wait")))
	return strings.Replace(pod, "metadata: {", "metadata: {labels: {v: '"+version+"'}, ", 1)
}

// TestManifestSources adds, changes, breaks and removes pods at random, in files, at a URL and with
// husk run, and kills huskd meanwhile. In the end, exactly the declared pods must run.
func TestManifestSources(t *testing.T) {
	t.Parallel()
	const steps, look = 300, 60
	n := node.New(t)
	var listener net.Listener
	if err := netns.Do(n.Net(), func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	web := &manifestServer{pods: map[string]string{}}
	server := &http.Server{Handler: web, ReadHeaderTimeout: time.Minute}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	dir := filepath.Join(n.Dir, "manifests")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	flags := node.Flags("--manifests", dir, "--manifest-url", "http://"+listener.Addr().String()+"/", "--manifest-url-interval", "1")
	w := testEnvOn(t, n, flags)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	files, ran := map[string]string{}, map[string]string{}
	path := func(name string) string { return filepath.Join(dir, name+".yaml") }
	must := func(err error) {
		t.Helper()
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	step := func(i int) {
		version := fmt.Sprint(random.IntN(3))
		file, page, run := fmt.Sprintf("f%d", random.IntN(4)), fmt.Sprintf("u%d", random.IntN(2)), fmt.Sprintf("r%d", random.IntN(2))
		switch what := random.IntN(100); {
		case what < 35:
			// An earlier pod of the name, which still ends, has another version, as huskd mustn't be
			// thought to have read this one.
			if version = files[file]; version == "" || random.IntN(3) > 0 {
				version = fmt.Sprint(i)
			}
			must(os.WriteFile(path(file)+".new", nil, 0o600)) // an editor's temporary file, still empty
			must(os.WriteFile(path(file), []byte(versioned(file, version)), 0o600))
			must(os.Remove(path(file) + ".new"))
			files[file] = version
		case what < 50:
			must(os.Remove(path(file)))
			delete(files, file)
		case what < 60 && files[file] != "":
			// Wait until huskd has read the last good version, which it must keep.
			node.Eventually(t, time.Minute, func() string { return w.mismatch(map[string]string{file: files[file]}, false) })
			must(os.WriteFile(path(file), []byte("kind: ["), 0o600))
		case what < 75:
			web.mu.Lock()
			web.pods[page] = version
			if random.IntN(3) == 0 {
				delete(web.pods, page)
			}
			web.broken = random.IntN(4) == 0
			web.mu.Unlock()
		case what < 85 && ran[run] == "":
			w.MustHusk("run", write(t, n, "run.yaml", versioned(run, version)))
			ran[run] = version
		case what < 95 && ran[run] != "":
			w.MustHusk("rm", "-f", run)
			delete(ran, run)
		case what >= 97:
			w.d.Kill()
			w.d = w.Huskd(flags)
		}
	}
	converge := func() {
		t.Helper()
		web.mu.Lock()
		web.broken = false
		want := map[string]string{"other": ""}
		for _, declared := range []map[string]string{files, web.pods, ran} {
			for name, version := range declared {
				want[name] = version
			}
		}
		web.mu.Unlock()
		node.Eventually(t, 2*time.Minute, func() string { return w.mismatch(want, true) })
	}
	for i := range steps {
		step(i)
		if i%look == look-1 {
			converge()
		}
	}
	entries, _ := filepath.Glob(dir + "/*")
	for _, entry := range entries {
		must(os.Remove(entry))
	}
	web.mu.Lock()
	web.pods = nil
	web.mu.Unlock()
	clear(files)
	for name := range ran {
		w.MustHusk("rm", "-f", name)
		delete(ran, name)
	}
	converge()
	w.checkUnharmed("all changes")
	w.end()
}

// mismatch describes the first pod that differs from want, the versions by name, or returns "". If
// all is set, pods that aren't in want count too.
func (w *testEnv) mismatch(want map[string]string, all bool) string {
	w.t.Helper()
	var pods []listed
	if err := json.Unmarshal([]byte(w.MustHusk("ps", "-a", "-o", "json")), &pods); err != nil {
		w.t.Fatal(err)
	}
	there := map[string]string{}
	for _, p := range pods {
		version := ""
		if p.Name != "other" {
			var about struct {
				Manifest struct {
					Metadata struct{ Labels map[string]string }
				}
			}
			r := w.Husk("inspect", p.Name)
			if err := json.Unmarshal([]byte(r.Stdout), &about); err != nil {
				return p.Name + " has just been removed"
			}
			version = about.Manifest.Metadata.Labels["v"]
		}
		there[p.Name] = version
		if _, wanted := want[p.Name]; all && !wanted {
			return p.Name + " is still there"
		} else if wanted && !p.Ready {
			return fmt.Sprintf("%s is %s", p.Name, p.Status)
		}
	}
	var names []string
	for name := range want {
		names = append(names, name)
	}
	sort.Strings(names)
	for _, name := range names {
		if got, ok := there[name]; !ok || got != want[name] {
			return fmt.Sprintf("%s has version %q, want %q; there are %v", name, got, want[name], there)
		}
	}
	return ""
}
