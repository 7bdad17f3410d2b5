// Command image writes an archive of the container image of huskd, for the pod network of nodes
// that keep their runtime: see packaging/kubernetes. docker, podman, ctr and husk can load it.
//
// Usage: image NAME ARCH STAGED ARCHIVE. STAGED is where make install has put files with
// PREFIX=/usr. Times are SOURCE_DATE_EPOCH.
package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// programs are all files of the image. huskd needs no other program for the network, and runs no
// pods from a container: their monitors would end with it.
var programs = []string{"usr/bin/huskd", "usr/bin/husk", "usr/bin/husk-bgp", "usr/bin/husk-wireguard", "opt/cni/bin/husk-cni"}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: image NAME ARCH STAGED ARCHIVE")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3], os.Args[4]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func write(ref, arch, staged, archive string) error {
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	layer, err := layerOf(staged, time.Unix(seconds, 0))
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, static.NewLayer(layer, types.DockerUncompressedLayer))
	if err != nil {
		return err
	}
	file, err := image.ConfigFile()
	if err != nil {
		return err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created = "linux", arch, v1.Time{Time: time.Unix(seconds, 0).UTC()}
	file.Config = v1.Config{Entrypoint: []string{"/usr/bin/huskd"}, Env: []string{"PATH=/usr/bin"}}
	if image, err = mutate.ConfigFile(image, file); err != nil {
		return err
	}
	return tarball.WriteToFile(archive, tag, image)
}

func layerOf(staged string, when time.Time) ([]byte, error) {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, path := range programs {
		body, err := os.ReadFile(filepath.Join(staged, path))
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o755, Size: int64(len(body)), ModTime: when, Format: tar.FormatPAX}); err != nil {
			return nil, err
		}
		if _, err := w.Write(body); err != nil {
			return nil, err
		}
	}
	return out.Bytes(), w.Close()
}
