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

// maxIndexDepth bounds the nesting of indexes.
const maxIndexDepth = 3

// maxLayers is the maximum number of layers of an overlay (OVL_MAX_STACK). Each layer
// also costs time that grows with the number of those below it.
const maxLayers = 500

var errTooDeep = errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its indexes are nested more than %d deep", maxIndexDepth))

// manifest is a manifest with its config and layers.
type manifest struct {
	ocispec.Manifest
	desc   ocispec.Descriptor
	config ocispec.Image
	layers []*imageLayer // lowest first
}

// imageLayer is a layer of an image that is being pulled or loaded.
type imageLayer struct {
	blob     ocispec.Descriptor
	diffID   digest.Digest // of the uncompressed archive
	chainID  digest.Digest // of this layer and those below it
	progress *layerTracker
	fetched  chan struct{} // closed when the blob is stored
	holder   *holder       // who pulls it
	found    bool          // the blob was there: others have stored it
}

// document is what an image's name resolves to: either an index or a manifest.
type document struct {
	index    []ocispec.Descriptor
	manifest *manifest
}

// parseDocument parses an index or a manifest. It tells them apart by their
// fields, because the media type may be missing or wrong.
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
		return fail("has the obsolete schema 1: push the image again with a newer tool")
	case fields.Manifests != nil && (fields.Config != nil || fields.Layers != nil):
		return fail("is both an index and a manifest")
	case fields.Manifests != nil:
		return document{index: fields.Manifests}, nil
	case fields.Config == nil:
		return fail("is neither a manifest nor an index")
	case !images.IsConfigType(fields.Config.MediaType):
		return fail("is not for a container image, but for %q", fields.Config.MediaType)
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
	var matching, unspecified []ocispec.Descriptor
	var others []string
	for _, d := range index {
		switch {
		case d.Platform == nil:
			unspecified = append(unspecified, d)
		case matcher.Match(*d.Platform):
			matching = append(matching, d)
		case d.Platform.OS != "unknown": // as in attestations
			others = append(others, platforms.Format(*d.Platform))
		}
	}
	slices.SortStableFunc(matching, func(a, b ocispec.Descriptor) int {
		switch {
		case matcher.Less(*a.Platform, *b.Platform):
			return -1
		case matcher.Less(*b.Platform, *a.Platform):
			return 1
		}
		return 0
	})
	// An entry without a platform may match: its config tells.
	if matching = append(matching, unspecified...); len(matching) > 0 {
		return matching[0], nil
	}
	slices.Sort(others)
	return ocispec.Descriptor{}, platformError{platform, slices.Compact(others)}
}

// platformError means that an image is not available for the wanted platform.
type platformError struct {
	want ocispec.Platform
	has  []string
}

func (e platformError) Error() string {
	what := "and names no platform"
	if len(e.has) > 0 {
		what = "only for " + strings.Join(e.has, ", ")
	}
	return fmt.Sprintf("it is not available for %s, %s: choose another tag or platform", platforms.Format(e.want), what)
}

// NotFound makes it an errdefs.ErrNotFound.
func (platformError) NotFound() {}

// parse parses the config and sets the layers.
func (m *manifest) parse(config []byte, track func(digest.Digest, int64) *layerTracker) error {
	if err := json.Unmarshal(config, &m.config); err != nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its config %s is malformed: %v", m.Config.Digest, err))
	}
	diffIDs := m.config.RootFS.DiffIDs
	if len(m.Layers) != len(diffIDs) {
		return errdefs.ErrInvalidArgument.WithMessage(
			fmt.Sprintf("its manifest has %d layers, but its config %d: rebuild the image", len(m.Layers), len(diffIDs)))
	}
	if len(m.Layers) > maxLayers {
		return errdefs.ErrInvalidArgument.WithMessage(
			fmt.Sprintf("its manifest has %d layers, more than the %d that the kernel can mount: build it with fewer", len(m.Layers), maxLayers))
	}
	for i, blob := range m.Layers {
		if !images.IsLayerType(blob.MediaType) || strings.HasSuffix(blob.MediaType, "encrypted") {
			return errdefs.ErrNotImplemented.WithMessage(fmt.Sprintf("layer %s has the unsupported media type %q", blob.Digest, blob.MediaType))
		}
		if err := checkDescriptor(blob); err != nil {
			return fmt.Errorf("layer %d: %w", i+1, err)
		}
		if err := diffIDs[i].Validate(); err != nil {
			return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("layer %s: its uncompressed digest %q is malformed: %v", blob.Digest, diffIDs[i], err))
		}
		m.layers = append(m.layers, &imageLayer{
			blob:     blob,
			diffID:   diffIDs[i],
			chainID:  identity.ChainID(diffIDs[:i+1]),
			progress: track(blob.Digest, blob.Size),
			fetched:  make(chan struct{}),
		})
	}
	return nil
}

// runsOn returns an error if the image's config names another platform. Configs of
// hand-made images may name none.
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

// checkDescriptor returns an error if no blob can match the descriptor.
func checkDescriptor(desc ocispec.Descriptor) error {
	if err := desc.Digest.Validate(); err != nil {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("digest %q is malformed: %v", desc.Digest, err))
	}
	if desc.Size <= 0 {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s has an invalid size of %d bytes", desc.Digest, desc.Size))
	}
	return nil
}
