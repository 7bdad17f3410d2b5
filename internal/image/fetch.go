package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/database"
	layers "github.com/huskd/husk/internal/image/layer"
	"github.com/huskd/husk/internal/image/registry"
	"github.com/huskd/husk/internal/keylock"
)

// maxDocument is the size of the largest manifest or config that is read.
const maxDocument = 8 << 20

// errCorrupt says that a download isn't what its digest says.
var errCorrupt = errdefs.ErrDataLoss.WithMessage("is not what its digest says: the registry or something on the way to it is broken")

// source is where blobs come from that aren't here.
type source interface {
	// Fetch returns a blob's content. The reader is an io.Seeker.
	Fetch(ctx context.Context, desc ocispec.Descriptor) (io.ReadCloser, error)
}

// assembler makes blobs and layers be here. The contexts that it takes are of
// operations on the database. Several of them may want the same blob or layer:
// one makes it, the others wait.
type assembler struct {
	db      *database.DB
	root    string
	locks   keylock.Locks
	leaders sync.Map // see tracker
}

// document returns a manifest, an index or a config: from the database if it is
// there, else from a source, if there is one. It keeps nothing.
func (a *assembler) document(ctx context.Context, from source, desc ocispec.Descriptor) ([]byte, error) {
	if err := checkDescriptor(desc); err != nil {
		return nil, err
	}
	if desc.Size > maxDocument {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s has %d bytes, more than the %d that a manifest or config may have", desc.Digest, desc.Size, maxDocument))
	}
	raw, err := content.ReadBlob(ctx, a.db.Content, desc)
	if err == nil || !errdefs.IsNotFound(err) || from == nil {
		return raw, err
	}
	err = registry.Retry(ctx, func() (bool, error) {
		body, err := from.Fetch(ctx, desc)
		if err != nil {
			return false, err
		}
		defer body.Close()
		raw, err = io.ReadAll(io.LimitReader(body, desc.Size+1))
		if err == nil && int64(len(raw)) < desc.Size {
			err = io.ErrUnexpectedEOF
		}
		return false, err
	})
	if errdefs.IsFailedPrecondition(err) || err == nil && desc.Digest.Algorithm().FromBytes(raw) != desc.Digest {
		return nil, fmt.Errorf("%s %w", desc.Digest, errCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", desc.Digest, lacking(err))
	}
	return raw, nil
}

// keep stores a document.
func (a *assembler) keep(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	unlock, err := a.locks.Lock(ctx, desc.Digest.String())
	if err != nil {
		return err
	}
	defer unlock()
	desc.Size = int64(len(raw))
	return content.WriteBlob(ctx, a.db.Content, ingestRef(desc), bytes.NewReader(raw), desc)
}

// fetch stores a layer's blob, if it isn't there, going on where an earlier
// attempt was cut.
func (a *assembler) fetch(ctx context.Context, from source, l *layer) error {
	l.progress.following.Store(true)
	unlock, err := a.locks.Lock(ctx, l.blob.Digest.String())
	l.progress.following.Store(false)
	if err != nil {
		return err
	}
	defer unlock()
	defer l.progress.lead()()
	l.progress.enter(Downloading)
	err = registry.Retry(ctx, func() (bool, error) {
		before := l.progress.done.Load()
		err := a.fetchOnce(ctx, from, l)
		if errors.Is(err, errCorrupt) {
			// What was there from before may be what is wrong: once more, whole.
			err = a.fetchOnce(ctx, from, l)
		}
		return l.progress.done.Load() > before, err
	})
	if err != nil {
		return lacking(err)
	}
	l.progress.enter(Downloaded)
	return nil
}

// lacking says what it means that a source doesn't have a blob.
func lacking(err error) error {
	if errdefs.IsNotFound(err) {
		return errdefs.ErrNotFound.WithMessage("the registry names it but doesn't have it: push the image again")
	}
	return err
}

// fetchOnce makes one attempt. Nothing stays of one that can't be gone on with.
func (a *assembler) fetchOnce(ctx context.Context, from source, l *layer) (err error) {
	desc := l.blob
	w, err := a.db.Content.Writer(ctx, content.WithRef(ingestRef(desc)), content.WithDescriptor(desc))
	if errdefs.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && !registry.Transient(err) && ctx.Err() == nil {
			_ = w.Truncate(0) // at once: the disk may be full
		}
		_ = w.Close()
	}()
	status, err := w.Status()
	if err != nil {
		return err
	}
	offset := status.Offset
	if offset > desc.Size {
		return errCorrupt
	}
	l.progress.at(offset)
	if offset < desc.Size {
		if err := download(ctx, from, l, w, offset); err != nil {
			return err
		}
	}
	if desc.Digest.Algorithm() == digest.Canonical && w.Digest() != desc.Digest {
		return errCorrupt
	}
	err = w.Commit(ctx, desc.Size, desc.Digest)
	switch {
	case errdefs.IsAlreadyExists(err):
		return nil
	case errdefs.IsFailedPrecondition(err):
		return errCorrupt
	}
	return err
}

// download writes the rest of a layer's blob, which begins at offset, to w.
func download(ctx context.Context, from source, l *layer, w io.Writer, offset int64) error {
	body, err := from.Fetch(ctx, l.blob)
	if err != nil {
		return err
	}
	defer body.Close()
	if offset > 0 {
		seeker, ok := body.(io.Seeker)
		if !ok {
			return errdefs.ErrNotImplemented.WithMessage("the download can't be resumed")
		}
		if _, err := seeker.Seek(offset, io.SeekStart); err != nil {
			return err
		}
	}
	counted := readerFunc(func(p []byte) (int, error) {
		n, err := body.Read(p)
		offset += int64(n)
		l.progress.at(min(offset, l.blob.Size))
		return n, err
	})
	// One byte more than there should be tells a blob that is too long.
	_, err = io.Copy(w, io.LimitReader(counted, l.blob.Size-offset+1))
	switch {
	case errdefs.IsFailedPrecondition(err), offset > l.blob.Size: // too long, whoever sees it first
		return errCorrupt
	case registry.BeyondEnd(err), err == nil && offset < l.blob.Size: // too short
		return errCorrupt
	}
	return err
}

func ingestRef(desc ocispec.Descriptor) string { return "blob-" + desc.Digest.String() }

// unpacked returns how many of the lowest layers are unpacked already, and
// makes the operation keep them.
func (a *assembler) unpacked(ctx context.Context, list []*layer) (int, error) {
	for n := len(list); n > 0; n-- {
		if kept, err := a.db.Layers.Keep(ctx, list[n-1].chainID); kept || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// unpack unpacks a layer, whose blob must be here, on top of its parent, which
// must be unpacked; the lowest layer's parent is empty.
func (a *assembler) unpack(ctx context.Context, l *layer, parent digest.Digest) error {
	unlock, err := a.locks.Lock(ctx, "unpack "+l.chainID.String())
	if err != nil {
		return err
	}
	defer unlock()
	l.progress.enter(Unpacking)
	err = a.db.Layers.Add(ctx, l.chainID, parent, func(dir string, below []string) error {
		blob, err := a.db.Content.ReaderAt(ctx, l.blob)
		if err != nil {
			return err
		}
		defer blob.Close()
		return layers.Extract(ctx, l.progress.reader(content.NewReader(blob)), l.diffID, dir, below)
	})
	if err != nil {
		return fmt.Errorf("layer %s %w", l.blob.Digest, err)
	}
	l.progress.enter(Unpacked)
	return nil
}

// describe returns the entry of an image whose layers are unpacked.
func (a *assembler) describe(ctx context.Context, m *manifest) (*entry, error) {
	e := &entry{
		id:       m.Config.Digest.String(),
		manifest: m.desc,
		platform: platforms.Normalize(m.config.Platform),
		config:   m.config.Config,
		size:     m.desc.Size + m.Config.Size,
		blobs:    []digest.Digest{m.Config.Digest},
	}
	if m.config.Created != nil {
		e.created = *m.config.Created
	}
	for _, l := range m.Layers {
		e.size += l.Size
		e.blobs = append(e.blobs, l.Digest)
	}
	var err error
	if len(m.layers) == 0 {
		// An overlay needs a lower directory.
		dir := filepath.Join(a.root, "empty")
		e.lower = []string{dir}
		return e, os.MkdirAll(dir, 0o755)
	}
	e.layers, err = a.db.Layers.Stack(ctx, m.layers[len(m.layers)-1].chainID)
	e.lower = database.Dirs(e.layers)
	return e, err
}
