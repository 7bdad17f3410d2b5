package image

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/containerd/errdefs"
)

// Remove removes an image, with all that no other image needs of it, and
// returns the names and the ID that are gone. By an ID it removes the image with
// all its names; by a name only that, and the image with its last one.
//
// An image that is held is not removed. With force, its names are: then it goes
// with the first Prune after its last holder has left.
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
	names, id, err := s.doomed(name, force)
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

// doomed returns what goes when an image is removed by name: names of it, and
// its ID if nothing of it stays. From then on the image can't be found, and so
// not be held, if it goes.
func (s *Store) doomed(name string, force bool) (names []string, id string, err error) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	e, whole, err := s.index.find(name)
	if err != nil {
		return nil, "", err
	}
	names = e.names
	if whole != "" {
		names = e.goneWith(whole)
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

// goneWith returns the names that an image loses when it loses one of them: the
// last tag of a repository takes the digests of that repository along.
func (e *entry) goneWith(name string) []string {
	gone := []string{name}
	if isDigestName(name) {
		return gone
	}
	for _, other := range e.names {
		if other == name || repository(other) != repository(name) {
			continue
		}
		if !isDigestName(other) {
			return []string{name}
		}
		gone = append(gone, other)
	}
	return gone
}

// remove deletes the records of names and IDs, and what only they kept.
// changing is held.
func (s *Store) remove(names []string, ids ...string) error {
	s.index.drop(names, ids)
	if err := s.db.Erase(slices.Concat(names, ids)...); err != nil {
		return fmt.Errorf("what was removed will be back at the next start: %w", s.diskFull(err))
	}
	return nil
}

// PruneReport tells what a Prune has removed.
type PruneReport struct {
	Removed []string // names and IDs
	Freed   int64    // bytes of blobs and layers
}

// Prune removes the images that nobody holds and that no tag names; with all,
// also those that a tag names. What interrupted pulls left goes too.
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
	if err := s.partial.dropAll(); err != nil {
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

// unused takes the images that Prune removes out of the index.
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
