package image

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
)

// Remove removes an image, with the blobs and layers that no other image needs, and
// returns the removed names and ID. Given an ID, it removes the image with all its
// names. Given a name, it removes only that name, and the image with its last name.
//
// A held image is not removed. With force, only its names are removed; the first
// Prune after its last release removes the image.
func (s *Store) Remove(ctx context.Context, name string, force bool) (removed []string, err error) {
	exit, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer exit()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("image %q: %w", name, err)
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	names, id, err := s.unlink(name, force)
	if err != nil {
		return nil, err
	}
	var ids []string
	if id != "" {
		ids = []string{id}
	}
	if err := s.remove(names, ids...); err != nil {
		return nil, fmt.Errorf("image %q: %w", name, err)
	}
	return slices.Concat(names, ids), nil
}

// unlink returns what Remove removes: names, and the ID unless the image stays. An
// image that is removed can't be found or held from now on.
func (s *Store) unlink(name string, force bool) (names []string, id string, err error) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	e, full, err := s.index.find(name)
	if err != nil {
		return nil, "", err
	}
	names = e.names
	if full != "" {
		names = e.removedWith(full)
	}
	if len(names) < len(e.names) {
		return slices.Clone(names), "", nil
	}
	if len(e.holders) == 0 {
		delete(s.index.entries, e.id)
		return slices.Clone(names), e.id, nil
	}
	if !force {
		return nil, "", errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("image %q is in use by %s: remove that first", name, e.users()))
	}
	return slices.Clone(names), "", nil
}

// removedWith returns the names that are removed together with name: the last tag
// of a repository takes the digests of that repository along.
func (e *entry) removedWith(name string) []string {
	removed := []string{name}
	if isDigestName(name) {
		return removed
	}
	for _, other := range e.names {
		if other == name || repository(other) != repository(name) {
			continue
		}
		if !isDigestName(other) {
			return []string{name}
		}
		removed = append(removed, other)
	}
	return removed
}

// remove deletes the records of names and IDs, with the blobs and layers that only
// they referenced. The caller holds changing.
func (s *Store) remove(names []string, ids ...string) error {
	s.index.remove(names, ids)
	if err := s.db.Delete(slices.Concat(names, ids)...); err != nil {
		return fmt.Errorf("the removal is not recorded, so the image is back at the next start: %w", s.explainDiskFull(err))
	}
	return nil
}

// PruneReport is what Prune has removed.
type PruneReport struct {
	Removed []string // names and IDs
	Freed   int64    // bytes of blobs and layers
}

// Prune removes the images that are neither held nor tagged; with all, tagged images
// too. It also deletes the data of interrupted pulls.
func (s *Store) Prune(ctx context.Context, all bool) (PruneReport, error) {
	exit, err := s.enter()
	if err != nil {
		return PruneReport{}, err
	}
	defer exit()
	if err := ctx.Err(); err != nil {
		return PruneReport{}, fmt.Errorf("prune images: %w", err)
	}
	s.changing.Lock()
	defer s.changing.Unlock()
	before, err := s.db.Usage()
	if err != nil {
		return PruneReport{}, fmt.Errorf("prune images: %w", err)
	}
	if err := s.partials.abortAll(); err != nil {
		return PruneReport{}, fmt.Errorf("prune images: %w", err)
	}
	names, ids := s.unused(all)
	if err := s.remove(names, ids...); err != nil {
		return PruneReport{}, fmt.Errorf("prune images: %w", err)
	}
	after, err := s.db.Usage()
	if err != nil {
		return PruneReport{}, fmt.Errorf("prune images: %w", err)
	}
	return PruneReport{Removed: slices.Concat(names, ids), Freed: before - after}, nil
}

// unused removes the images that Prune removes from the index, and returns them.
func (s *Store) unused(all bool) (names, ids []string) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.index.entries)) {
		e := s.index.entries[id]
		if len(e.holders) > 0 || e.tagged() && !all {
			continue
		}
		names, ids = append(names, e.names...), append(ids, id)
		delete(s.index.entries, id)
	}
	return names, ids
}
