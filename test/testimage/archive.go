package testimage

import (
	"archive/tar"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// imageName is the annotation with an image's full name in archives.
const imageName = "io.containerd.image.name"

// Named is an image and its names in an archive.
type Named struct {
	*Image
	Names []string
}

// WriteArchive writes images as an OCI image layout in a tar archive.
func WriteArchive(w io.Writer, images ...Named) error {
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	files := map[string][]byte{ocispec.ImageLayoutFile: []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	for _, img := range images {
		files[blobPath(img.Descriptor.Digest)] = img.Manifest
		for d, blob := range img.Blobs() {
			files[blobPath(d)] = blob
		}
		if len(img.Names) == 0 {
			index.Manifests = append(index.Manifests, img.Descriptor)
		}
		for _, name := range img.Names {
			desc := img.Descriptor
			desc.Annotations = map[string]string{imageName: name, ocispec.AnnotationRefName: tagOf(name)}
			index.Manifests = append(index.Manifests, desc)
		}
	}
	raw, err := json.Marshal(index)
	if err != nil {
		return fmt.Errorf("archive index: %w", err)
	}
	files[ocispec.ImageIndexFile] = raw
	return writeTar(w, files)
}

// WriteDockerArchive writes images as `docker save` does.
func WriteDockerArchive(w io.Writer, images ...Named) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	var manifest []entry
	files := map[string][]byte{}
	for _, img := range images {
		e := entry{Config: digest.FromBytes(img.Config).Encoded() + ".json", RepoTags: img.Names}
		files[e.Config] = img.Config
		for _, l := range img.Layers {
			name := l.Descriptor.Digest.Encoded() + "/layer.tar"
			files[name] = l.Blob
			e.Layers = append(e.Layers, name)
		}
		manifest = append(manifest, e)
	}
	raw, err := json.Marshal(manifest)
	if err != nil {
		return fmt.Errorf("archive manifest: %w", err)
	}
	files["manifest.json"] = raw
	return writeTar(w, files)
}

func writeTar(w io.Writer, files map[string][]byte) error {
	names := make([]string, 0, len(files))
	for name := range files {
		names = append(names, name)
	}
	slices.Sort(names)
	tw := tar.NewWriter(w)
	for _, name := range names {
		h := tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(files[name])), ModTime: epoch}
		if err := tw.WriteHeader(&h); err != nil {
			return fmt.Errorf("archive file %s: %w", name, err)
		}
		if _, err := tw.Write(files[name]); err != nil {
			return fmt.Errorf("archive file %s: %w", name, err)
		}
	}
	if err := tw.Close(); err != nil {
		return fmt.Errorf("archive: %w", err)
	}
	return nil
}

func blobPath(d digest.Digest) string { return "blobs/" + d.Algorithm().String() + "/" + d.Encoded() }

// tagOf returns what follows the last colon of an image's name.
func tagOf(name string) string { return name[strings.LastIndexByte(name, ':')+1:] }
