// Package layer unpacks the blob of an image layer into a directory that can be a
// layer of an overlay.
package layer

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"
)

// Extract unpacks a layer's tar archive, compressed or not, into dir, which is empty and in which
// nothing else writes. It needs none of the layers below: Inherit does the rest when they exist.
// On error, dir holds the files unpacked so far. The error is worded to follow "layer X".
func Extract(ctx context.Context, blob io.Reader, diffID digest.Digest, dir string) (Implied, error) {
	plain, err := Decompress(blob)
	if err != nil {
		return nil, explain(err)
	}
	defer plain.Close()
	verifier := diffID.Verifier()
	stream := io.TeeReader(plain, verifier)
	implied, err := apply(ctx, stream, dir)
	if err == nil {
		_, err = io.Copy(io.Discard, stream) // the archive may be padded
	}
	if err != nil {
		return nil, explain(err)
	}
	return implied, verified(verifier, diffID)
}

// Check checks that a layer's archive, compressed or not, is the one that a diff ID names. The
// error is worded to follow "layer X".
func Check(blob io.Reader, diffID digest.Digest) error {
	plain, err := Decompress(blob)
	if err != nil {
		return explain(err)
	}
	defer plain.Close()
	verifier := diffID.Verifier()
	if _, err := io.Copy(verifier, plain); err != nil {
		return explain(err)
	}
	return verified(verifier, diffID)
}

func verified(v digest.Verifier, diffID digest.Digest) error {
	if !v.Verified() {
		return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("does not match the diff ID %s in the image's config: rebuild the image", diffID))
	}
	return nil
}

// apply unpacks a tar archive into dir.
func apply(ctx context.Context, archive io.Reader, dir string) (Implied, error) {
	t, err := openTree(dir)
	if err != nil {
		return nil, err
	}
	defer t.close()
	r, e := tar.NewReader(archive), entries{links: map[string]string{}}
	for {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return t.implied, t.finish()
		}
		if err != nil {
			return nil, err
		}
		if err := e.check(h); err != nil {
			return nil, err
		}
		if err := t.add(h, r); err != nil {
			return nil, fmt.Errorf("%q: %w", h.Name, err)
		}
		if e.held+int64(len(t.implied))*heldPath > maxHeld {
			return nil, errTooMany
		}
	}
}

// explain explains in one line what is wrong with a layer's archive.
func explain(err error) error {
	var errno unix.Errno // from the kernel: the archive isn't at fault
	if errors.As(err, &errno) || errors.Is(err, context.Canceled) || errors.Is(err, errEscape) || errors.Is(err, errTooMany) {
		return fmt.Errorf("can't be unpacked: %w", err)
	}
	return errdefs.ErrDataLoss.WithMessage(fmt.Sprintf("is not a valid tar archive (%v): rebuild the image", err))
}

var errEscape = errdefs.ErrInvalidArgument.WithMessage("an entry leaves the root directory")

// maxHeld bounds the memory in bytes that the headers of an archive take while it is
// unpacked. It is enough for a million files. Without it, a small compressed archive of
// headers could fill any memory.
const maxHeld = 256 << 20

var errTooMany = errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its file names and attributes exceed %d MiB", maxHeld>>20))

// entries checks the entries of an archive.
type entries struct {
	// links are the targets of the archive's symbolic links that are absolute or lead
	// above the root, by path.
	links map[string]string
	// held is how much memory the headers so far take, in bytes.
	held int64
}

// check refuses entries whose paths lead outside the root directory: extraction confines
// such entries anyway, but an archive that has them is malicious.
func (e *entries) check(h *tar.Header) error {
	if e.held += hold(h); e.held > maxHeld {
		return errTooMany
	}
	l := e.links
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

// About how much memory a path and a header take, in bytes.
const heldPath, heldHeader = 100, 500

// hold returns how much memory extraction keeps for a header, in bytes: the path, and the
// whole header of a directory. It drops those attributes that extraction ignores.
func hold(h *tar.Header) int64 {
	maps.DeleteFunc(h.PAXRecords, func(key, _ string) bool { return !strings.HasPrefix(key, xattrPrefix) })
	n := heldPath + len(h.Name) + len(h.Linkname)
	if h.Typeflag == tar.TypeDir {
		n += heldHeader
		for key, value := range h.PAXRecords {
			n += len(key) + len(value)
		}
	}
	return int64(n)
}

// relative returns a path in an archive, relative to the root.
func relative(name string) string {
	return path.Clean(strings.TrimLeft(path.Clean(name), "/"))
}

func leaves(name string) bool { return name == ".." || strings.HasPrefix(name, "../") }

// maxWindow is the memory in bytes that decompression may take. It is what zstd's own
// program accepts; the format allows almost 4 TiB (RFC 8878, section 3.1.1.1.2).
const maxWindow = 128 << 20

// Decompress returns the decompressed content of r. It detects gzip and zstd by
// their magic numbers and returns anything else as it is.
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
		// One thread and little memory, because several layers are unpacked concurrently.
		d, err := zstd.NewReader(buffered, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, err
		}
		return d.IOReadCloser(), nil
	}
	return io.NopCloser(buffered), nil
}
