package image

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/registry"
)

// maxDocument is the largest size in bytes of a manifest, index or config.
const maxDocument = 8 << 20

// errCorrupt means that downloaded data doesn't match its digest.
var errCorrupt = errdefs.ErrDataLoss.WithMessage("does not match its digest: the registry or a proxy in between corrupts it")

// document returns a manifest, an index or a config. It reads the database
// first, if the holder may use what that has, then the registry from, unless that
// is nil. It stores nothing.
func (u *unpacker) document(ctx context.Context, from *registry.Registry, desc ocispec.Descriptor, h *holder) ([]byte, error) {
	if err := checkDescriptor(desc); err != nil {
		return nil, err
	}
	if desc.Size > maxDocument {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s has %d bytes, more than the %d allowed for a manifest or config", desc.Digest, desc.Size, maxDocument))
	}
	var raw []byte
	var err error
	if h.may(desc.Digest) {
		raw, err = content.ReadBlob(ctx, u.db.Content, desc)
		if err == nil || !errdefs.IsNotFound(err) || from == nil {
			return raw, err
		}
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
		return nil, fmt.Errorf("%s: %w", desc.Digest, explainMissing(err))
	}
	h.got(desc.Digest)
	return raw, nil
}

// store stores a document.
func (u *unpacker) store(ctx context.Context, desc ocispec.Descriptor, raw []byte) error {
	unlock, err := u.locks.Lock(ctx, desc.Digest.String())
	if err != nil {
		return err
	}
	defer unlock()
	desc.Size = int64(len(raw))
	return content.WriteBlob(ctx, u.db.Content, ingestRef(desc), bytes.NewReader(raw), desc)
}

// fetch stores a layer's blob if it is missing, and makes sure that the layer's holder could have
// downloaded it. It resumes an interrupted download. It waits for no download from another
// registry, which may take for ever.
func (u *unpacker) fetch(ctx context.Context, from *registry.Registry, l *imageLayer) error {
	l.progress.source = from.Name()
	l.progress.following.Store(true)
	unlock, err := u.locks.Lock(ctx, l.progress.key())
	l.progress.following.Store(false)
	if err != nil {
		return err
	}
	defer unlock()
	defer l.progress.lead()()
	l.progress.enter(Downloading)
	err = registry.Retry(ctx, func() (bool, error) {
		before := l.progress.done.Load()
		err := u.fetchOnce(ctx, from, l)
		if errors.Is(err, errCorrupt) {
			// The resumed part may be the corrupt one. Retry once from the start.
			err = u.fetchOnce(ctx, from, l)
		}
		return l.progress.done.Load() > before, err
	})
	if err == nil && l.found && !l.holder.may(l.blob.Digest) {
		err = prove(ctx, from, l)
	}
	if err != nil {
		return explainMissing(err)
	}
	l.holder.got(l.blob.Digest)
	l.progress.enter(Downloaded)
	return nil
}

// explainMissing explains the error for a blob that the registry doesn't have.
func explainMissing(err error) error {
	if errdefs.IsNotFound(err) {
		return errdefs.ErrNotFound.WithMessage("the registry lists it but doesn't have it: push the image again")
	}
	return err
}

// fetchOnce makes one attempt. It deletes the partial download if that can't
// be resumed.
func (u *unpacker) fetchOnce(ctx context.Context, from *registry.Registry, l *imageLayer) (err error) {
	desc := l.blob
	// A part that one registry has sent isn't completed by another one, which may not have it.
	w, err := u.db.Content.Writer(ctx, content.WithRef(ingestRef(desc)+"-"+from.Name()), content.WithDescriptor(desc))
	if l.found = errdefs.IsAlreadyExists(err); l.found {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() {
		if err != nil && !registry.Transient(err) && ctx.Err() == nil {
			_ = w.Truncate(0) // immediately, as the disk may be full
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
	case errdefs.IsAlreadyExists(err): // from another registry, meanwhile
		l.found = desc.Digest.Algorithm() != digest.Canonical // was not compared above
		return nil
	case errdefs.IsFailedPrecondition(err):
		return errCorrupt
	}
	return err
}

// download writes a layer's blob to w, starting at offset.
func download(ctx context.Context, from *registry.Registry, l *imageLayer, w io.Writer, offset int64) error {
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
	// One extra byte reveals a blob that is too long.
	_, err = io.Copy(w, io.LimitReader(counted, l.blob.Size-offset+1))
	switch {
	case errdefs.IsFailedPrecondition(err), offset > l.blob.Size: // too long, as seen by the writer or here
		return errCorrupt
	case registry.BeyondEnd(err), err == nil && offset < l.blob.Size: // too short
		return errCorrupt
	}
	return err
}

func ingestRef(desc ocispec.Descriptor) string { return "blob-" + desc.Digest.String() }
