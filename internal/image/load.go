package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/image/database"
	layers "github.com/huskd/husk/internal/image/layer"
)

// Load makes the images of an archive be here, all or none. The archive is an
// OCI image layout or what docker save writes, in a tar file, compressed or
// not. Images without a name are kept by their ID. progress, if not nil, is
// called about ten times a second while something moves.
func (s *Store) Load(ctx context.Context, r io.Reader, progress func(Progress)) ([]Image, error) {
	exit, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer exit()
	// One at a time: the archive reader names what it stores by file names.
	unlock, err := s.assembler.locks.Lock(ctx, "load")
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
	l := &loader{Store: s, op: op, tracker: s.assembler.track("")}
	l.tracker.enter(Downloading)
	list, err := l.load(l.tell(r, progress))
	if err == nil {
		var loaded []Image
		if loaded, err = s.commit(op, list...); err == nil {
			l.tracker.enter(Done)
			if progress != nil {
				progress(l.tracker.snapshot())
			}
			// The archive's own files, such as its index, are of no more use.
			if err := s.db.Collect(); err != nil {
				s.log.Warn("what an image archive held beside images is not deleted yet", "error", err)
			}
			return loaded, nil
		}
	}
	return nil, s.undo(op, s.explainLoad(ctx, err))
}

// merge returns ctx, which is also cancelled when the store is closed.
func (s *Store) merge(ctx context.Context) (context.Context, context.CancelFunc) {
	merged, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.ctx, cancel)
	return merged, func() { stop(); cancel() }
}

func (s *Store) explainLoad(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = fmt.Errorf("load was cut: %w", ctx.Err())
	}
	return fmt.Errorf("image archive: %w", s.diskFull(err))
}

// loader is one load.
type loader struct {
	*Store
	op      *database.Operation
	tracker *tracker
	told    time.Time // when progress was told last
}

// tell returns r. From now on, progress is told while r is read and while
// layers are unpacked.
func (l *loader) tell(r io.Reader, progress func(Progress)) io.Reader {
	if progress != nil {
		l.tracker.listen = func() {
			if time.Since(l.told) >= progressInterval {
				l.told = time.Now()
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
func (l *loader) load(r io.Reader) ([]named, error) {
	top, err := l.store(r)
	if err != nil {
		return nil, err
	}
	if len(top) == 0 {
		return nil, errdefs.ErrInvalidArgument.WithMessage("there is no image in it")
	}
	var list []named
	var other error // of an image for another platform
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
			other = err // as may be, as long as one is for this
		case err != nil:
			return nil, err
		case name == "":
			list = append(list, named{entry: e})
		default:
			list = append(list, named{e, []string{name}})
		}
	}
	if len(list) == 0 {
		return nil, other
	}
	return list, nil
}

// store stores the blobs of the archive and returns what its index lists.
func (l *loader) store(r io.Reader) ([]ocispec.Descriptor, error) {
	plain, err := layers.Decompress(r)
	if err != nil {
		return nil, notAnArchive(err)
	}
	defer plain.Close()
	desc, err := archive.ImportIndex(l.op.Context, l.db.Content, plain)
	if err == nil {
		_, err = io.Copy(io.Discard, plain) // to see that the compressed end is there
	}
	if err != nil {
		return nil, notAnArchive(err)
	}
	raw, err := l.assembler.document(l.op.Context, nil, desc)
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := json.Unmarshal(raw, &index); err != nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("its index.json is malformed: %v", err))
	}
	return index.Manifests, nil
}

// notAnArchive says in one line why an archive can't be read.
func notAnArchive(err error) error {
	var refused unix.Errno // by the kernel: nothing wrong with the archive
	switch {
	case errors.As(err, &refused), errors.Is(err, context.Canceled):
		return err
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errdefs.ErrInvalidArgument.WithMessage("it is cut short: save or copy it again")
	}
	return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("it is neither an OCI image layout nor of docker save (%v)", err))
}

// image unpacks the image of an entry of the archive's index.
func (l *loader) image(desc ocispec.Descriptor) (*entry, error) {
	m, err := l.manifest(desc)
	if err != nil {
		return nil, err
	}
	ctx := l.op.Context
	first, err := l.assembler.unpacked(ctx, m.layers)
	if err != nil {
		return nil, err
	}
	for i, layer := range m.layers {
		if i < first {
			layer.progress.enter(Unpacked)
		} else {
			layer.progress.enter(Downloaded)
		}
	}
	l.tracker.reset(l.tracker.ref, m.trackers())
	l.tracker.enter(Unpacking)
	var parent digest.Digest
	for i, layer := range m.layers {
		if i >= first {
			if _, err := l.db.Content.Info(ctx, layer.blob.Digest); err != nil {
				return nil, fmt.Errorf("layer %w", notInArchive(layer.blob, err))
			}
			if err := l.assembler.unpack(ctx, layer, parent); err != nil {
				return nil, err
			}
		}
		parent = layer.chainID
	}
	return l.assembler.describe(ctx, m)
}

// manifest finds the manifest for this host in what desc names.
func (l *loader) manifest(desc ocispec.Descriptor) (*manifest, error) {
	here := platforms.DefaultSpec()
	index := []ocispec.Descriptor{desc}
	for range maxIndexDepth {
		desc, err := choose(index, here)
		if err != nil {
			return nil, err
		}
		raw, err := l.assembler.document(l.op.Context, nil, desc)
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
		if raw, err = l.assembler.document(l.op.Context, nil, doc.manifest.Config); err != nil {
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
		return errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("%s is not in the archive, or is not what its name says: save it again", desc.Digest))
	}
	return err
}

// nameInArchive returns the whole name that an archive gives an image, or "".
func nameInArchive(desc ocispec.Descriptor) (string, error) {
	name := desc.Annotations[images.AnnotationImageName]
	if ref := desc.Annotations[ocispec.AnnotationRefName]; name == "" && strings.ContainsAny(ref, "/:") {
		name = ref // else it is a tag alone, which names nothing
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
