package image

import (
	"context"
	"os"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/database"
)

// recover fills the index from the database. Layers that can't be trusted are
// unpacked again from their blobs; an image of which that fails is removed.
func (s *Store) recover(ctx context.Context) error {
	records, err := s.db.Records()
	if err != nil {
		return err
	}
	var unsettled, lost []string
	// First of all images, because they may share layers.
	for _, r := range records {
		if s.suspect(r) {
			s.db.Layers.Forget(s.ctx, r.Top)
		}
		if r.Unsettled {
			unsettled = append(unsettled, r.ID)
		}
	}
	for _, r := range records {
		if err := ctx.Err(); err != nil {
			return err
		}
		e, err := s.revive(r.Manifest)
		switch {
		case err == nil:
			s.index.put(e, r.Names)
		case errdefs.IsNotFound(err), errdefs.IsDataLoss(err), errdefs.IsInvalidArgument(err):
			s.log.Warn("image is damaged and was removed: pull or load it again", "image", r.ID, "names", r.Names, "error", err)
			lost = append(append(lost, r.ID), r.Names...)
		default:
			s.log.Warn("image can't be used: pull or load it again, or restart", "image", r.ID, "names", r.Names, "error", err)
		}
	}
	if err := s.db.Erase(lost...); err != nil {
		return err
	}
	s.settler.settle(unsettled...)
	return nil
}

// suspect says whether a record is of an image whose layers can't be trusted.
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

// revive describes a recorded image, after unpacking again those of its layers
// that are not there.
func (s *Store) revive(desc ocispec.Descriptor) (*entry, error) {
	raw, err := s.assembler.document(s.ctx, nil, desc)
	if err != nil {
		return nil, err
	}
	doc, err := parseDocument(desc, raw)
	if err != nil {
		return nil, err
	}
	m := doc.manifest
	if m == nil {
		return nil, errdefs.ErrInvalidArgument.WithMessage("its record is of an index")
	}
	if raw, err = s.assembler.document(s.ctx, nil, m.Config); err != nil {
		return nil, err
	}
	if err := m.parse(raw, s.assembler.track("").layer); err != nil {
		return nil, err
	}
	if e, err := s.assembler.describe(s.ctx, m); !errdefs.IsNotFound(err) {
		return e, err
	}
	op, err := s.db.Begin(s.ctx)
	if err != nil {
		return nil, err
	}
	var parent digest.Digest
	for _, l := range m.layers {
		if err := s.assembler.unpack(op.Context, l, parent); err != nil {
			_ = op.Abort()
			return nil, err
		}
		parent = l.chainID
	}
	if err := op.End(); err != nil {
		return nil, err
	}
	return s.assembler.describe(s.ctx, m)
}
