package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/layer"
	"github.com/huskd/husk/internal/keylock"
)

// unpacker fetches and unpacks missing blobs. Its methods take the contexts of
// database operations. When several operations need the same blob or layer from one registry, one
// makes it and the others wait.
type unpacker struct {
	db      *database.DB
	root    string
	locks   keylock.Locks
	leaders sync.Map // see tracker
}

// unpacked returns how many of the lowest layers are already unpacked, and
// adds them to the operation.
func (u *unpacker) unpacked(ctx context.Context, list []*imageLayer) (int, error) {
	for n := len(list); n > 0; n-- {
		if found, err := u.db.Layers.Retain(ctx, list[n-1].chainID); found || err != nil {
			return n, err
		}
	}
	return 0, nil
}

// parallelUnpacks is how many layers of an image are unpacked concurrently. More would take memory
// and rarely save time: the next layers are being downloaded meanwhile.
const parallelUnpacks = 2

// unpackAll unpacks the layers from index first on, each as soon as its blob is stored. Several are
// unpacked concurrently, but a layer exists only when those below it do.
func (u *unpacker) unpackAll(ctx context.Context, list []*imageLayer, first int) error {
	group, ctx := errgroup.WithContext(ctx)
	slots := make(chan struct{}, parallelUnpacks)
	parent, ready := digest.Digest(""), make(chan struct{})
	close(ready)
	if first > 0 {
		parent = list[first-1].chainID
	}
	for _, l := range list[first:] {
		j := &unpacking{imageLayer: l, slots: slots, parent: parent, ready: ready, done: make(chan struct{})}
		group.Go(func() error {
			if err := u.unpack(ctx, j); err != nil {
				return fmt.Errorf("layer %s %w", l.blob.Digest, err)
			}
			return nil
		})
		parent, ready = l.chainID, j.done
	}
	return group.Wait()
}

// unpacking is the unpacking of a layer. While it waits for others, it may hold the layer's lock
// but no slot. It waits for layers below only, so that operations on the same layers don't block
// each other.
type unpacking struct {
	*imageLayer
	slots  chan struct{}
	parent digest.Digest   // chain ID of the layer below, if any
	ready  <-chan struct{} // closed when that exists
	done   chan struct{}   // closed when this one exists
}

func (u *unpacker) unpack(ctx context.Context, j *unpacking) error {
	if err := wait(ctx, j.fetched); err != nil {
		return err
	}
	// Not for one from another registry, which may take for ever to send the layers below.
	unlock, err := u.locks.Lock(ctx, "unpack "+j.chainID.String()+" "+j.progress.source)
	if err != nil {
		return err
	}
	defer unlock()
	j.progress.enter(Unpacking)
	created, err := u.db.Layers.Create(ctx, j.chainID)
	for created != nil && err == nil { // otherwise it exists
		if err = u.fill(ctx, j, created); err == nil {
			break
		}
		created.Discard(ctx)
		if errdefs.IsAlreadyExists(err) { // from another registry, meanwhile
			created, err = u.db.Layers.Create(ctx, j.chainID)
		}
	}
	if err != nil {
		return err
	}
	if created == nil && !j.holder.may(j.chainID) {
		if err := u.checkDiffID(ctx, j.imageLayer); err != nil {
			return err
		}
	}
	j.holder.got(j.chainID)
	j.progress.enter(Unpacked)
	close(j.done)
	return nil
}

// fill unpacks a layer and puts it on top of its parent.
func (u *unpacker) fill(ctx context.Context, j *unpacking, created *database.NewLayer) error {
	implied, err := u.extract(ctx, j, created.Dir)
	if err != nil {
		return err
	}
	if err := wait(ctx, j.ready); err != nil {
		return err
	}
	if len(implied) > 0 {
		below, err := u.db.Layers.Stack(ctx, j.parent)
		if err != nil {
			return err
		}
		if err := implied.Inherit(created.Dir, database.Dirs(below)); err != nil {
			return err
		}
	}
	return created.Commit(ctx, j.parent)
}

func (u *unpacker) extract(ctx context.Context, j *unpacking, dir string) (layer.Implied, error) {
	select {
	case j.slots <- struct{}{}:
		defer func() { <-j.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	blob, err := u.db.Content.ReaderAt(ctx, j.blob)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	return layer.Extract(ctx, j.progress.reader(content.NewReader(blob)), j.diffID, dir)
}

// wait waits until ready is closed.
func wait(ctx context.Context, ready <-chan struct{}) error {
	select {
	case <-ready:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// describe returns the entry of an image whose layers are unpacked.
func (u *unpacker) describe(ctx context.Context, m *manifest) (*entry, error) {
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
		dir := filepath.Join(u.root, "empty")
		e.lower = []string{dir}
		return e, os.MkdirAll(dir, 0o755)
	}
	e.layers, err = u.db.Layers.Stack(ctx, m.layers[len(m.layers)-1].chainID)
	e.lower = database.Dirs(e.layers)
	return e, err
}
