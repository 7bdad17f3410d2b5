package image

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
)

// minPrefix is the least number of digits of an ID prefix that can name an image.
const minPrefix = 4

// entry is the metadata of one image.
type entry struct {
	id       string
	manifest ocispec.Descriptor
	platform ocispec.Platform
	config   ocispec.ImageConfig
	created  time.Time
	size     int64           // sum of its blobs
	blobs    []digest.Digest // without the manifest

	layers []database.Layer // topmost first
	lower  []string         // lower directories, topmost first; never empty

	grants  access.Grants  // who may use it
	names   []string       // full names, sorted
	holders map[string]int // number of holds, by holder
}

// namedEntry is an image, the names to give it, and who may use it by them.
type namedEntry struct {
	*entry
	names  []string
	grants access.Grants
}

func (n namedEntry) record() database.Record {
	r := database.Record{ID: n.id, Names: n.names, Manifest: n.manifest, Blobs: n.blobs}
	if len(n.layers) > 0 {
		r.Top = n.layers[0].ChainID
	}
	return r
}

// index holds the images of a store in memory.
type index struct {
	mu      sync.RWMutex
	entries map[string]*entry // by ID
	names   map[string]string // IDs by full name
	short   shortNames
}

func newIndex(short shortNames) index {
	return index{short: short, entries: map[string]*entry{}, names: map[string]string{}}
}

// grant returns the grants of an image with those that it is to get, and the changes to its record:
// new ones, and those that are gone, which have no text.
func (x *index) grant(id string, add access.Grants) (all access.Grants, changes map[string]string) {
	x.mu.RLock()
	defer x.mu.RUnlock()
	if known := x.entries[id]; known != nil {
		all = known.grants
	}
	changes = map[string]string{}
	for _, g := range add {
		var gone []string
		all, gone = all.Add(g)
		changes[g.Key()] = g.Encode()
		for _, key := range gone {
			changes[key] = ""
		}
	}
	return all, changes
}

// put adds an image, unless it is there, and moves names to it.
func (x *index) put(e *entry, names []string, grants access.Grants) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if known := x.entries[e.id]; known != nil {
		e = known
	}
	x.entries[e.id] = e
	e.grants = grants
	for _, name := range names {
		x.removeName(name)
		x.names[name] = e.id
		e.names = append(e.names, name)
	}
	slices.Sort(e.names)
}

// removeName takes a name away from its image. The caller holds mu.
func (x *index) removeName(name string) {
	if e := x.entries[x.names[name]]; e != nil {
		e.names = slices.DeleteFunc(e.names, func(n string) bool { return n == name })
	}
	delete(x.names, name)
}

// remove removes names and images.
func (x *index) remove(names, ids []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, name := range names {
		x.removeName(name)
	}
	for _, id := range ids {
		delete(x.entries, id)
	}
}

// image returns the image with this ID, which must exist.
func (x *index) image(id string) Image {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.entries[id].image()
}

// candidates are the images that have a name or ID, the one that find returns first. The caller
// holds mu.
func (x *index) candidates(name string) iter.Seq2[*entry, string] {
	return func(yield func(*entry, string) bool) {
		for _, id := range []string{name, "sha256:" + name} {
			if e := x.entries[id]; e != nil && !yield(e, "") {
				return
			}
		}
		named, err := parseName(name)
		if err != nil {
			return
		}
		// An archive of docker save has the names of docker's registry.
		for _, full := range []string{named.String(), x.short.fullName(name)} {
			if e := x.entries[x.names[full]]; e != nil && !yield(e, full) {
				return
			}
		}
	}
}

// find returns the image with a name, an ID or an unambiguous prefix of an ID.
// full is the full name that it was found by, if any. The caller holds mu.
func (x *index) find(name string) (e *entry, full string, err error) {
	for e, full := range x.candidates(name) {
		return e, full, nil
	}
	_, err = parseName(name)
	prefix := strings.TrimPrefix(name, "sha256:")
	if len(prefix) >= minPrefix && strings.Trim(prefix, "0123456789abcdef") == "" {
		// A malformed name can be a well-formed ID.
		e, err = x.findPrefix("sha256:" + prefix)
		if e != nil || err != nil {
			return e, "", err
		}
	}
	if err != nil {
		return nil, "", err
	}
	return nil, "", errdefs.ErrNotFound.WithMessage(fmt.Sprintf("image %q not found: pull or load it", name))
}

// findPrefix returns the image, if any, whose ID begins with prefix. The caller holds mu.
func (x *index) findPrefix(prefix string) (*entry, error) {
	var found *entry
	for id, e := range x.entries {
		if !strings.HasPrefix(id, prefix) {
			continue
		}
		if found != nil {
			return nil, errdefs.ErrInvalidArgument.WithMessage(fmt.Sprintf("more than one image ID begins with %q: give more digits", prefix))
		}
		found = e
	}
	return found, nil
}

func (e *entry) image() Image {
	img := Image{
		ID: e.id, Size: e.size, Created: e.created, Config: e.config,
		Platform: platforms.Format(e.platform), InUse: len(e.holders) > 0,
	}
	for _, l := range e.layers {
		img.Unpacked += l.Bytes
	}
	for _, name := range e.names {
		if isDigestName(name) {
			img.Digests = append(img.Digests, name)
		} else {
			img.Tags = append(img.Tags, name)
		}
	}
	return img
}

// tagged reports whether the image has a tag.
func (e *entry) tagged() bool {
	return slices.ContainsFunc(e.names, func(name string) bool { return !isDigestName(name) })
}

// users lists the holders of the image for an error message.
func (e *entry) users() string {
	const most = 3
	holders := slices.Sorted(maps.Keys(e.holders))
	if len(holders) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(holders[:most], ", "), len(holders)-most)
	}
	return strings.Join(holders, ", ")
}

// List returns all images, sorted by tags.
func (s *Store) List() []Image {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	list := make([]Image, 0, len(s.index.entries))
	for _, e := range s.index.entries {
		list = append(list, e.image())
	}
	slices.SortFunc(list, func(a, b Image) int {
		if c := slices.Compare(a.Tags, b.Tags); c != 0 {
			return c
		}
		return strings.Compare(a.ID, b.ID)
	})
	return list
}

// Get returns the image with this name: a tag, a name with a digest, an ID or an
// unambiguous prefix of an ID. For an unknown image it returns errdefs.ErrNotFound.
func (s *Store) Get(name string) (Image, error) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	e, _, err := s.index.find(name)
	if err != nil {
		return Image{}, err
	}
	return e.image(), nil
}

// Rootfs returns the lower directories of an overlay for the image with this ID,
// topmost first. They exist as long as the image is held.
func (s *Store) Rootfs(id string) (lower []string, err error) {
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	e := s.index.entries[id]
	if e == nil {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("image %s not found: pull or load it", id))
	}
	return slices.Clone(e.lower), nil
}

// Hold prevents the removal of the image with this ID until release is called.
// The holder, such as "container 0123abcd", is named in errors of Remove. Holds
// are only in memory, so callers hold images again after a restart.
func (s *Store) Hold(id, holder string) (release func(), err error) {
	s.index.mu.Lock()
	defer s.index.mu.Unlock()
	e := s.index.entries[id]
	if e == nil {
		return nil, errdefs.ErrNotFound.WithMessage(fmt.Sprintf("image %s not found: pull or load it", id))
	}
	if e.holders == nil {
		e.holders = map[string]int{}
	}
	e.holders[holder]++
	return sync.OnceFunc(func() {
		s.index.mu.Lock()
		defer s.index.mu.Unlock()
		if e.holders[holder]--; e.holders[holder] == 0 {
			delete(e.holders, holder)
		}
	}), nil
}

// DiskUsage returns what all images take on disk in bytes, and how much of it would be free without
// the images that are unused. What images share counts once.
func (s *Store) DiskUsage(unused func(Image) bool) (bytes, reclaimable int64, err error) {
	if bytes, err = s.db.Usage(); err != nil {
		return 0, 0, fmt.Errorf("disk usage of images: %w", err)
	}
	blobs, err := s.db.Blobs()
	if err != nil {
		return 0, 0, fmt.Errorf("disk usage of images: %w", err)
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	sizes, kept := map[digest.Digest]int64{}, map[digest.Digest]bool{}
	for _, e := range s.index.entries {
		keep := !unused(e.image())
		part := func(d digest.Digest, size int64) {
			sizes[d] = size
			kept[d] = kept[d] || keep
		}
		for _, blob := range append([]digest.Digest{e.manifest.Digest}, e.blobs...) {
			part(blob, blobs[blob])
		}
		for _, l := range e.layers {
			part("layer:"+l.ChainID, l.Bytes) // the lowest layer may have the digest of its blob
		}
	}
	for d, size := range sizes {
		if !kept[d] {
			reclaimable += size
		}
	}
	return bytes, reclaimable, nil
}

// Usage returns the disk usage of all images: the bytes of blobs and of unpacked
// layers, and the inodes of unpacked layers.
func (s *Store) Usage() (bytes, inodes int64) {
	for _, img := range s.List() {
		bytes += img.Size
	}
	s.index.mu.RLock()
	defer s.index.mu.RUnlock()
	seen := map[digest.Digest]bool{}
	for _, e := range s.index.entries {
		for _, l := range e.layers {
			if !seen[l.ChainID] {
				seen[l.ChainID] = true
				bytes += l.Bytes
				inodes += l.Inodes
			}
		}
	}
	return bytes, inodes
}
