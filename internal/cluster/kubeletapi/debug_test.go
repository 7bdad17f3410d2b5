package kubeletapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/agent"
	"github.com/huskd/husk/internal/container"
	"github.com/huskd/husk/internal/container/containerstate"
)

// unprotected returns the handler of s without authorization.
func unprotected(s *Server) http.Handler {
	s.health = newHealth(func() {}, noError)
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		for path := range strings.FieldsSeq(r.paths) {
			for _, method := range strings.Split(r.methods, " ") {
				if r.handler != nil {
					mux.Handle(strings.TrimSpace(method+" "+path), r.handler)
				}
			}
		}
	}
	return mux
}

func noError() error { return nil }

func TestHealth(t *testing.T) {
	t.Parallel()
	h := newHealth(func() {}, noError)
	get := func(path string) string {
		w := ask(h.handler(), "GET", path, "")
		return fmt.Sprint(w.Code, " ", w.Body)
	}
	for path, want := range map[string]string{
		"/healthz": "200 ok", "/healthz/ping": "200 ok", "/healthz/log": "200 ok", "/healthz/syncloop": "200 ok",
		"/healthz/other": "404 404 page not found\n", "/pods": "404 404 page not found\n",
		"/healthz?verbose": "200 [+]ping ok\n[+]log ok\n[+]syncloop ok\nhealthz check passed\n",
	} {
		if got := get(path); got != want {
			t.Errorf("%s: %q", path, got)
		}
	}
	h.checks[2].run = func() error { return errors.New("a secret") }
	if got := get("/healthz"); got != "500 [+]ping ok\n[+]log ok\n[-]syncloop failed: reason withheld\nhealthz check failed\n" {
		t.Errorf("%q", got)
	}
	w := httptest.NewRecorder()
	h.serveSLIs(w, httptest.NewRequest(http.MethodGet, "/metrics/slis", nil))
	for _, line := range []string{
		`kubernetes_healthcheck{name="ping",type="healthz"} 1`, `kubernetes_healthcheck{name="syncloop",type="healthz"} 0`,
		`kubernetes_healthchecks_total{name="syncloop",status="error",type="healthz"} 1`, `kubernetes_healthchecks_total{name="ping",status="success",type="healthz"} 4`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("no line %s in\n%s", line, w.Body)
		}
	}
}

// TestLogFiles: files of the directory are served, and nothing outside of it, whatever links there
// are.
func TestLogFiles(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	dir := filepath.Join(root, "log")
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(os.MkdirAll(filepath.Join(dir, "pods"), 0o755), os.WriteFile(filepath.Join(dir, "syslog"), []byte("line\n"), 0o600),
		os.WriteFile(filepath.Join(dir, "pods", "0.log"), []byte("pod\n"), 0o600), os.WriteFile(filepath.Join(root, "secret"), []byte("secret"), 0o600),
		os.Symlink("../secret", filepath.Join(dir, "out")), os.Symlink("/etc/passwd", filepath.Join(dir, "absolute")), os.Symlink("..", filepath.Join(dir, "up")),
		os.Symlink("pods/0.log", filepath.Join(dir, "in")), unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	h := unprotected(&Server{Config: Config{HostLogs: dir}})
	for path, want := range map[string]string{
		"/logs/syslog": "200 line\n", "/logs/pods/0.log": "200 pod\n", "/logs/in": "200 pod\n", "/logs/none": "404 ",
		"/logs/out": "500 ", "/logs/absolute": "500 ", "/logs/up/secret": "500 ", "/logs/fifo": "403 ", "/logs/..%2fsecret": "404 ", "/logs/pods/": "200 <",
	} {
		w := ask(h, "GET", path, "")
		if got := fmt.Sprint(w.Code, " ", w.Body); !strings.HasPrefix(got, want) || strings.Contains(got, "secret") && path != "/logs/up/secret" {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if w := ask(h, "GET", "/logs/", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `<a href="syslog">`) {
		t.Errorf("the list: %d %s", w.Code, w.Body)
	}
}

func TestPagesAboutHuskd(t *testing.T) {
	t.Parallel()
	level := &slog.LevelVar{}
	s := &Server{started: time.Now(), Config: Config{Log: slog.New(slog.DiscardHandler), Debug: Debug{
		Configuration: map[string]any{"clusterDomain": "cluster.local"}, Flags: map[string]string{"root": "/r", "listen": "l"}, Level: level,
	}}}
	h := unprotected(s)
	for path, want := range map[string]string{
		"/configz":      `^{"kubeletconfig":{"clusterDomain":"cluster.local"}}\n$`,
		"/flagz":        `(?s)^\nhuskd flagz\nWarning: .*\n\nlisten=l\nroot=/r\n$`,
		"/statusz":      `(?s)^\nhuskd statusz\nWarning: .*\n\nStarted: .*\nUp: 0s\nGo version: go.*\nBinary version: .*\n\nPaths: /healthz /pods .*/debug/flags/v\n$`,
		"/debug/pprof/": `(?s)goroutine`, "/debug/pprof/cmdline": `test`, "/debug/pprof/heap?debug=1": `^heap profile`,
	} {
		if w := ask(h, "GET", path, ""); w.Code != 200 || !regexp.MustCompile(want).MatchString(w.Body.String()) {
			t.Errorf("%s: %d\n%s", path, w.Code, w.Body)
		}
	}
	put := func(body string) int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/debug/flags/v", strings.NewReader(body)))
		return w.Code
	}
	if put("4\n") != 200 || level.Level() != slog.LevelDebug || put("2") != 200 || level.Level() != slog.LevelInfo {
		t.Errorf("the level is %v", level)
	}
	for _, body := range []string{"", "debug", "-1", strings.Repeat("1", 100)} {
		if got := put(body); got != 400 {
			t.Errorf("%.20q: %d", body, got)
		}
	}
}

func TestCheckpoint(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "checkpoints")
	spec := corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, {Name: "waiting"}}}
	run := container.Status{ID: "id", Started: time.Now(), State: containerstate.Running, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Image: &runtimeapi.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "web"},
	}}
	pod := agent.Pod{
		Manifest: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: spec}, Source: "api:x", Containers: []container.Status{run},
	}
	var asked string
	failure := error(nil)
	h := unprotected(&Server{Config: Config{
		Node: "here", Checkpoints: dir, Pods: func() []agent.Pod { return []agent.Pod{pod} },
		Checkpoint: func(_ context.Context, id, path string, timeout time.Duration) error {
			asked = fmt.Sprint(id, " ", path, " ", timeout)
			return failure
		},
	}})
	w := ask(h, "POST", "/checkpoint/ns/p/c?timeout=3", "")
	var got struct{ Items []string }
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil || w.Code != 200 || len(got.Items) != 1 {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	if path := got.Items[0]; !regexp.MustCompile(`^checkpoint-p_ns-c-[0-9T:Z+-]+\.tar$`).MatchString(filepath.Base(path)) || asked != "id "+path+" 3s" || filepath.Dir(path) != dir {
		t.Errorf("%s, %s", path, asked)
	}
	failure = errors.New("no criu")
	for path, want := range map[string]int{
		"/checkpoint/ns/p/c": 500, "/checkpoint/ns/p/waiting": 500, "/checkpoint/ns/p/none": 404, "/checkpoint/other/p/c": 404, "/checkpoint/ns/p/c?timeout=x": 404,
	} {
		if w := ask(h, "POST", path, ""); w.Code != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	if w := ask(h, "GET", "/runningpods/", ""); w.Code != 200 || !strings.Contains(w.Body.String(), `"metadata":{"name":"p","namespace":"ns","uid":"u"},"spec":{"containers":[{"name":"c","image":"web"`) {
		t.Errorf("%s", w.Body)
	}
}
