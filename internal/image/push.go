package image

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/registry"
)

// PushOptions are the options of Push.
type PushOptions struct {
	// To is the name at the registry; empty is the image's own.
	To string
	// Username and Password are a login at the registry; without, it is the node's own.
	Username, Password string
	// Pushed, if set, is called with each blob and manifest that the registry has got.
	Pushed func(ocispec.Descriptor)
}

// Push uploads an image to the registry of its name, and returns that name and the digest.
func (s *Store) Push(ctx context.Context, name string, opts PushOptions) (full string, _ digest.Digest, err error) {
	h, err := s.hold(name, "husk image push")
	if err != nil {
		return "", "", err
	}
	defer h.release()
	if opts.To == "" {
		opts.To = name
	}
	named, err := s.index.short.pulled(opts.To)
	if err != nil {
		return "", "", err
	}
	if _, tagged := named.(reference.Tagged); !tagged {
		return "", "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q has no tag to push to: name one", opts.To))
	}
	login, err := s.Logins.or(registry.Login{Username: opts.Username, Password: opts.Password}, named)
	if err != nil {
		return "", "", err
	}
	r, err := registry.New(ctx, s.certsDir, named, login)
	if err != nil {
		return "", "", fmt.Errorf("image %q: %w", opts.To, err)
	}
	defer r.Close()
	var reporting sync.Mutex
	report := func(next images.Handler) images.Handler {
		return images.HandlerFunc(func(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
			children, err := next.Handle(ctx, desc)
			if (err == nil || errors.Is(err, images.ErrStopHandler)) && !images.IsManifestType(desc.MediaType) && opts.Pushed != nil {
				reporting.Lock()
				defer reporting.Unlock()
				opts.Pushed(desc)
			}
			return children, err
		})
	}
	if err := r.Push(s.db.Context(ctx), h.manifest, s.db.Content, report); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("push interrupted: %w", ctx.Err())
		}
		return "", "", fmt.Errorf("image %q: %w", opts.To, r.Explain(err))
	}
	return named.String(), h.manifest.Digest, nil
}
