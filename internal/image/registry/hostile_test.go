package registry

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// tlsClient returns a client for the image in a registry that serves TLS.
func tlsClient(t *testing.T, s *server, login Login) *Registry {
	t.Helper()
	return client(t, "registry.invalid/"+testRepository+":v1", fmt.Sprintf("server = %q\nskip_verify = true\n", s.URL), login)
}

// TestLoginIsNotSentInTheClear checks that neither a challenge nor a redirect of a registry with
// TLS makes the client send a login or token over plain http.
func TestLoginIsNotSentInTheClear(t *testing.T) {
	t.Parallel()
	login := Login{Username: "alice", Password: "secret"}
	t.Run("token server", func(t *testing.T) {
		t.Parallel()
		plain := serve(t, issue)
		s := start(t, (*httptest.Server).StartTLS, bearer(func(*http.Request) string { return plain.URL + "/token" }))
		wantError(t, pull(t.Context(), tlsClient(t, s, login)), "over plain http", plain.host)
		if n := plain.count(""); n > 0 {
			t.Errorf("%d requests over plain http", n)
		}
	})
	t.Run("redirect", func(t *testing.T) {
		t.Parallel()
		plain := serve(t)
		s := start(t, (*httptest.Server).StartTLS, redirect(plain.URL), basic)
		if err := pull(t.Context(), tlsClient(t, s, login)); err != nil {
			t.Error(err)
		}
		wantNoAuthorization(t, plain)
	})
}

// redirect redirects downloads of blobs to a URL.
func redirect(to string) middleware { return redirectPart("/blobs/", to) }

func wantNoAuthorization(t *testing.T, s *server) {
	t.Helper()
	sent := s.authorizations()
	if len(sent) == 0 {
		t.Error("no request was redirected: the test proves nothing")
	}
	for _, authorization := range sent {
		if authorization != "" {
			t.Errorf("sent %q to another server", authorization)
		}
	}
}

// TestLayersAreFetchedFromRegistryOnly checks that an image can't make the node send requests to
// URLs of its choice, for example to the metadata service of a cloud.
func TestLayersAreFetchedFromRegistryOnly(t *testing.T) {
	t.Parallel()
	s, internal := serve(t), serve(t)
	desc := image.Layers[0].Descriptor
	desc.URLs = []string{internal.URL + "/v2/" + testRepository + "/blobs/" + desc.Digest.String()}
	if err := fetch(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", Login{}), desc); err != nil {
		t.Error(err)
	}
	if n := internal.count(""); n > 0 {
		t.Errorf("%d requests to a URL in the manifest", n)
	}
}

// TestEndlessToken checks that the answer of a token server is bounded.
func TestEndlessToken(t *testing.T) {
	t.Parallel()
	var sent atomic.Int64
	s := serve(t, bearer(ownRealm), func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.URL.Path != "/token" {
			next.ServeHTTP(w, r)
			return
		}
		_, err := w.Write([]byte(`{"token":"`))
		for chunk := bytes.Repeat([]byte("x"), 1<<20); err == nil && sent.Load() < 256<<20; {
			_, err = w.Write(chunk)
			sent.Add(int64(len(chunk)))
		}
	})
	wantError(t, pull(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", Login{})), "token")
	if n := sent.Load(); n > 64<<20 { // what fits into the buffers of the connection is lost
		t.Errorf("the client read %d MiB of a token", n>>20)
	}
}

// TestContentEncoding checks that the client decodes no zstd, whose decoder may need a gigabyte.
func TestContentEncoding(t *testing.T) {
	t.Parallel()
	s := serve(t, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if !strings.Contains(r.URL.Path, "/blobs/") {
			next.ServeHTTP(w, r)
			return
		}
		if strings.Contains(r.Header.Get("Accept-Encoding"), "zstd") {
			t.Error("the client asks for zstd")
		}
		encoder, err := zstd.NewWriter(w)
		if err != nil {
			t.Error(err)
			return
		}
		w.Header().Set("Content-Encoding", "ZSTD")
		_, _ = encoder.Write(image.Layers[0].Blob)
		_ = encoder.Close()
	})
	wantError(t, pull(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", Login{})), "Content-Encoding")
}

// TestRedirectLoop checks that a registry can't send the client around for ever, nor take its login
// elsewhere by the way.
func TestRedirectLoop(t *testing.T) {
	t.Parallel()
	login := Login{Username: "alice", Password: "secret"}
	for _, part := range []string{"/manifests/", "/blobs/"} {
		t.Run(part, func(t *testing.T) {
			t.Parallel()
			elsewhere := serve(t, redirectPart(part, "")) // to itself
			s := serve(t, redirectPart(part, elsewhere.URL), basic)
			wantError(t, pull(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", login)), "redirects")
			if n := elsewhere.count(""); n > 200 {
				t.Errorf("%d requests", n)
			}
			wantNoAuthorization(t, elsewhere)
		})
	}
}

// redirectPart redirects requests whose path has a part to a URL.
func redirectPart(part, to string) middleware {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, part) {
			http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
			return
		}
		next.ServeHTTP(w, r)
	}
}
