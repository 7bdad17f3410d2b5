package image

import (
	"fmt"
	"io"
	"io/fs"
	"log"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		crash(dir) // the test binary, started again as a process to be killed
		return
	}
	goleak.VerifyTestMain(m)
}

// testRegistry is an in-memory registry whose handlers can misbehave.
type testRegistry struct {
	*httptest.Server
	host string // host:port, as in image names

	mu     sync.Mutex
	blobs  map[string]int64 // sizes, by digest
	served map[string]int   // number of GETs, by path
}

// handler may answer a request itself, or call next.
type handler func(w http.ResponseWriter, r *http.Request, next http.Handler)

func newRegistry(t testing.TB, handlers ...handler) *testRegistry {
	t.Helper()
	r := &testRegistry{blobs: map[string]int64{}, served: map[string]int{}}
	var h http.Handler = http.HandlerFunc(r.serve(registry.New(registry.Logger(log.New(io.Discard, "", 0)))))
	for _, handle := range handlers {
		next := h
		h = http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) { handle(w, req, next) })
	}
	r.Server = httptest.NewUnstartedServer(h)
	r.Server.Config.ErrorLog = log.New(io.Discard, "", 0)
	r.Server.Start()
	t.Cleanup(r.Server.Close)
	r.host = strings.TrimPrefix(r.URL, "http://")
	return r
}

var blobPath = regexp.MustCompile(`/blobs/(sha256:[0-9a-f]{64})$`)

// serve counts GETs. It adds an end to open ranges, because the in-memory registry
// requires one.
func (r *testRegistry) serve(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodGet {
			r.mu.Lock()
			r.served[req.URL.Path]++
			r.mu.Unlock()
		}
		if m := blobPath.FindStringSubmatch(req.URL.Path); m != nil && strings.HasSuffix(req.Header.Get("Range"), "-") {
			r.mu.Lock()
			req.Header.Set("Range", fmt.Sprint(req.Header.Get("Range"), r.blobs[m[1]]-1))
			r.mu.Unlock()
		}
		next.ServeHTTP(w, req)
	}
}

// gets returns the number of GETs whose path contains part.
func (r *testRegistry) gets(part string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for path, times := range r.served {
		if strings.Contains(path, part) {
			n += times
		}
	}
	return n
}

// push stores an image under repository:tag and returns its full name. Pushes don't
// go through the misbehaving handlers.
func (r *testRegistry) push(t testing.TB, repository, tag string, img *testimage.Image) string {
	t.Helper()
	if err := r.pushTo().Push(t.Context(), repository, tag, img); err != nil {
		t.Fatal(err)
	}
	r.remember(img)
	return r.host + "/" + repository + ":" + tag
}

func (r *testRegistry) pushTo() testimage.Registry {
	return testimage.Registry{URL: r.URL, Client: &http.Client{Transport: inside{r.Config.Handler}}}
}

// remember records the sizes of the images' blobs.
func (r *testRegistry) remember(images ...*testimage.Image) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, img := range images {
		for d, blob := range img.Blobs() {
			r.blobs[d.String()] = int64(len(blob))
		}
	}
}

// inside is a transport that calls a handler directly and marks the request as a push.
type inside struct{ http.Handler }

func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	r.Header.Set("Inside", "yes")
	i.ServeHTTP(w, r)
	resp := w.Result()
	resp.Request = r
	return resp, nil
}

// onBlobs returns a handler that calls do for downloads of blobs.
func onBlobs(do func(w http.ResponseWriter, r *http.Request, next http.Handler)) handler {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodGet && blobPath.MatchString(r.URL.Path) && r.Header.Get("Inside") == "" {
			do(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

// cut closes the connection after n bytes of the body, with a reset or orderly.
func cut(w http.ResponseWriter, r *http.Request, next http.Handler, n int, reset bool) {
	next.ServeHTTP(&cutWriter{ResponseWriter: w, left: n, reset: reset}, r)
}

type cutWriter struct {
	http.ResponseWriter
	left  int
	reset bool
}

func (c *cutWriter) Write(p []byte) (int, error) {
	if len(p) <= c.left {
		c.left -= len(p)
		return c.ResponseWriter.Write(p)
	}
	_, _ = c.ResponseWriter.Write(p[:c.left])
	flusher := http.NewResponseController(c.ResponseWriter)
	_ = flusher.Flush()
	if c.reset {
		if conn, _, err := flusher.Hijack(); err == nil {
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
		}
	}
	panic(http.ErrAbortHandler)
}

func openStore(t testing.TB, root string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Config{Root: root, CertsDir: root + "-certs", Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func newStore(t testing.TB) *Store {
	t.Helper()
	return openStore(t, filepath.Join(t.TempDir(), "images"))
}

var here = ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}

// makeImage returns an image whose layers hold size random bytes each. The same seed
// gives the same image.
func makeImage(t testing.TB, seed uint64, layers, size int) *testimage.Image {
	t.Helper()
	var list []testimage.Layer
	for i := range layers {
		list = append(list, makeLayer(t, testimage.Gzip, seed+uint64(i)<<32, size))
	}
	return assemble(t, list...)
}

func makeLayer(t testing.TB, c testimage.Compression, seed uint64, size int) testimage.Layer {
	t.Helper()
	body := make([]byte, size)
	random := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 32), byte(seed >> 40)})
	_, _ = random.Read(body)
	layer, err := testimage.NewLayer(c, testimage.Dir("data", 0o755), testimage.File(fmt.Sprintf("data/%x", seed), 0o644, body))
	if err != nil {
		t.Fatal(err)
	}
	return layer
}

func assemble(t testing.TB, layers ...testimage.Layer) *testimage.Image {
	t.Helper()
	img, err := testimage.New(here, ocispec.ImageConfig{Cmd: []string{"/bin/true"}, Env: []string{"A=b"}}, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func mustPull(t testing.TB, s *Store, ref string) Image {
	t.Helper()
	img, err := s.Pull(t.Context(), ref, PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// disk lists the blobs, the partial downloads and the layers on disk.
func disk(t testing.TB, s *Store) []string {
	t.Helper()
	var list []string
	for pattern, kind := range map[string]string{"content/blobs/*/*": "blob", "content/ingest/*": "ingest", "layers/snapshots/*": "layer"} {
		paths, err := filepath.Glob(filepath.Join(s.root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			list = append(list, kind+" "+filepath.Base(path))
		}
	}
	slices.Sort(list)
	return list
}

// wantDisk fails if the disk doesn't hold exactly want.
func wantDisk(t testing.TB, s *Store, want []string) {
	t.Helper()
	if got := disk(t, s); !slices.Equal(got, want) {
		t.Errorf("on disk:\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// wantFiles fails if a layer of an image has no content on disk.
func wantFiles(t testing.TB, s *Store, img *testimage.Image) {
	t.Helper()
	lower, err := s.Rootfs(img.ID())
	if err != nil {
		t.Fatal(err)
	}
	if len(lower) != max(len(img.Layers), 1) {
		t.Fatalf("%d lower directories for %d layers", len(lower), len(img.Layers))
	}
	for i := range img.Layers {
		var size int64
		err := filepath.WalkDir(lower[len(lower)-1-i], func(_ string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				info, _ := d.Info()
				size += info.Size()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		if size == 0 {
			t.Errorf("layer %d of %s is empty on disk", i, img.ID())
		}
	}
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// wantError fails unless err is one line that contains all of words.
func wantError(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	t.Log(err)
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("more than one line: %q", err)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q doesn't say %q", err, word)
		}
	}
}
