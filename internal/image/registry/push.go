package registry

import (
	"context"
	"errors"
	"net/http"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/remotes"
	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// provider hides what else a store can do: the library would ask the registry to mount blobs from
// where they were pulled.
type provider struct{ content.Provider }

// Push uploads a manifest with its blobs, under the name of the image. wrap gets the handler of
// each of them.
func (r *Registry) Push(ctx context.Context, desc ocispec.Descriptor, from content.Provider, wrap func(images.Handler) images.Handler) error {
	pusher, err := r.resolver.Pusher(ctx, r.image.String())
	if err != nil {
		return err
	}
	return remotes.PushContent(ctx, pusher, desc, provider{from}, nil, platforms.All, wrap)
}

// Check asks the registry whether it accepts the login.
func (r *Registry) Check(ctx context.Context) error {
	host := r.hosts[len(r.hosts)-1] // the registry itself; those before are mirrors
	var answers []*http.Response
	for {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, host.Scheme+"://"+host.Host+host.Path+"/", nil)
		if err != nil {
			return err
		}
		if err := host.Authorizer.Authorize(ctx, req); err != nil {
			return err
		}
		resp, err := host.Client.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		answers = append(answers, resp)
		switch {
		case resp.StatusCode == http.StatusOK:
			return nil
		case resp.StatusCode != http.StatusUnauthorized || len(answers) > 1:
			return remoteerrors.NewUnexpectedStatusErr(resp)
		}
		if err := host.Authorizer.AddResponses(ctx, answers); err != nil {
			return errors.Join(docker.ErrInvalidAuthorization, err)
		}
	}
}
