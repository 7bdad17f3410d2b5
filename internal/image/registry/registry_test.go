package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	containerdlog "github.com/containerd/log"
	distribution "github.com/distribution/reference"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) {
	_ = containerdlog.SetLevel("panic") // it logs every failed request
	goleak.VerifyTestMain(m)
}

// image is the image in the tests' registries, under testRepository:v1 and v2.
var image = func() *testimage.Image {
	layer, err := testimage.NewLayer(testimage.Gzip, testimage.File("file", 0o644, bytes.Repeat([]byte("content"), 1000)))
	if err != nil {
		panic(err)
	}
	img, err := testimage.New(ocispec.Platform{OS: "linux", Architecture: "amd64"}, ocispec.ImageConfig{}, layer)
	if err != nil {
		panic(err)
	}
	return img
}()

const testRepository = "team/web"

// middleware may answer a request itself, or call next.
type middleware func(w http.ResponseWriter, r *http.Request, next http.Handler)

// server is a registry that records the requests it gets.
type server struct {
	*httptest.Server
	host string // host:port, as in image names

	mu       sync.Mutex
	requests []*http.Request
}

// serve starts a registry with image behind the middlewares, the last one outermost.
func serve(t *testing.T, middlewares ...middleware) *server {
	t.Helper()
	return start(t, (*httptest.Server).Start, middlewares...)
}

func start(t *testing.T, launch func(*httptest.Server), middlewares ...middleware) *server {
	t.Helper()
	quiet := log.New(io.Discard, "", 0)
	handler := ggcr.New(ggcr.Logger(quiet))
	fill(t, handler)
	for _, m := range middlewares {
		next := handler
		handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m(w, r, next) })
	}
	s := &server{}
	s.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r.Clone(context.Background()))
		s.mu.Unlock()
		handler.ServeHTTP(w, r)
	}))
	s.Config.ErrorLog = quiet
	launch(s.Server)
	t.Cleanup(s.Close)
	_, s.host, _ = strings.Cut(s.URL, "://")
	return s
}

// fill pushes image, without middlewares.
func fill(t *testing.T, handler http.Handler) {
	t.Helper()
	s := httptest.NewServer(handler)
	defer s.Close()
	for _, tag := range []string{"v1", "v2"} {
		if err := (testimage.Registry{URL: s.URL, Client: s.Client()}).Push(t.Context(), testRepository, tag, image); err != nil {
			t.Fatal(err)
		}
	}
}

// authorizations returns the Authorization header of every request so far.
func (s *server) authorizations() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var list []string
	for _, r := range s.requests {
		list = append(list, r.Header.Get("Authorization"))
	}
	return list
}

// count returns the number of requests so far whose path contains part.
func (s *server) count(part string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for _, r := range s.requests {
		if strings.Contains(r.URL.Path, part) {
			n++
		}
	}
	return n
}

// client returns a client for an image. hosts is the content of its registry's hosts.toml,
// if not empty.
func client(t *testing.T, name, hosts string, login Login) *Registry {
	t.Helper()
	named, err := distribution.ParseDockerRef(name)
	if err != nil {
		t.Fatal(err)
	}
	certs := t.TempDir()
	if hosts != "" {
		certsFile(t, certs, distribution.Domain(named), "hosts.toml", hosts)
	}
	r, err := New(t.Context(), certs, named, login)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func certsFile(t *testing.T, certs, host, name, content string) {
	t.Helper()
	dir := filepath.Join(certs, host)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pull resolves the image and fetches its manifest and its layer. Its errors are explained.
func pull(ctx context.Context, r *Registry) error {
	desc, err := r.Resolve(ctx)
	if err != nil {
		return r.Explain(err)
	}
	for _, d := range []ocispec.Descriptor{desc, image.Layers[0].Descriptor} {
		if err := fetch(ctx, r, d); err != nil {
			return r.Explain(err)
		}
	}
	return nil
}

func fetch(ctx context.Context, r *Registry, desc ocispec.Descriptor) error {
	body, err := r.Fetch(ctx, desc)
	if err != nil {
		return err
	}
	defer body.Close()
	content, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	if digest.FromBytes(content) != desc.Digest {
		return fmt.Errorf("%d bytes don't match %s", len(content), desc.Digest)
	}
	return nil
}

func mustPull(t *testing.T, r *Registry) {
	t.Helper()
	if err := pull(t.Context(), r); err != nil {
		t.Errorf("pull %s: %v", r.image, err)
	}
}

// wantError fails unless err is one line that contains all of words.
func wantError(t *testing.T, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("no error, want one with %q", words)
		return
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("error %q doesn't contain %q", err, word)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error of several lines: %q", err)
	}
}

func TestResolve(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for _, ref := range []string{":v1", "@" + image.Descriptor.Digest.String()} {
		r := client(t, s.host+"/"+testRepository+ref, "", Login{})
		desc, err := r.Resolve(t.Context())
		if err != nil || desc.Digest != image.Descriptor.Digest || desc.Size != image.Descriptor.Size {
			t.Errorf("%s: %+v, %v, want %+v", ref, desc, err, image.Descriptor)
		}
		if r.Name() != s.host {
			t.Errorf("name %q, want %q", r.Name(), s.host)
		}
		mustPull(t, r)
	}
}

// TestResume checks that a body can be read from an offset, and that an offset beyond the
// end is recognized.
func TestResume(t *testing.T) {
	t.Parallel()
	layer := image.Layers[0]
	s := serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, layer.Descriptor.Digest.String()) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(layer.Blob)) // supports open ranges
			return
		}
		next.ServeHTTP(w, r)
	})
	r := client(t, s.host+"/"+testRepository+":v1", "", Login{})
	from := func(offset, size int64) ([]byte, error) {
		desc := layer.Descriptor
		desc.Size = size
		body, err := r.Fetch(t.Context(), desc)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if _, err := body.(io.Seeker).Seek(offset, io.SeekStart); err != nil {
			return nil, err
		}
		return io.ReadAll(body)
	}
	size := layer.Descriptor.Size
	if rest, err := from(10, size); err != nil || !bytes.Equal(rest, layer.Blob[10:]) {
		t.Errorf("from byte 10: %d bytes, %v, want %d", len(rest), err, len(layer.Blob)-10)
	}
	if _, err := from(size+10, size+100); !BeyondEnd(err) { // the descriptor claims more than there is
		t.Errorf("from beyond the end: %v", err)
	}
}

// TestClaimedDigest checks what a registry's Docker-Content-Digest is worth: a name with a digest
// never resolves to another, and without the header the digest is that of the content.
func TestClaimedDigest(t *testing.T) {
	t.Parallel()
	right := image.Descriptor.Digest.String()
	for claim, resolves := range map[string]bool{"": true, right: true, "sha256:12": false} {
		t.Run("claim="+claim, func(t *testing.T) {
			t.Parallel()
			s := serve(t, claiming(claim))
			desc, err := client(t, s.host+"/"+testRepository+":v1", "", Login{}).Resolve(t.Context())
			if (err == nil) != resolves || resolves && desc.Digest != image.Descriptor.Digest {
				t.Errorf("resolved to %q, %v", desc.Digest, err)
			}
		})
	}
	s := serve(t, claiming(digest.FromString("other").String()))
	desc, err := client(t, s.host+"/"+testRepository+"@"+right, "", Login{}).Resolve(t.Context())
	if err == nil && desc.Digest != image.Descriptor.Digest {
		t.Errorf("a name with a digest resolved to %s", desc.Digest)
	}
}

// claiming serves the manifest of image with a Docker-Content-Digest header, unless digest is
// empty.
func claiming(digest string) middleware {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", ocispec.MediaTypeImageManifest)
		if digest != "" {
			w.Header().Set("Docker-Content-Digest", digest)
		}
		_, _ = w.Write(image.Manifest)
	}
}

// basic requires a login with every request.
func basic(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if user, password, _ := r.BasicAuth(); user == "alice" && password == "secret" {
		next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
	w.WriteHeader(http.StatusUnauthorized)
}

// bearer requires an access token, which the server at realm issues.
func bearer(realm func(r *http.Request) string) middleware {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Header.Get("Authorization") == "Bearer access" {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s",service="test"`, realm(r)))
		w.WriteHeader(http.StatusUnauthorized)
	}
}

func ownRealm(r *http.Request) string { return "http://" + r.Host + "/token" }

// issue issues access tokens for a login (GET, as docker's registry) and for a refresh token
// (POST, OAuth).
func issue(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if r.URL.Path != "/token" {
		next.ServeHTTP(w, r)
		return
	}
	user, password, _ := r.BasicAuth()
	granted := user == "alice" && password == "secret"
	if r.Method == http.MethodPost {
		granted = r.FormValue("grant_type") == "refresh_token" && r.FormValue("refresh_token") == "refresh"
		if r.FormValue("grant_type") == "password" {
			w.WriteHeader(http.StatusMethodNotAllowed) // only by GET
			return
		}
	}
	if !granted {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{"token": "access", "access_token": "access", "expires_in": 300})
}

func TestLogin(t *testing.T) {
	t.Parallel()
	alice, wrong := Login{Username: "alice", Password: "secret"}, Login{Username: "alice", Password: "wrong"}
	for name, test := range map[string]struct {
		server     []middleware
		good, bad  Login
		badIsToken bool // a wrong token is like none
	}{
		"basic":         {server: []middleware{basic}, good: alice, bad: wrong},
		"bearer":        {server: []middleware{bearer(ownRealm), issue}, good: alice, bad: wrong},
		"refresh token": {server: []middleware{bearer(ownRealm), issue}, good: Login{Password: "refresh"}, bad: Login{Password: "old"}},
		"access token":  {server: []middleware{bearer(ownRealm), issue}, good: Login{Token: "access"}, bad: Login{Token: "old"}, badIsToken: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, test.server...)
			ref := s.host + "/" + testRepository + ":v1"
			mustPull(t, client(t, ref, "", test.good))
			err := pull(t.Context(), client(t, ref, "", Login{}))
			wantError(t, err, "registry "+s.host+" denied anonymous access", "give a login")
			if !errdefs.IsUnauthorized(err) {
				t.Errorf("wrong kind of error: %v", err)
			}
			err = pull(t.Context(), client(t, ref, "", test.bad))
			if test.badIsToken {
				wantError(t, err, s.host)
				return
			}
			wantError(t, err, "registry "+s.host+" denied access with this login")
			if !errdefs.IsPermissionDenied(err) {
				t.Errorf("wrong kind of error: %v", err)
			}
		})
	}
}

// TestAccessTokenIsNotExchanged checks that a given access token is sent to the registry as it is,
// and that no other token is requested.
func TestAccessTokenIsNotExchanged(t *testing.T) {
	t.Parallel()
	s := serve(t, bearer(ownRealm), issue)
	mustPull(t, client(t, s.host+"/"+testRepository+":v1", "", Login{Token: "access"}))
	_ = pull(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", Login{Token: "old"}))
	if n := s.count("/token"); n > 0 {
		t.Errorf("%d tokens were requested", n)
	}
}

// elsewhere returns the URL of a server under another name of this host.
func elsewhere(t *testing.T, s *server) string {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	u.Host = "localhost:" + u.Port()
	return u.String()
}

// TestCredentialsStayWithRegistry checks that a server to which downloads are redirected gets
// neither the login nor a token, even if it asks for them.
func TestCredentialsStayWithRegistry(t *testing.T) {
	t.Parallel()
	for name, login := range map[string]Login{
		"basic":         {Username: "alice", Password: "secret"},
		"bearer":        {Username: "alice", Password: "secret"},
		"refresh token": {Password: "refresh"},
		"access token":  {Token: "access"},
	} {
		for _, asks := range []bool{false, true} {
			for _, port := range []bool{false, true} { // another port of the same host
				t.Run(fmt.Sprintf("%s/asks=%v/port=%v", name, asks, port), func(t *testing.T) {
					t.Parallel()
					var challenge []middleware
					if asks {
						challenge = []middleware{basic}
					}
					storage := serve(t, challenge...)
					target := elsewhere(t, storage)
					if port {
						target = storage.URL
					}
					auth := []middleware{redirect(target), bearer(ownRealm), issue}
					if name == "basic" {
						auth = []middleware{redirect(target), basic}
					}
					s := serve(t, auth...)
					err := pull(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", login))
					if (err != nil) != asks {
						t.Errorf("pull: %v", err)
					}
					wantNoAuthorization(t, storage)
				})
			}
		}
	}
}

// closedURL returns the URL of a server that refuses connections.
func closedURL() string {
	s := httptest.NewServer(http.NotFoundHandler())
	s.Close()
	return s.URL
}

func TestMirrors(t *testing.T) {
	t.Parallel()
	const ref = "registry.invalid/" + testRepository + ":v1"
	notFound := func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(http.StatusNotFound) }
	t.Run("the first that answers", func(t *testing.T) {
		t.Parallel()
		mirror, origin := serve(t), serve(t)
		mustPull(t, client(t, ref, fmt.Sprintf("server = %q\n[host.%q]\n[host.%q]\n", origin.URL, closedURL(), mirror.URL), Login{}))
		if mirror.count(testRepository) == 0 || origin.count("") > 0 {
			t.Errorf("%d requests to the mirror, %d to the registry", mirror.count(""), origin.count(""))
		}
	})
	t.Run("without the image", func(t *testing.T) {
		t.Parallel()
		mirror, origin := serve(t, notFound), serve(t)
		mustPull(t, client(t, ref, fmt.Sprintf("server = %q\n[host.%q]\n", origin.URL, mirror.URL), Login{}))
		if mirror.count("") == 0 {
			t.Error("the mirror was not asked")
		}
	})
	t.Run("for pull only", func(t *testing.T) {
		t.Parallel()
		mirror, origin := serve(t), serve(t)
		r := client(t, ref, fmt.Sprintf("server = %q\n[host.%q]\ncapabilities = [\"pull\"]\n", origin.URL, mirror.URL), Login{})
		mustPull(t, r)
		if mirror.count("/manifests/v1") > 0 || origin.count("/manifests/v1") == 0 {
			t.Error("the mirror was asked to resolve a tag")
		}
		if mirror.count("/blobs/") == 0 || origin.count("/blobs/") > 0 {
			t.Error("the layer was not fetched from the mirror")
		}
	})
	t.Run("with a path and headers", func(t *testing.T) {
		t.Parallel()
		mirror := serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.Header.Get("X-Team") != "web" || !strings.HasPrefix(r.URL.Path, "/mirror/") {
				w.WriteHeader(http.StatusForbidden)
				return
			}
			r.URL.Path = "/v2" + strings.TrimPrefix(r.URL.Path, "/mirror")
			next.ServeHTTP(w, r)
		})
		mustPull(t, client(t, ref, fmt.Sprintf("[host.%q]\noverride_path = true\n[host.%q.header]\nX-Team = \"web\"\n", mirror.URL+"/mirror", mirror.URL+"/mirror"), Login{}))
	})
	t.Run("with the login", func(t *testing.T) {
		t.Parallel()
		mirror := serve(t, basic)
		mustPull(t, client(t, ref, fmt.Sprintf("[host.%q]\n", mirror.URL), Login{Username: "alice", Password: "secret"}))
	})
}

func TestHosts(t *testing.T) {
	t.Parallel()
	named, err := distribution.ParseDockerRef("registry.invalid/" + testRepository + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"":              "",
		"server = 1":    "hosts.toml:1: server: ",
		"\n\n[host.\"a": "hosts.toml:3: ",
		"[host.\"https://a\"]\ncapabilities = [\"fly\"]": `hosts.toml: unknown capability "fly": use one of [pull resolve push referrers]`,
		"capabilities = [\"fly\"]":                       `unknown capability "fly"`,
		"[host.\"https://a\"]\nskip_verify = \"yes\"":    "hosts.toml:2: ",
	} {
		certs := t.TempDir()
		certsFile(t, certs, "registry.invalid", "hosts.toml", content)
		r, err := New(t.Context(), certs, named, Login{})
		switch {
		case want != "":
			wantError(t, err, filepath.Join(certs, "registry.invalid", "hosts.toml"), want)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%q: wrong kind of error: %v", content, err)
			}
		case err != nil:
			t.Errorf("%q: %v", content, err)
		default:
			r.Close()
		}
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	s := start(t, (*httptest.Server).StartTLS)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	hosts := fmt.Sprintf("server = %q\n", s.URL)
	// containerd doesn't verify certificates of registries on this host, so use another name.
	const host = "registry.invalid"
	named, err := distribution.ParseDockerRef(host + "/" + testRepository + ":v1")
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		files map[string]string
		want  string // of the error
	}{
		"unknown authority": {map[string]string{"hosts.toml": hosts}, "the certificate of registry " + host + " is not trusted"},
		"trusted":           {map[string]string{"hosts.toml": hosts + "ca = \"ca.pem\"\n", "ca.pem": ca}, ""},
		"not verified":      {map[string]string{"hosts.toml": hosts + "skip_verify = true\n"}, ""},
		"another authority": {map[string]string{"hosts.toml": hosts + "ca = \"ca.pem\"\n", "ca.pem": ""}, "registry.invalid"},
		"another host name": {map[string]string{"hosts.toml": strings.Replace(hosts, "127.0.0.1", "localhost", 1) + "ca = \"ca.pem\"\n", "ca.pem": ca}, "is not trusted"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			certs := t.TempDir()
			for file, content := range test.files {
				certsFile(t, certs, host, file, content)
			}
			r, err := New(t.Context(), certs, named, Login{})
			if err == nil {
				defer r.Close()
				err = pull(t.Context(), r)
			}
			switch {
			case test.want == "" && err != nil:
				t.Error(err)
			case test.want != "":
				wantError(t, err, test.want)
			}
		})
	}
	t.Run("plain http", func(t *testing.T) {
		t.Parallel()
		plain := serve(t)
		err := pull(t.Context(), client(t, host+"/"+testRepository+":v1", fmt.Sprintf("server = %q\n", "https://"+plain.host), Login{}))
		wantError(t, err, "registry "+host+" speaks plain http", "hosts.toml")
	})
}

// TestMissing checks that the error says which part of an image's name is wrong.
func TestMissing(t *testing.T) {
	t.Parallel()
	s := serve(t)
	for ref, want := range map[string]string{
		testRepository + ":v3":                                       s.host + "/" + testRepository + ` has no tag "v3": it has v1, v2`,
		testRepository + "@" + digest.FromString("x").String():       "has no image with this digest",
		"team/other:v1":                                              "registry " + s.host + " has no such image",
		testRepository + "/more@" + image.Descriptor.Digest.String(): "has no such image",
	} {
		_, err := client(t, s.host+"/"+ref, "", Login{}).Resolve(t.Context())
		wantError(t, err, want)
		if !errdefs.IsNotFound(err) {
			t.Errorf("wrong kind of error: %v", err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	_, closed, _ := strings.Cut(closedURL(), "://")
	for name, test := range map[string]struct{ host, want string }{
		"no host":       {"registry.invalid", "host registry.invalid not found"},
		"no connection": {closed, "registry " + closed + " can't be reached: dial tcp"},
	} {
		err := pull(t.Context(), client(t, test.host+"/"+testRepository+":v1", "", Login{}))
		wantError(t, err, test.want)
		if !errdefs.IsUnavailable(err) {
			t.Errorf("%s: wrong kind of error: %v", name, err)
		}
	}
}

// TestLocalImage checks that an image that was built on the node, and isn't there, is said to be
// missing: only a name with a port is one of a registry on the node.
func TestLocalImage(t *testing.T) {
	t.Parallel()
	refused := &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
	missing := client(t, "localhost/x:1", "", Login{}).Explain(fmt.Errorf("resolve: %w", refused))
	wantError(t, missing, "it is not present, and no registry listens at localhost: load it with husk image load")
	if !errdefs.IsNotFound(missing) {
		t.Errorf("wrong kind of error: %v", missing)
	}
	wantError(t, client(t, "localhost:5000/x:1", "", Login{}).Explain(refused), "registry localhost:5000 can't be reached")
}

// TestServerErrors checks that errors of the server are explained, and which are transient.
func TestServerErrors(t *testing.T) {
	t.Parallel()
	for status, transient := range map[int]bool{
		http.StatusInternalServerError: true, http.StatusBadGateway: true, http.StatusServiceUnavailable: true,
		http.StatusTooManyRequests: true, http.StatusTeapot: false, http.StatusBadRequest: false,
	} {
		t.Run(fmt.Sprint(status), func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) { w.WriteHeader(status) })
			r := client(t, s.host+"/"+testRepository+":v1", "", Login{})
			err := fetch(t.Context(), r, image.Layers[0].Descriptor)
			if err == nil || Transient(err) != transient {
				t.Errorf("transient is %v, want %v: %v", Transient(err), transient, err)
			}
			explained := r.Explain(err)
			wantError(t, explained, fmt.Sprintf("registry %s returned %d ", s.host, status))
			if !errdefs.IsUnavailable(explained) {
				t.Errorf("wrong kind of error: %v", explained)
			}
		})
	}
	t.Run("broken connection", func(t *testing.T) {
		t.Parallel()
		s := serve(t, func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Length", fmt.Sprint(len(image.Layers[0].Blob)))
			_, _ = w.Write(image.Layers[0].Blob[:10])
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		})
		r := client(t, s.host+"/"+testRepository+":v1", "", Login{})
		err := fetch(t.Context(), r, image.Layers[0].Descriptor)
		if !Transient(err) || !errors.Is(err, io.ErrUnexpectedEOF) {
			t.Errorf("got %v", err)
		}
		wantError(t, r.Explain(err), "connections to registry "+s.host+" keep breaking")
	})
}
