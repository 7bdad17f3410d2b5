package registry

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
)

// maxToken is the largest size in bytes of a token server's answer. Tokens have some kilobytes.
const maxToken = 1 << 20

// guard is a transport that protects the node and the login from a hostile registry.
type guard struct {
	*Registry
	base http.RoundTripper
}

// guardHosts puts a guard around the transports of the registry's hosts, which may share a client.
func (r *Registry) guardHosts() {
	for _, h := range r.hosts {
		if _, guarded := h.Client.Transport.(guard); guarded {
			continue
		}
		// Any other transport is docker.NewHTTPFallback.
		_, strict := h.Client.Transport.(*http.Transport)
		r.plain = r.plain || h.Scheme == "http" || !strict
		h.Client.Transport = guard{r, h.Client.Transport}
	}
}

// RoundTrip sends a request without what it must not tell, and bounds the answer.
func (g guard) RoundTrip(req *http.Request) (*http.Response, error) {
	req = req.Clone(req.Context())
	if req.Response != nil && !g.configured(req.URL) && req.Header.Get("Authorization") == first(req).Header.Get("Authorization") {
		// net/http copies it if only the port or the scheme differs, and to subdomains.
		req.Header.Del("Authorization")
	}
	if g.betrays(req) {
		return nil, errdefs.ErrPermissionDenied.WithMessage(
			fmt.Sprintf("registry %s asks for its login over plain http, at %s: only https keeps it secret", g.name, req.URL.Host))
	}
	req, err := g.confine(req)
	if err != nil {
		return nil, err
	}
	if req.Header.Get("Accept-Encoding") != "" {
		// Not zstd, whose decoder in containerd may need a gigabyte.
		req.Header.Set("Accept-Encoding", "gzip")
	}
	resp, err := g.base.RoundTrip(req)
	if err != nil {
		return nil, g.stray(req, err)
	}
	if encoding := strings.Join(resp.Header.Values("Content-Encoding"), ","); strings.Contains(strings.ToLower(encoding), "zstd") {
		_ = resp.Body.Close()
		return nil, errdefs.ErrNotImplemented.WithMessage(fmt.Sprintf("registry %s answers with the unsupported Content-Encoding %.80q", g.name, encoding))
	}
	// Manifests and blobs, whose readers know their size, are requested by their types.
	if req.Header.Get("Accept") == "" {
		resp.Body = &bounded{resp.Body, maxToken}
	}
	return resp, nil
}

// first returns the request that led to req by redirects.
func first(req *http.Request) *http.Request {
	for req.Response != nil && req.Response.Request != nil {
		req = req.Response.Request
	}
	return req
}

// configured reports whether u is on a host of the registry.
func (g guard) configured(u *url.URL) bool {
	return slices.ContainsFunc(g.hosts, func(h docker.RegistryHost) bool { return h.Scheme == u.Scheme && h.Host == u.Host })
}

// betrays reports whether a request would send the login over plain http, although the registry is
// reached by https. A POST is a request for a token, with the login in its body.
func (g guard) betrays(req *http.Request) bool {
	if req.URL.Scheme != "http" || g.plain || g.login == (Login{}) {
		return false
	}
	return req.Method == http.MethodPost || req.Header.Get("Authorization") != ""
}

// bounded is a body that fails after some bytes.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("the answer has more than %d bytes", maxToken))
	}
	n, err := b.ReadCloser.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}
