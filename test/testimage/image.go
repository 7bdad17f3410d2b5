// Package testimage builds small real OCI images for tests, benchmarks and the demo, from the
// caller's entries or from Debian packages.
package testimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// epoch is the time of everything in an image, so that equal input yields equal digests.
var epoch = time.Unix(1_700_000_000, 0).UTC()

// Compression is the compression of a layer's blob.
type Compression string

// The compressions of the image specification.
const (
	Gzip         Compression = "" // the usual one
	Zstd         Compression = "zstd"
	Uncompressed Compression = "none"
)

// Entry is one entry of a layer's tar archive.
type Entry struct {
	tar.Header
	Body []byte
}

// File returns a regular file.
func File(name string, mode int64, body []byte) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode}, body}
}

// Dir returns a directory.
func Dir(name string, mode int64) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode}, nil}
}

// Symlink returns a symbolic link.
func Symlink(name, target string) Entry {
	return Entry{tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: target, Mode: 0o777}, nil}
}

// Layer is one layer of an image.
type Layer struct {
	Descriptor ocispec.Descriptor
	DiffID     digest.Digest
	Blob       []byte
}

// NewLayer packs entries into a layer.
func NewLayer(c Compression, entries ...Entry) (Layer, error) {
	var plain bytes.Buffer
	w := tar.NewWriter(&plain)
	for _, e := range entries {
		e.Size = int64(len(e.Body))
		e.ModTime = epoch
		if err := w.WriteHeader(&e.Header); err != nil {
			return Layer{}, fmt.Errorf("layer entry %s: %w", e.Name, err)
		}
		if _, err := w.Write(e.Body); err != nil {
			return Layer{}, fmt.Errorf("layer entry %s: %w", e.Name, err)
		}
	}
	if err := w.Close(); err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	return PackLayer(c, plain.Bytes())
}

// PackLayer makes a layer of bytes that should be a tar archive. It doesn't check them.
func PackLayer(c Compression, plain []byte) (Layer, error) {
	blob, mediaType, err := compress(c, plain)
	if err != nil {
		return Layer{}, fmt.Errorf("layer: %w", err)
	}
	return Layer{
		Descriptor: ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))},
		DiffID:     digest.FromBytes(plain),
		Blob:       blob,
	}, nil
}

func compress(c Compression, plain []byte) (blob []byte, mediaType string, err error) {
	var out bytes.Buffer
	var w io.WriteCloser
	switch c {
	case Uncompressed:
		return plain, ocispec.MediaTypeImageLayer, nil
	case Gzip:
		mediaType = ocispec.MediaTypeImageLayerGzip
		w = gzip.NewWriter(&out)
	case Zstd:
		mediaType = ocispec.MediaTypeImageLayerZstd
		if w, err = zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1)); err != nil {
			return nil, "", err
		}
	default:
		return nil, "", fmt.Errorf("compression %q is unknown", c)
	}
	if _, err := w.Write(plain); err != nil {
		return nil, "", err
	}
	if err := w.Close(); err != nil {
		return nil, "", err
	}
	return out.Bytes(), mediaType, nil
}

// Image is a complete image in memory.
type Image struct {
	Config   []byte
	Layers   []Layer
	Manifest []byte
	// Descriptor describes the manifest.
	Descriptor ocispec.Descriptor
}

// New assembles an image for a platform such as {linux amd64}.
func New(platform ocispec.Platform, config ocispec.ImageConfig, layers ...Layer) (*Image, error) {
	img := ocispec.Image{
		Created:  &epoch,
		Platform: platform,
		Config:   config,
		RootFS:   ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{}},
	}
	manifest := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2},
		MediaType: ocispec.MediaTypeImageManifest,
		Layers:    []ocispec.Descriptor{},
	}
	for _, l := range layers {
		img.RootFS.DiffIDs = append(img.RootFS.DiffIDs, l.DiffID)
		manifest.Layers = append(manifest.Layers, l.Descriptor)
	}
	rawConfig, err := json.Marshal(img)
	if err != nil {
		return nil, fmt.Errorf("image config: %w", err)
	}
	manifest.Config = descriptor(ocispec.MediaTypeImageConfig, rawConfig)
	rawManifest, err := json.Marshal(manifest)
	if err != nil {
		return nil, fmt.Errorf("image manifest: %w", err)
	}
	desc := descriptor(ocispec.MediaTypeImageManifest, rawManifest)
	desc.Platform = &platform
	return &Image{Config: rawConfig, Layers: layers, Manifest: rawManifest, Descriptor: desc}, nil
}

// ID returns the digest of the image's config, by which runtimes know the image.
func (i *Image) ID() string { return digest.FromBytes(i.Config).String() }

// Blobs returns the config and the layers by digest, without the manifest.
func (i *Image) Blobs() map[digest.Digest][]byte {
	blobs := map[digest.Digest][]byte{digest.FromBytes(i.Config): i.Config}
	for _, l := range i.Layers {
		blobs[l.Descriptor.Digest] = l.Blob
	}
	return blobs
}

// Index returns an index of images, one per platform.
func Index(images ...*Image) ([]byte, error) {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, img := range images {
		index.Manifests = append(index.Manifests, img.Descriptor)
	}
	raw, err := json.Marshal(index)
	if err != nil {
		return nil, fmt.Errorf("image index: %w", err)
	}
	return raw, nil
}

func descriptor(mediaType string, blob []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(blob), Size: int64(len(blob))}
}
