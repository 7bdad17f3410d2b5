package image

import (
	"context"
	"log/slog"
	"os"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
)

// recover fills the index from the database. Layers that may be damaged are
// unpacked again from their blobs. Images for which that fails are removed.
func (s *Store) recover(ctx context.Context) error {
	records, err := s.db.Records()
	if err != nil {
		return err
	}
	var unsynced, lost []string
	// Images may share layers, so suspect layers of all images go first.
	for _, r := range records {
		if s.suspect(r) {
			s.db.Layers.Remove(s.ctx, r.Top)
		}
		if r.Unsynced {
			unsynced = append(unsynced, r.ID)
		}
	}
	for _, r := range records {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := s.restore(r.Manifest)
		switch {
		case err == nil:
			s.index.put(e, r.Names, grantsOf(s.log, r))
		case errdefs.IsNotFound(err), errdefs.IsDataLoss(err), errdefs.IsInvalidArgument(err):
			s.log.Warn("image is damaged and was removed: pull or load it again", "image", r.ID, "names", r.Names, "error", err)
			lost = append(append(lost, r.ID), r.Names...)
		default:
			s.log.Warn("image can't be used: pull or load it again, or restart huskd", "image", r.ID, "names", r.Names, "error", err)
		}
	}
	if err := s.db.Delete(lost...); err != nil {
		return err
	}
	s.flusher.flush(unsynced...)
	return nil
}

// grantsOf returns who may use a recorded image. Nobody may by a grant that is damaged; but it
// still tells that the image was pulled.
func grantsOf(log *slog.Logger, r database.Record) (out access.Grants) {
	for key, text := range r.Grants {
		g, err := access.Decode(key, text)
		if err != nil {
			log.Warn("who may use an image isn't known: pods that use it have to show again that they may pull it", "image", r.ID, "error", err)
		}
		out, _ = out.Add(g)
	}
	return out
}

// suspect reports whether the layers of a recorded image may be missing or damaged.
func (s *Store) suspect(r database.Record) bool {
	if r.Suspect || r.Top == "" {
		return r.Suspect
	}
	stack, err := s.db.Layers.Stack(s.ctx, r.Top)
	for _, l := range stack {
		if _, err := os.Stat(l.Dir); err != nil {
			return true
		}
	}
	return err != nil
}

// restore returns the entry of a recorded image. It unpacks missing layers again.
func (s *Store) restore(desc ocispec.Descriptor) (*entry, error) {
	raw, err := s.unpacker.document(s.ctx, nil, desc, nil)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(desc, raw)
	if err != nil {
		return nil, err
	}
	m := doc.manifest
	if m == nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage("its record refers to an index, not a manifest")
	}
	if raw, err = s.unpacker.document(s.ctx, nil, m.Config, nil); err != nil {
		return nil, err
	}
	if err := m.parse(raw, s.unpacker.newTracker("").layer); err != nil {
		return nil, err
	}
	if e, err := s.unpacker.describe(s.ctx, m); !errdefs.IsNotFound(err) {
		return e, err
	}
	op, err := s.db.Begin(s.ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range m.layers {
		close(l.fetched)
	}
	if err := s.unpacker.unpackAll(op.Context, m.layers, 0); err != nil {
		_ = op.Abort()
		return nil, err
	}
	if err := op.End(); err != nil {
		return nil, err
	}
	return s.unpacker.describe(s.ctx, m)
}
