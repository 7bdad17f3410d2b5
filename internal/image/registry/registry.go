// Package registry is a client of image registries. It resolves names of images,
// fetches blobs, and turns each of the many ways in which that fails into one clear
// line.
package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"

	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/containerd/v2/pkg/reference"
	"github.com/containerd/errdefs"
	distribution "github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Login are credentials for a registry; the zero Login is none.
type Login struct {
	Username string
	// Password without a user name is a refresh token, which is exchanged for access
	// tokens.
	Password string
	// Token is an access token. It is sent as it is.
	Token string
}

// tokenAuthorizer sends a given access token to a host instead of requesting one.
type tokenAuthorizer struct {
	docker.Authorizer
	host, token string
}

// Authorize adds the token to requests to its host.
func (a tokenAuthorizer) Authorize(ctx context.Context, req *http.Request) error {
	if req.URL.Host != a.host {
		return a.Authorizer.Authorize(ctx, req)
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	return nil
}

// AddResponses rejects challenges: there are no other credentials.
func (tokenAuthorizer) AddResponses(context.Context, []*http.Response) error {
	return errdefs.ErrNotImplemented
}

// Registry is a client of the registry of one image, or of its mirrors.
type Registry struct {
	name       string
	certsDir   string
	image      distribution.Named
	login      Login
	hosts      []docker.RegistryHost
	plain      bool // one of the hosts is, or may be, reached by plain http
	transports []*http.Transport
	resolver   remotes.Resolver
	fetcher    remotes.Fetcher
}

// New returns a client of the image's registry, configured by certsDir. It doesn't
// connect.
func New(ctx context.Context, certsDir string, image distribution.Named, login Login) (*Registry, error) {
	r := &Registry{name: distribution.Domain(image), certsDir: certsDir, image: image, login: login}
	options := config.HostOptions{
		Credentials:  r.credentials,
		UpdateClient: r.keepTransport,
	}
	if certsDir != "" {
		options.HostDir = hostDir(certsDir)
	}
	var err error
	if r.hosts, err = config.ConfigureHosts(ctx, options)(r.name); err != nil {
		return nil, err
	}
	r.guardHosts()
	if login.Token != "" {
		for i, h := range r.hosts {
			r.hosts[i].Authorizer = tokenAuthorizer{h.Authorizer, h.Host, login.Token}
		}
	}
	// Resolver and fetcher share the hosts, and so connections and tokens.
	r.resolver = docker.NewResolver(docker.ResolverOptions{
		Hosts:   func(string) ([]docker.RegistryHost, error) { return r.hosts, nil },
		Headers: http.Header{"User-Agent": {"husk"}},
	})
	r.fetcher, err = r.resolver.Fetcher(ctx, image.String())
	return r, err
}

// credentials returns the login for the registry and its mirrors, and none for other
// hosts, such as a server to which a blob is redirected.
func (r *Registry) credentials(host string) (username, secret string, err error) {
	if slices.ContainsFunc(r.hosts, func(h docker.RegistryHost) bool { return h.Host == host }) {
		return r.login.Username, r.login.Password, nil
	}
	return "", "", nil
}

func (r *Registry) keepTransport(client *http.Client) error {
	if t, ok := client.Transport.(*http.Transport); ok {
		confineDials(t)
		r.transports = append(r.transports, t)
	}
	return nil
}

// Close closes idle connections.
func (r *Registry) Close() {
	for _, t := range r.transports {
		t.CloseIdleConnections()
	}
}

// Name returns the registry's name, such as docker.io.
func (r *Registry) Name() string { return r.name }

// Resolve returns the manifest or index that the image's name currently refers to.
func (r *Registry) Resolve(ctx context.Context) (ocispec.Descriptor, error) {
	_, desc, err := r.resolver.Resolve(ctx, r.image.String())
	if errdefs.IsNotFound(err) {
		err = r.missing(ctx, err)
	}
	return desc, err
}

// Fetch returns the content of a blob or manifest of the image's repository.
// The reader is also an io.Seeker, so that a download can be resumed. URLs of the
// descriptor are ignored: an image could name those of services inside the node's network.
func (r *Registry) Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error) {
	desc.URLs = nil
	return r.fetcher.Fetch(ctx, desc)
}

// tags returns some tags of the image's repository for an error message. found is
// false if the repository doesn't exist or can't be listed.
func (r *Registry) tags(ctx context.Context) (tags []string, found bool) {
	const most = 5
	spec, err := reference.Parse(r.image.String())
	if err != nil {
		return nil, false
	}
	if ctx, err = docker.ContextWithRepositoryScope(ctx, spec, false); err != nil {
		return nil, false
	}
	for _, host := range r.hosts {
		url := fmt.Sprintf("%s://%s%s/%s/tags/list?n=%d", host.Scheme, host.Host, host.Path, distribution.Path(r.image), most)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			continue
		}
		if err := host.Authorizer.Authorize(ctx, req); err != nil {
			continue
		}
		resp, err := host.Client.Do(req)
		if err != nil {
			continue
		}
		var list struct{ Tags []string }
		err = json.NewDecoder(io.LimitReader(resp.Body, 1<<20)).Decode(&list)
		_ = resp.Body.Close()
		if err == nil && resp.StatusCode == http.StatusOK {
			return list.Tags[:min(len(list.Tags), most)], true
		}
	}
	return nil, false
}
