package image

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/access"
)

// Detail is an image with its documents.
type Detail struct {
	Image
	// Manifest describes the manifest, and Layers its layers, lowest first.
	Manifest ocispec.Descriptor
	Layers   []ocispec.Descriptor
	Document ocispec.Image // its config
}

// Detail reads the manifest and the config of an image.
func (s *Store) Detail(ctx context.Context, name string) (d Detail, err error) {
	h, err := s.hold(name, "husk image inspect")
	if err != nil {
		return d, err
	}
	defer h.release()
	d.Image, d.Manifest = h.image(), h.manifest
	var m ocispec.Manifest
	if err := s.readJSON(ctx, h.manifest, &m); err != nil {
		return d, fmt.Errorf("image %q: %w", name, err)
	}
	d.Layers = m.Layers
	if err := s.readJSON(ctx, m.Config, &d.Document); err != nil {
		return d, fmt.Errorf("image %q: %w", name, err)
	}
	return d, nil
}

func (s *Store) readJSON(ctx context.Context, desc ocispec.Descriptor, into any) error {
	raw, err := content.ReadBlob(s.db.Context(ctx), s.db.Content, desc)
	if err != nil {
		return fmt.Errorf("read %s: %w", desc.Digest, err)
	}
	return json.Unmarshal(raw, into)
}

// held is an image that isn't removed before release.
type held struct {
	*entry
	release func()
}

// hold finds an image and keeps it until the end of what is done with it.
func (s *Store) hold(name, holder string) (held, error) {
	exit, err := s.enter()
	if err != nil {
		return held{}, err
	}
	s.index.mu.RLock()
	e, _, err := s.index.find(name)
	s.index.mu.RUnlock()
	if err != nil {
		exit()
		return held{}, err
	}
	release, err := s.Hold(e.id, holder)
	if err != nil { // it was removed since
		exit()
		return held{}, err
	}
	return held{e, func() {
		release()
		exit()
	}}, nil
}

// Tag gives an image another name, in its full form. If another image had that name, it loses it,
// and its ID is returned as former.
func (s *Store) Tag(ctx context.Context, name, tag string) (img Image, full, former string, err error) {
	named, err := s.index.short.pulled(tag)
	if err != nil {
		return img, "", "", err
	}
	if _, digested := named.(reference.Digested); digested {
		return img, "", "", errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%q has a digest, which can't be given: name a tag", tag))
	}
	h, err := s.hold(name, "husk image tag")
	if err != nil {
		return img, "", "", err
	}
	defer h.release()
	full = named.String()
	s.index.mu.RLock()
	former = s.index.names[full]
	s.index.mu.RUnlock()
	if former == h.id {
		former = ""
	}
	op, err := s.db.Begin(ctx)
	if err != nil {
		return img, "", "", fmt.Errorf("image %q: %w", tag, s.explainDiskFull(err))
	}
	if _, err := s.commit(op, namedEntry{h.entry, []string{full}, access.Grants{preloaded(full)}}); err != nil {
		return img, "", "", fmt.Errorf("image %q: %w", tag, s.abort(op, s.explainDiskFull(err)))
	}
	return s.index.image(h.id), full, former, nil
}
