// Package layer turns the blob of an image's layer into a directory that can
// be a layer of an overlay.
package layer

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"

	"github.com/containerd/containerd/v2/pkg/archive"
	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Extract writes the files of a layer's archive, which blob holds compressed or
// not, into dir. The directories of the layers below it lend their attributes
// to directories that the archive only implies. When there is an error, dir
// holds whatever came before it; the error's words continue "layer X".
func Extract(ctx context.Context, blob io.Reader, diffID digest.Digest, dir string, parents []string) error {
	plain, err := Decompress(blob)
	if err != nil {
		return explain(err)
	}
	defer plain.Close()
	verifier := diffID.Verifier()
	stream := io.TeeReader(plain, verifier)
	links := links{}
	_, err = archive.Apply(ctx, dir, stream,
		archive.WithConvertWhiteout(archive.OverlayConvertWhiteout),
		archive.WithParents(parents),
		archive.WithFilter(func(h *tar.Header) (bool, error) { return true, links.check(h) }))
	if err == nil {
		_, err = io.Copy(io.Discard, stream) // an archive may be padded
	}
	if err != nil {
		return explain(err)
	}
	if !verifier.Verified() {
		return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("is not what the image's config says (%s when uncompressed): build the image again", diffID))
	}
	return nil
}

// explain says in one line what is wrong with a layer's archive.
func explain(err error) error {
	var refused unix.Errno // by the kernel: nothing wrong with the archive
	if errors.As(err, &refused) || errors.Is(err, context.Canceled) || errors.Is(err, errEscape) {
		return fmt.Errorf("can't be unpacked: %w", err)
	}
	return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("is not a tar archive, whole and well-formed (%v): build the image again", err))
}

var errEscape = errdefs.ErrInvalidArgument.WithMessage("an entry leaves the root directory")

// links finds archive entries that would reach a place outside the root
// directory if they were taken at their word. Extraction confines them anyhow;
// but an archive that has them is not meant well.
//
// It holds the symbolic links of this archive, by path, that lead to an
// absolute path or above the root.
type links map[string]string

func (l links) check(h *tar.Header) error {
	name := relative(h.Name)
	if leaves(name) {
		return fmt.Errorf("%w: %q", errEscape, h.Name)
	}
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if target, ok := l[dir]; ok {
			return fmt.Errorf("%w: %q goes through the symbolic link %s -> %s", errEscape, h.Name, dir, target)
		}
	}
	delete(l, name)
	switch h.Typeflag {
	case tar.TypeLink:
		if leaves(relative(h.Linkname)) {
			return fmt.Errorf("%w: %q is a hard link to %q", errEscape, h.Name, h.Linkname)
		}
	case tar.TypeSymlink:
		if path.IsAbs(h.Linkname) || leaves(path.Join(path.Dir(name), h.Linkname)) {
			l[name] = h.Linkname
		}
	}
	return nil
}

// relative returns a path of an archive as one below the root.
func relative(name string) string { return path.Clean(strings.TrimLeft(name, "/")) }

func leaves(name string) bool { return name == ".." || strings.HasPrefix(name, "../") }

// Decompress returns what r holds, by its first bytes and not by what anybody
// says of it: gzip, zstd or itself.
func Decompress(r io.Reader) (io.ReadCloser, error) {
	const bufferSize = 64 << 10
	buffered := bufio.NewReaderSize(r, bufferSize)
	magic, err := buffered.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"): // RFC 1952
		return gzip.NewReader(buffered)
	case string(magic) == "\x28\xb5\x2f\xfd": // RFC 8878
		// One thread and little memory: several layers unpack at once.
		d, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}
