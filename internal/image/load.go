package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/layer"
)

// Load stores and unpacks the images of an archive, all or none. The archive is a
// tar file, compressed or not, of an OCI image layout or from docker save. Images
// without a name are kept under their ID. progress, if not nil, is called about
// ten times a second while the load advances.
func (s *Store) Load(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	exit, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer exit()
	// One load at a time: containerd's archive reader stores blobs under their file names.
	unlock, err := s.unpacker.locks.Lock(ctx, "load")
	if err != nil {
		return nil, fmt.Errorf("image archive: %w", err)
	}
	defer unlock()
	ctx, cancel := s.merge(ctx)
	defer cancel()
	op, err := s.db.Begin(ctx)
	if err != nil {
		return nil, s.explainLoad(ctx, err)
	}
	l := &loader{Store: s, op: op, tracker: s.unpacker.newTracker("")}
	l.tracker.enter(Downloading)
	list, err := l.load(l.reader(r, progress))
	if err == nil {
		var loaded []Image
		if loaded, err = s.commit(op, list...); err == nil {
			l.tracker.enter(Done)
			if progress != nil {
				progress(l.tracker.snapshot())
			}
			// The archive's own files, such as its index, are no longer needed.
			if err := s.db.Collect(); err != nil {
				s.log.Warn("image archive: leftover blobs could not be deleted", "error", err)
			}
			return loaded, nil
		}
	}
	return nil, s.abort(op, s.explainLoad(ctx, err))
}

// merge returns a copy of ctx that is also cancelled when the store is closed.
func (s *Store) merge(ctx context.Context) (context.Context, context.CancelFunc) {
	merged, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return merged, func() { stop(); cancel() }
}

func (s *Store) explainLoad(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = fmt.Errorf("load interrupted: %w", ctx.Err())
	}
	return fmt.Errorf("image archive: %w", s.explainDiskFull(err))
}

// loader is one load.
type loader struct {
	*Store
	op      *database.Operation
	tracker *tracker

	reporting sync.Mutex
	reported  time.Time // when progress was last reported
}

// reader returns a reader of r. From now on, progress is reported while it is read
// and while layers are unpacked.
func (l *loader) reader(r io.Reader, progress func(Progress)) io.Reader {
	if progress != nil {
		l.tracker.onMove = func() {
			if !l.reporting.TryLock() { // another layer is reporting
				return
			}
			defer l.reporting.Unlock()
			if time.Since(l.reported) >= progressInterval {
				l.reported = time.Now()
				progress(l.tracker.snapshot())
			}
		}
	}
	return readerFunc(func(p []byte) (int, error) {
		if err := l.op.Context.Err(); err != nil {
			return 0, err
		}
		n, err := r.Read(p)
		l.tracker.read.Add(int64(n))
		l.tracker.move(n)
		return n, err
	})
}

// load stores and unpacks the archive's images.
func (l *loader) load(r io.Reader) ([]namedEntry, error) {
	top, err := l.store(r)
	if err != nil {
		return nil, err
	}
	if len(top) == 0 {
		return nil, errdefs.ErrInvalidArgument.WithMessage("it contains no image")
	}
	var list []namedEntry
	var mismatch error // for an image of another platform
	for _, desc := range top {
		name, err := nameInArchive(desc)
		if err != nil {
			return nil, err
		}
		l.tracker.reset(name, nil)
		e, err := l.image(desc)
		if err != nil {
			err = fmt.Errorf("image %s: %w", cmp.Or(name, desc.Digest.String()), err)
		}
		switch {
		case errors.As(err, &platformError{}):
			mismatch = err // allowed if another image matches
		case err != nil:
			return nil, err
		case name == "":
			list = append(list, namedEntry{entry: e, grants: access.Grants{preloaded("")}})
		default:
			list = append(list, namedEntry{e, []string{name}, access.Grants{preloaded(name)}})
		}
	}
	if len(list) == 0 {
		return nil, mismatch
	}
	return list, nil
}

// store stores the blobs of the archive and returns what its index lists.
func (l *loader) store(r io.Reader) ([]ocispec.Descriptor, error) {
	plain, err := layer.Decompress(r)
	if err != nil {
		return nil, notAnArchive(err)
	}
	defer plain.Close()
	desc, err := archive.ImportIndex(l.op.Context, l.db.Content, plain)
	if err == nil {
		_, err = io.Copy(io.Discard, plain) // detects a truncated compressed stream
	}
	if err != nil {
		return nil, notAnArchive(err)
	}
	raw, err := l.unpacker.document(l.op.Context, nil, desc, nil)
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its index.json is malformed: %v", err))
	}
	return index.Manifests, nil
}

// notAnArchive explains in one line why an archive can't be read.
func notAnArchive(err error) error {
	var errno unix.Errno // from the kernel: the archive isn't at fault
	switch {
	case errors.As(err, &errno), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errdefs.ErrInvalidArgument.WithMessage("it is truncated: save or copy it again")
	}
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("it is neither an OCI image layout nor a docker save archive (%v)", err))
}

// image unpacks the image that an entry of the archive's index refers to.
func (l *loader) image(desc ocispec.Descriptor) (*entry, error) {
	m, err := l.manifest(desc)
	if err != nil {
		return nil, err
	}
	ctx := l.op.Context
	first, err := l.unpacker.unpacked(ctx, m.layers)
	if err != nil {
		return nil, err
	}
	for i, ml := range m.layers {
		if i < first {
			ml.progress.enter(Unpacked)
		} else {
			ml.progress.enter(Downloaded)
		}
	}
	l.tracker.reset(l.tracker.ref, m.trackers())
	l.tracker.enter(Unpacking)
	for _, ml := range m.layers[first:] {
		if _, err := l.db.Content.Info(ctx, ml.blob.Digest); err != nil {
			return nil, fmt.Errorf("layer %w", notInArchive(ml.blob, err))
		}
		close(ml.fetched)
	}
	if err := l.unpacker.unpackAll(ctx, m.layers, first); err != nil {
		return nil, err
	}
	return l.unpacker.describe(ctx, m)
}

// manifest returns the manifest for this host; desc refers to it or to an index.
func (l *loader) manifest(desc ocispec.Descriptor) (*manifest, error) {
	here := platforms.DefaultSpec()
	index := []ocispec.Descriptor{desc}
	for range maxIndexDepth {
		desc, err := choose(index, here)
		if err != nil {
			return nil, err
		}
		raw, err := l.unpacker.document(l.op.Context, nil, desc, nil)
		if err != nil {
			return nil, notInArchive(desc, err)
		}
		doc, err := parseDocument(desc, raw)
		if err != nil {
			return nil, err
		}
		if index = doc.index; index != nil {
			continue
		}
		if raw, err = l.unpacker.document(l.op.Context, nil, doc.manifest.Config, nil); err != nil {
			return nil, notInArchive(doc.manifest.Config, err)
		}
		if err := doc.manifest.parse(raw, l.tracker.layer); err != nil {
			return nil, err
		}
		return doc.manifest, doc.manifest.runsOn(here)
	}
	return nil, errTooDeep
}

func notInArchive(desc ocispec.Descriptor, err error) error {
	if errdefs.IsNotFound(err) {
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s is missing from the archive, or does not match its digest: save it again", desc.Digest))
	}
	return err
}

// nameInArchive returns the full name that an archive gives an image, or "".
func nameInArchive(desc ocispec.Descriptor) (string, error) {
	name := desc.Annotations[images.AnnotationImageName]
	if ref := desc.Annotations[ocispec.AnnotationRefName]; name == "" && strings.ContainsAny(ref, "/:") {
		name = ref // otherwise it is only a tag
	}
	if name == "" {
		return "", nil
	}
	named, err := parseName(name)
	if err != nil {
		return "", err
	}
	return named.String(), nil
}
