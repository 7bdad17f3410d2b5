package image

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// maxIndexDepth bounds how deep indexes lie in indexes.
const maxIndexDepth = 3

var errTooDeep = errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its indexes lie more than %d deep", maxIndexDepth))

// manifest is a manifest with its config and layers.
type manifest struct {
	ocispec.Manifest
	desc   ocispec.Descriptor
	config ocispec.Image
	layers []*layer // lowest first
}

// layer is one layer of an image on its way from a blob to a directory.
type layer struct {
	blob     ocispec.Descriptor
	diffID   digest.Digest // of the archive, uncompressed
	chainID  digest.Digest // of the archive on top of those below it
	progress *layerTracker
	fetched  chan struct{} // closed when the blob is here
}

// document is what a registry or an archive has under an image's name: one of
// the two.
type document struct {
	index    []ocispec.Descriptor
	manifest *manifest
}

// parseDocument finds out what a document is: by its fields, because its media
// type may be missing or wrong.
func parseDocument(desc ocispec.Descriptor, raw []byte) (document, error) {
	var fields struct {
		SchemaVersion int
		MediaType     string
		Manifests     []ocispec.Descriptor
		Config        *ocispec.Descriptor
		Layers        []ocispec.Descriptor
	}
	fail := func(format string, args ...any) (document, error) {
		return document{}, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its manifest %s %s", desc.Digest, fmt.Sprintf(format, args...)))
	}
	if err := json.Unmarshal(raw, &fields); err != nil {
		return fail("is malformed: %v", err)
	}
	switch {
	case fields.SchemaVersion == 1:
		return fail("is of the old schema 1: push the image again with a newer tool")
	case fields.Manifests != nil && (fields.Config != nil || fields.Layers != nil):
		return fail("is an index and a manifest at once")
	case fields.Manifests != nil:
		return document{index: fields.Manifests}, nil
	case fields.Config == nil:
		return fail("is neither a manifest nor an index")
	case !images.IsConfigType(fields.Config.MediaType):
		return fail("is not of a container image, but of %q", fields.Config.MediaType)
	}
	if fields.MediaType != "" {
		desc.MediaType = fields.MediaType
	}
	m := &manifest{desc: ocispec.Descriptor{MediaType: desc.MediaType, Digest: desc.Digest, Size: int64(len(raw))}}
	m.Config, m.Layers = *fields.Config, fields.Layers
	return document{manifest: m}, nil
}

// choose returns the best entry of an index for a platform.
func choose(index []ocispec.Descriptor, platform ocispec.Platform) (ocispec.Descriptor, error) {
	matcher := platforms.Only(platform)
	var fit, unsaid []ocispec.Descriptor
	var others []string
	for _, d := range index {
		switch {
		case d.Platform == nil:
			unsaid = append(unsaid, d)
		case matcher.Match(*d.Platform):
			fit = append(fit, d)
		case d.Platform.OS != "unknown": // as attestations have it
			others = append(others, platforms.Format(*d.Platform))
		}
	}
	slices.SortStableFunc(fit, func(a, b ocispec.Descriptor) int {
		switch {
		case matcher.Less(*a.Platform, *b.Platform):
			return -1
		case matcher.Less(*b.Platform, *a.Platform):
			return 1
		}
		return 0
	})
	// One that doesn't say may fit: its config tells.
	if fit = append(fit, unsaid...); len(fit) > 0 {
		return fit[0], nil
	}
	slices.Sort(others)
	return ocispec.Descriptor{}, platformError{platform, slices.Compact(others)}
}

// platformError says that an image has only others than the platform that is
// asked for.
type platformError struct {
	want ocispec.Platform
	has  []string
}

func (e platformError) Error() string {
	what := "and names no platform at all"
	if len(e.has) > 0 {
		what = "only for " + strings.Join(e.has, ", ")
	}
	return fmt.Sprintf("it is not for %s, %s: ask for another tag or platform", platforms.Format(e.want), what)
}

// NotFound makes it of that kind for errdefs.
func (platformError) NotFound() {}

// parse understands a manifest's config and what its layers are.
func (m *manifest) parse(config []byte, track func(digest.Digest, int64) *layerTracker) error {
	if err := json.Unmarshal(config, &m.config); err != nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its config %s is malformed: %v", m.Config.Digest, err))
	}
	diffIDs := m.config.RootFS.DiffIDs
	if len(m.Layers) != len(diffIDs) {
		return errdefs.ErrInvalidArgument.WithMessage(
			fmt.Sprintf("its manifest has %d layers, but its config %d: build the image again", len(m.Layers), len(diffIDs)))
	}
	for i, blob := range m.Layers {
		if !images.IsLayerType(blob.MediaType) || strings.HasSuffix(blob.MediaType, "encrypted") {
			return errdefs.ErrNotImplemented.WithMessage(fmt.Sprintf("layer %s is of type %q, which can't be unpacked", blob.Digest, blob.MediaType))
		}
		if err := checkDescriptor(blob); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
		if err := diffIDs[i].Validate(); err != nil {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("layer %s: its uncompressed digest %q is malformed: %v", blob.Digest, diffIDs[i], err))
		}
		m.layers = append(m.layers, &layer{
			blob:     blob,
			diffID:   diffIDs[i],
			chainID:  identity.ChainID(diffIDs[:i+1]),
			progress: track(blob.Digest, blob.Size),
			fetched:  make(chan struct{}),
		})
	}
	return nil
}

// runsOn returns an error if the image's config names another platform. Images
// made by hand may name none.
func (m *manifest) runsOn(platform ocispec.Platform) error {
	p := m.config.Platform
	if p.OS == "" || p.Architecture == "" || platforms.Only(platform).Match(p) {
		return nil
	}
	return platformError{platform, []string{platforms.Format(p)}}
}

func (m *manifest) trackers() []*layerTracker {
	var list []*layerTracker
	for _, l := range m.layers {
		list = append(list, l.progress)
	}
	return list
}

// checkDescriptor returns an error if a blob is described in a way that no blob
// can be.
func checkDescriptor(desc ocispec.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("digest %q is malformed: %v", desc.Digest, err))
	}
	if desc.Size <= 0 {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s is said to have %d bytes", desc.Digest, desc.Size))
	}
	return nil
}
