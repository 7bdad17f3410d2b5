package testimage

import (
	"bytes"
	"errors"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image/layer"
	"github.com/huskd/husk/internal/image/rootfs"
)

func build(t testing.TB, spec Spec) *Image {
	t.Helper()
	img, err := Build(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// mount returns the path of the image's root filesystem.
func mount(t testing.TB, img *Image) string {
	t.Helper()
	var lower []string
	for _, l := range img.Layers {
		dir := t.TempDir()
		implied, err := layer.Extract(t.Context(), bytes.NewReader(l.Blob), l.DiffID, dir)
		if err == nil {
			err = implied.Inherit(dir, lower)
		}
		if err != nil {
			t.Fatal(err)
		}
		lower = slices.Insert(lower, 0, dir)
	}
	dir := t.TempDir()
	root, err := rootfs.Mount(rootfs.Spec{Dir: dir, Lower: lower})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rootfs.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return root
}

func TestFlavours(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for flavour, want := range map[Flavour]string{Busybox: "root\n", Users: "root\nwww-data\nalice\n", Web: "root\nwww-data\nalice\n"} {
		t.Run(string(flavour), func(t *testing.T) {
			t.Parallel()
			root := mount(t, build(t, Spec{Flavour: flavour, Layers: 3}))
			out, err := exec.Command("chroot", root, "/bin/sh", "-c", "cut -d: -f1 /etc/passwd; stat -c %a /tmp; cat /layer/3; ls -d /proc /sys /dev").CombinedOutput()
			if err != nil || string(out) != want+"1777\n3\n/dev\n/proc\n/sys\n" {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
}

// TestWebAnswers sends a request to the web server, over a connection that the test hands it as
// inetd would.
func TestWebAnswers(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	root := mount(t, build(t, Spec{Flavour: Web}))
	for dir, kind := range map[string]string{"proc": "proc"} {
		target := filepath.Join(root, dir)
		if err := syscall.Mount(kind, target, kind, 0, ""); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := syscall.Unmount(target, 0); err != nil {
				t.Error(err)
			}
		}()
	}
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(pair[0]), "client"), os.NewFile(uintptr(pair[1]), "server")
	defer ours.Close()
	cmd := exec.Command("chroot", root, "/bin/httpd", "-i", "-h", "/www")
	cmd.Stdin, cmd.Stdout = theirs, theirs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	if _, err := ours.WriteString("GET / HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	var answer bytes.Buffer
	if _, err := answer.ReadFrom(ours); err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its status says nothing
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	head, body, _ := strings.Cut(answer.String(), "\r\n\r\n")
	if !strings.HasPrefix(head, "HTTP/1.0 200 OK") && !strings.HasPrefix(head, "HTTP/1.1 200 OK") || !strings.HasPrefix(body, host) || strings.Count(body, "\n") != 1 {
		t.Errorf("the answer is %q, want 200 and one line that begins with %s", answer.String(), host)
	}
	t.Logf("%s", body)
}

// TestSameInputSameImage: equal specs yield equal images.
func TestSameInputSameImage(t *testing.T) {
	t.Parallel()
	seen := map[string]Spec{}
	for _, spec := range []Spec{
		{}, {Flavour: Web, Compression: Uncompressed}, {Layers: 3, Compression: Zstd},
		{Compression: Uncompressed, Config: ocispec.ImageConfig{User: "alice"}},
	} {
		one, two := build(t, spec), build(t, spec)
		if one.Descriptor.Digest != two.Descriptor.Digest {
			t.Errorf("%+v: %s and %s", spec, one.Descriptor.Digest, two.Descriptor.Digest)
		}
		if other, ok := seen[one.Descriptor.Digest.String()]; ok {
			t.Errorf("%+v makes the image of %+v", spec, other)
		}
		seen[one.Descriptor.Digest.String()] = spec
		if len(one.Layers) != max(spec.Layers, 1) {
			t.Errorf("%+v: %d layers", spec, len(one.Layers))
		}
		var a, b bytes.Buffer
		if err := WriteArchive(&a, Named{one, []string{"localhost/x:1"}}); err != nil {
			t.Fatal(err)
		}
		if err := WriteArchive(&b, Named{two, []string{"localhost/x:1"}}); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%+v: the archives differ", spec)
		}
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	img := build(t, Spec{Flavour: Web, Config: ocispec.ImageConfig{
		Entrypoint: []string{"/bin/echo"}, Env: []string{"A=b"}, User: "alice", WorkingDir: "/tmp", StopSignal: "SIGINT",
	}})
	for _, want := range []string{`"Entrypoint":["/bin/echo"]`, `"A=b"`, `"PATH=`, `"User":"alice"`, `"WorkingDir":"/tmp"`, `"StopSignal":"SIGINT"`} {
		if !bytes.Contains(img.Config, []byte(want)) {
			t.Errorf("no %s in %s", want, img.Config)
		}
	}
	if bytes.Contains(img.Config, []byte(`"Cmd"`)) {
		t.Errorf("a new entry point keeps the old command: %s", img.Config)
	}
}

// TestDownload fills an empty cache from several goroutines at once.
func TestDownload(t *testing.T) {
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	var wg sync.WaitGroup
	var mu sync.Mutex
	dirs := map[string]int{}
	for range 4 {
		wg.Go(func() {
			dir, err := extracted(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			dirs[dir]++
		})
	}
	wg.Wait()
	if len(dirs) != 1 {
		t.Errorf("directories %v, want one", dirs)
	}
	left, err := os.ReadDir(filepath.Join(cache, "husk-testimage"))
	if err != nil || len(left) != 2 { // the packages and the lock
		t.Errorf("in the cache: %v %v", left, err)
	}
}

func TestPush(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	to := Registry{URL: server.URL}
	img := build(t, Spec{Layers: 2})
	if err := to.Push(t.Context(), "team/web", "v1", img); err != nil {
		t.Error(err)
	}
	if _, err := to.PushIndex(t.Context(), "team/web", "multi", img); err != nil {
		t.Error(err)
	}
	broken := *img
	broken.Layers = slices.Clone(img.Layers)
	broken.Layers[0].Blob = []byte("x")
	if err := to.Push(t.Context(), "team/web", "v2", &broken); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("a broken layer: %v", err)
	}
}
