package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/testimage"
)

// TestPullBadLayer checks that a pull with a bad layer fails with one clear line that
// names layer and image, and stores nothing.
func TestPullBadLayer(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	bad := func(l testimage.Layer, err error) testimage.Layer {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	pack := func(plain []byte) testimage.Layer { return bad(testimage.PackLayer(testimage.Gzip, plain)) }
	entries := func(e ...testimage.Entry) testimage.Layer { return bad(testimage.NewLayer(testimage.Gzip, e...)) }
	hardlink := func(name, to string) testimage.Entry {
		return testimage.Entry{Header: tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to, Mode: 0o644}}
	}
	whole := makeLayer(t, testimage.Uncompressed, 7, 50_000).Blob
	broken := func(change func(*testimage.Layer)) testimage.Layer {
		l := makeLayer(t, testimage.Gzip, 8, 50_000)
		change(&l)
		return l
	}
	for _, test := range []struct {
		name  string
		layer testimage.Layer
		want  string
	}{
		{"not a tar", pack([]byte(strings.Repeat("no tar at all", 100))), "is not a valid tar archive"},
		{"empty", pack(nil), ""},
		{"tar cut in a file", pack(whole[:20_000]), "is not a valid tar archive"},
		{"tar cut in a header", pack(whole[:700]), "is not a valid tar archive"},
		{"climbs", entries(testimage.File("../../etc/passwd", 0o644, []byte("x"))), `leaves the root directory: "../../etc/passwd"`},
		{"climbs later", entries(testimage.File("a/../../b", 0o644, []byte("x"))), "leaves the root directory"},
		{"through absolute link", entries(testimage.Symlink("x", "/etc"), testimage.File("x/passwd", 0o644, []byte("x"))), "goes through the symbolic link x -> /etc"},
		{"through absolute link, deeper", entries(testimage.Symlink("a/x", "/"), testimage.File("a/x/etc/cron.d/y", 0o644, []byte("x"))), "goes through the symbolic link a/x -> /"},
		{"through climbing link", entries(testimage.Symlink("a/x", "../../etc"), testimage.File("a/x/passwd", 0o644, []byte("x"))), "goes through"},
		{"hard link out", entries(hardlink("shadow", "../../../etc/shadow")), "hard link"},
		{"hard link to nothing", entries(hardlink("a", "b")), "can't be unpacked"},
		{"wrong diffID", broken(func(l *testimage.Layer) { l.DiffID = digest.FromString("other") }), "does not match the diff ID"},
		{"wrong digest", broken(func(l *testimage.Layer) { l.Blob = slices.Clone(l.Blob); l.Blob[30_000] ^= 1 }), "does not match its digest"},
		{"cut gzip", broken(func(l *testimage.Layer) { l.Blob = l.Blob[:30_000]; l.Descriptor = describe(l, l.Blob) }), "is not a valid tar archive"},
		{"damaged gzip", broken(func(l *testimage.Layer) {
			l.Blob = slices.Clone(l.Blob)
			l.Blob[len(l.Blob)-6] ^= 1 // its checksum
			l.Descriptor = describe(l, l.Blob)
		}), "is not a valid tar archive"},
		{"too short", broken(func(l *testimage.Layer) { l.Descriptor.Size += 100 }), "does not match its digest"},
		{"too long", broken(func(l *testimage.Layer) { l.Descriptor.Size -= 100 }), "does not match its digest"},
		{"strange type", broken(func(l *testimage.Layer) { l.Descriptor.MediaType = "application/x-strange" }), `unsupported media type "application/x-strange"`},
		{"encrypted", broken(func(l *testimage.Layer) { l.Descriptor.MediaType += "+encrypted" }), "unsupported media type"},
		{"no digest", broken(func(l *testimage.Layer) { l.Descriptor.Digest = "sha256:12" }), "malformed"},
		{"odd digest", broken(func(l *testimage.Layer) { l.DiffID = "../../x" }), "malformed"},
		{"no size", broken(func(l *testimage.Layer) { l.Descriptor.Size = 0 }), "0 bytes"},
		{"negative size", broken(func(l *testimage.Layer) { l.Descriptor.Size = -1 }), "-1 bytes"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			keep := makeLayer(t, testimage.Gzip, 1, 1000)
			img := assemble(t, keep, test.layer, makeLayer(t, testimage.Gzip, 3, 1000))
			// The in-memory registry rejects bad blobs, so a handler serves this one.
			r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, test.layer.Descriptor.Digest.String()) {
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(test.layer.Blob))
					return
				}
				next.ServeHTTP(w, r)
			}))
			good := r.push(t, "good", "v1", assemble(t, keep))
			mustPull(t, s, good)
			before := disk(t, s)

			name := r.pushUnverified(t, "bad", img)
			_, err := s.Pull(t.Context(), name, PullOptions{})
			if test.name == "empty" { // some tools write archives without entries
				if err != nil {
					t.Error(err)
				}
				return
			}
			wantError(t, err, name, test.want)
			if d := test.layer.Descriptor.Digest.String(); len(d) == 71 && test.layer.Descriptor.Size > 0 && len(test.layer.DiffID) == 71 {
				wantError(t, err, d)
			}
			if _, err := s.Get(name); !errdefs.IsNotFound(err) {
				t.Errorf("the image exists: %v", err)
			}
			wantDisk(t, s, before)
			if _, err := s.Get(good); err != nil {
				t.Error(err)
			}
		})
	}
	if _, err := os.Stat("/etc/cron.d/y"); err == nil {
		t.Error("a layer wrote to the host")
	}
}

func describe(l *testimage.Layer, blob []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: l.Descriptor.MediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
}

// pushUnverified pushes an image without those of its layers that don't match their
// digests.
func (r *testRegistry) pushUnverified(t testing.TB, repository string, img *testimage.Image) string {
	t.Helper()
	valid := *img
	valid.Layers = slices.DeleteFunc(slices.Clone(img.Layers), func(l testimage.Layer) bool {
		return digest.FromBytes(l.Blob) != l.Descriptor.Digest
	})
	return r.push(t, repository, "v1", &valid)
}

// TestPullBadManifest checks manifests, indexes and configs that are wrong.
func TestPullBadManifest(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	img := makeImage(t, 1, 1, 1000)
	index, err := testimage.Index(img)
	if err != nil {
		t.Fatal(err)
	}
	many := assemble(t, slices.Repeat(img.Layers, maxLayers+1)...)
	set := func(raw []byte, field string, value any) []byte {
		var fields map[string]any
		if err := json.Unmarshal(raw, &fields); err != nil {
			t.Fatal(err)
		}
		fields[field] = value
		raw, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, test := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"no JSON", []byte("<html>"), "malformed"},
		{"empty", []byte("{}"), "neither a manifest nor an index"},
		{"schema 1", []byte(`{"schemaVersion":1,"name":"x","fsLayers":[]}`), "schema 1"},
		{"both at once", set(img.Manifest, "manifests", []any{}), "both an index and a manifest"},
		{"an artifact", set(img.Manifest, "config", ocispec.Descriptor{MediaType: "application/vnd.cncf.helm.config.v1+json", Digest: digest.FromBytes(img.Config), Size: 1}), "not for a container image"},
		{"too few layers", set(img.Manifest, "layers", []any{}), "0 layers, but its config 1"},
		{"many layers", set(many.Manifest, "layers", slices.Repeat([]any{img.Layers[0].Descriptor}, maxLayers+1)), "501 layers, more than"},
		{"no config", set(img.Manifest, "config", ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString("x"), Size: 1}), "doesn't have it"},
		{"huge config", set(img.Manifest, "config", ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromString("x"), Size: 1 << 40}), "more than"},
		{"config is no config", set(img.Manifest, "config", ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: img.Layers[0].Descriptor.Digest, Size: img.Layers[0].Descriptor.Size}), "config"},
		{"empty index", set(index, "manifests", []any{}), "names no platform"},
		{"index of nothing", set(index, "manifests", []any{ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("x"), Size: 7}}), "doesn't have it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s, r := newStore(t), newRegistry(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if strings.HasSuffix(r.URL.Path, "/manifests/bad") || strings.HasSuffix(r.URL.Path, digest.FromBytes(test.raw).String()) {
					w.Header().Set("Docker-Content-Digest", digest.FromBytes(test.raw).String())
					w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
					http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(test.raw))
					return
				}
				next.ServeHTTP(w, r)
			})
			r.push(t, "web", "v1", img)
			if test.name == "many layers" {
				r.push(t, "web", "v2", many)
			}
			name := r.host + "/web:bad"
			_, err := s.Pull(t.Context(), name, PullOptions{})
			wantError(t, err, name, test.want)
			wantDisk(t, s, nil)
		})
	}
}

// TestPullWrongManifest checks that a manifest must match the digest that the registry claims for
// it.
func TestPullWrongManifest(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	img, claim := makeImage(t, 1, 1, 1000), digest.FromString("other").String()
	s, r := newStore(t), newRegistry(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Inside") != "" || !strings.Contains(r.URL.Path, "/manifests/") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Docker-Content-Digest", claim)
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(img.Manifest))
	})
	name := r.push(t, "web", "v1", img)
	_, err := s.Pull(t.Context(), name, PullOptions{})
	wantError(t, err, name, claim+" does not match its digest")
	wantDisk(t, s, nil)
}

// TestPullMissing checks that the error says which part of an image's name is wrong.
func TestPullMissing(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	r.push(t, "team/web", "v1", makeImage(t, 1, 1, 1000))
	r.push(t, "team/web", "v2", makeImage(t, 2, 1, 1000))
	for ref, want := range map[string]string{
		"/team/web:v3":   `has no tag "v3": it has v1, v2`,
		"/team/web":      `has no tag "latest"`,
		"/team/other:v1": "has no such image: check the name",
		"/team/web@" + digest.FromString("x").String(): "no image with this digest",
	} {
		_, err := s.Pull(t.Context(), r.host+ref, PullOptions{})
		wantError(t, err, r.host+ref, want)
		if !errdefs.IsNotFound(err) {
			t.Errorf("wrong kind of error: %v", err)
		}
	}
	_, err := s.Pull(t.Context(), "registry.invalid/web:v1", PullOptions{})
	wantError(t, err, "registry.invalid/web:v1", "host registry.invalid not found")
	closed := httptest.NewServer(http.NotFoundHandler())
	closed.Close()
	_, err = s.Pull(t.Context(), strings.TrimPrefix(closed.URL, "http://")+"/web:v1", PullOptions{})
	wantError(t, err, "can't be reached", "refused")
	wantDisk(t, s, nil)
}

// TestPullServerErrors checks that a pull retries temporary server errors, and that the
// error names a registry that keeps failing.
func TestPullServerErrors(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, status := range []int{http.StatusServiceUnavailable, http.StatusTooManyRequests, http.StatusBadGateway} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			var failures, tries int
			r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				if tries++; tries <= failures {
					w.WriteHeader(status)
					return
				}
				next.ServeHTTP(w, r)
			}))
			s := newStore(t)
			name := r.push(t, "web", "v1", makeImage(t, 1, 0, 0))
			failures = 2
			mustPull(t, s, name)
			failures = 1 << 30
			name = r.push(t, "web", "v2", makeImage(t, 1, 1, 1000))
			_, err := s.Pull(t.Context(), name, PullOptions{})
			wantError(t, err, name, r.host, fmt.Sprint(status))
			if !errdefs.IsUnavailable(err) {
				t.Errorf("wrong kind of error: %v", err)
			}
		})
	}
}

// login returns a handler that requires a user name and a password: with each request,
// or for a token.
func login(token bool) handler {
	const bearer = "Bearer let-me-in"
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		user, password, ok := r.BasicAuth()
		known := ok && user == "alice" && password == "secret"
		switch {
		case r.Header.Get("Inside") != "", !token && known, token && r.Header.Get("Authorization") == bearer:
			next.ServeHTTP(w, r)
		case token && r.URL.Path == "/token" && known:
			_ = json.NewEncoder(w).Encode(map[string]any{"token": "let-me-in", "expires_in": 300})
		case token && r.URL.Path == "/token" && r.Method == http.MethodPost:
			w.WriteHeader(http.StatusMethodNotAllowed)
		case token && r.URL.Path == "/token":
			w.WriteHeader(http.StatusUnauthorized)
		default:
			challenge := `Basic realm="test"`
			if token {
				challenge = fmt.Sprintf(`Bearer realm="http://%s/token",service="test"`, r.Host)
			}
			w.Header().Set("WWW-Authenticate", challenge)
			w.WriteHeader(http.StatusUnauthorized)
		}
	}
}

func TestPullLogin(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, token := range []bool{false, true} {
		t.Run(fmt.Sprint("token=", token), func(t *testing.T) {
			t.Parallel()
			s, r := newStore(t), newRegistry(t, login(token))
			name := r.push(t, "private", "v1", makeImage(t, 1, 2, 1000))
			_, err := s.Pull(t.Context(), name, PullOptions{})
			wantError(t, err, name, "denied anonymous access", "give a login")
			if !errdefs.IsUnauthorized(err) {
				t.Errorf("wrong kind of error: %v", err)
			}
			_, err = s.Pull(t.Context(), name, PullOptions{Username: "alice", Password: "wrong"})
			wantError(t, err, name, "denied access with this login")
			wantDisk(t, s, nil)
			if _, err = s.Pull(t.Context(), name, PullOptions{Username: "alice", Password: "secret"}); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPullToken checks that a given token is sent to the registry only, and that no
// other token is requested.
func TestPullToken(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	var leaked []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked = append(leaked, r.Header.Get("Authorization"))
		w.WriteHeader(http.StatusNotFound)
	}))
	defer elsewhere.Close()
	redirecting := false
	s, r := newStore(t), newRegistry(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		switch {
		case r.Header.Get("Inside") != "":
			next.ServeHTTP(w, r)
		case r.Header.Get("Authorization") != "Bearer given":
			w.Header().Set("WWW-Authenticate", `Bearer realm="`+elsewhere.URL+`",service="x"`)
			w.WriteHeader(http.StatusUnauthorized)
		case redirecting && strings.Contains(r.URL.Path, "/blobs/"):
			http.Redirect(w, r, strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)+r.URL.Path, http.StatusTemporaryRedirect)
		default:
			next.ServeHTTP(w, r)
		}
	})
	name := r.push(t, "private", "v1", makeImage(t, 1, 1, 1000))
	_, err := s.Pull(t.Context(), name, PullOptions{Token: "other"})
	wantError(t, err, name)
	if len(leaked) > 0 {
		t.Error("another token was requested")
	}
	if _, err := s.Pull(t.Context(), name, PullOptions{Token: "given"}); err != nil {
		t.Error(err)
	}
	redirecting = true
	again := newStore(t)
	if _, err = again.Pull(t.Context(), name, PullOptions{Token: "given"}); err == nil || len(leaked) == 0 {
		t.Error("no request was redirected: the test proves nothing")
	}
	for _, shown := range leaked {
		if shown != "" {
			t.Errorf("sent %q to another host", shown)
		}
	}
}

// TestPullLoginStaysWithRegistry checks that a server to which a blob is redirected
// doesn't get the login that it asks for.
func TestPullLoginStaysWithRegistry(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	var seen []string
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		seen = append(seen, r.Header.Get("Authorization"))
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer elsewhere.Close()
	// Under another name, so that it counts as another host.
	target := strings.Replace(elsewhere.URL, "127.0.0.1", "localhost", 1)
	s, r := newStore(t), newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		http.Redirect(w, r, target+r.URL.Path, http.StatusTemporaryRedirect)
	}), login(false))
	name := r.push(t, "private", "v1", makeImage(t, 1, 1, 1000))
	_, err := s.Pull(t.Context(), name, PullOptions{Username: "alice", Password: "secret"})
	wantError(t, err, name)
	if len(seen) == 0 {
		t.Error("no request was redirected: the test proves nothing")
	}
	for _, authorization := range seen {
		if authorization != "" {
			t.Errorf("sent %q to another host", authorization)
		}
	}
}

func certs(t testing.TB, s *Store, host, name, text string) {
	t.Helper()
	dir := filepath.Join(s.certsDir, host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestPullMirror(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, mirror := newStore(t), newRegistry(t)
	img := makeImage(t, 1, 2, 1000)
	mirror.push(t, "team/web", "v1", img)
	mirror.push(t, "library/busybox", "latest", img)
	dead := httptest.NewServer(http.NotFoundHandler())
	dead.Close()
	hosts := fmt.Sprintf("server = \"https://registry.invalid\"\n[host.%q]\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", dead.URL, mirror.URL)
	certs(t, s, "registry.invalid", "hosts.toml", hosts)
	certs(t, s, "docker.io", "hosts.toml", hosts)
	for ref, tag := range map[string]string{
		"registry.invalid/team/web:v1": "registry.invalid/team/web:v1",
		"docker.io/busybox":            "docker.io/library/busybox:latest",
	} {
		if got := mustPull(t, s, ref); !slices.Contains(got.Tags, tag) {
			t.Errorf("%s: pulled %+v", ref, got)
		}
	}
	if got, err := s.Get("busybox"); err != nil || got.ID != img.ID() {
		t.Errorf("get busybox: %v", err)
	}
}

// TestPullBadHosts checks that a malformed hosts.toml is an error, rather than a reason
// to bypass the mirror.
func TestPullBadHosts(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	name := r.push(t, "web", "v1", makeImage(t, 1, 1, 1000))
	for text, want := range map[string]string{
		"server = ":                "hosts.toml:1",
		"\n\n[host.\"http://x\"\n": "hosts.toml:3",
		"[host.\"http://x\"]\ncapabilities=[\"fly\"]": `unknown capability "fly"`,
		"server = 7":            "hosts.toml",
		"skip_verify = \"yes\"": "hosts.toml",
	} {
		certs(t, s, r.host, "hosts.toml", text)
		_, err := s.Pull(t.Context(), name, PullOptions{})
		wantError(t, err, name, want)
	}
	wantDisk(t, s, nil)
}

func TestPullTLS(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	r.push(t, "web", "v1", makeImage(t, 1, 1, 1000))
	secure := httptest.NewTLSServer(r.Config.Handler)
	defer secure.Close()
	secure.Config.ErrorLog = r.Config.ErrorLog
	// Not a name of this host, for which containerd skips the verification of certificates.
	name := "registry.invalid/web:v1"
	certs(t, s, "registry.invalid", "hosts.toml", fmt.Sprintf("server = %q\n", secure.URL))
	_, err := s.Pull(t.Context(), name, PullOptions{})
	wantError(t, err, name, "is not trusted", "ca.crt")
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	certs(t, s, "registry.invalid", "ca.pem", string(ca))
	certs(t, s, "registry.invalid", "hosts.toml", fmt.Sprintf("server = %q\nca = \"ca.pem\"\n", secure.URL))
	mustPull(t, s, name)

	certs(t, s, "plain.invalid", "hosts.toml", fmt.Sprintf("server = %q\n", strings.Replace(r.URL, "http://", "https://", 1)))
	_, err = s.Pull(t.Context(), "plain.invalid/web:v1", PullOptions{})
	wantError(t, err, "plain.invalid", "speaks plain http", "hosts.toml")
}

// TestPullDiskFull fills a small disk at several points of a pull.
func TestPullDiskFull(t *testing.T) {
	hosttest.Root(t)
	for _, size := range []string{"1500k", "2500k", "3500k", "4500k"} {
		t.Run(size, func(t *testing.T) {
			dir := t.TempDir()
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil { // the kernel may still be writing
					t.Error(err)
				}
			}()
			r := newRegistry(t)
			name := r.push(t, "big", "v1", makeImage(t, 1, 3, 1_500_000))
			s, err := Open(t.Context(), Config{Root: filepath.Join(dir, "images")})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			before := disk(t, s)
			_, err = s.Pull(t.Context(), name, PullOptions{})
			wantError(t, err, name, "no space left below "+s.root, "prune")
			if !errdefs.IsResourceExhausted(err) {
				t.Errorf("wrong kind of error: %v", err)
			}
			wantDisk(t, s, before)
			_, err = s.Load(t.Context(), bytes.NewReader(archiveOf(t, testimage.Named{Image: makeImage(t, 1, 3, 1_500_000)})), nil)
			wantError(t, err, "image archive", "no space left below "+s.root)
			wantDisk(t, s, before)
			// The store still works.
			small := r.push(t, "small", "v1", makeImage(t, 2, 1, 1000))
			mustPull(t, s, small)
			if _, err := s.Remove(t.Context(), small, false); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPullFromDockerRegistry pulls from Docker's registry.
func TestPullFromDockerRegistry(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	program, err := exec.LookPath("docker-registry")
	if err != nil {
		t.Skip("docker-registry is not installed")
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "config.yml")
	text := "version: 0.1\nstorage: {filesystem: {rootdirectory: " + dir + "/data}}\nhttp: {addr: 127.0.0.1:0}\nlog: {level: info, formatter: json}\n"
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	logFile, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer logFile.Close()
	cmd := exec.Command(program, "serve", conf)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	var host string
	eventually(t, "the registry listens", func() bool {
		raw, err := os.ReadFile(logFile.Name())
		if err != nil {
			t.Fatal(err)
		}
		_, rest, found := bytes.Cut(raw, []byte("listening on "))
		if found {
			host, _, found = strings.Cut(string(rest), `"`)
		}
		return found
	})
	s, img := newStore(t), makeImage(t, 1, 3, 500_000)
	if err := (testimage.Registry{URL: "http://" + host}).Push(t.Context(), "team/web", "v1", img); err != nil {
		t.Fatal(err)
	}
	got := mustPull(t, s, host+"/team/web:v1")
	if got.ID != img.ID() {
		t.Errorf("pulled %+v", got)
	}
	wantFiles(t, s, img)
	_, err = s.Pull(t.Context(), host+"/team/web:v2", PullOptions{})
	wantError(t, err, `has no tag "v2": it has v1`)
	_, err = s.Pull(t.Context(), host+"/team/none:v2", PullOptions{})
	wantError(t, err, "no such image")
}
