package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/platforms"
	"github.com/opencontainers/go-digest"

	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/layer"
	"github.com/huskd/husk/internal/keylock"
)

// unpacker fetches and unpacks missing blobs. Its methods take the contexts of
// database operations. When several operations need the same blob or layer, one
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

// unpack unpacks a layer, whose blob must be stored, on top of its parent,
// which must be unpacked. The parent of the lowest layer is empty.
func (u *unpacker) unpack(ctx context.Context, l *imageLayer, parent digest.Digest) error {
	unlock, err := u.locks.Lock(ctx, "unpack "+l.chainID.String())
	if err != nil {
		return err
	}
	defer unlock()
	l.progress.enter(Unpacking)
	err = u.db.Layers.Add(ctx, l.chainID, parent, func(dir string, below []string) error {
		blob, err := u.db.Content.ReaderAt(ctx, l.blob)
		if err != nil {
			return err
		}
		defer blob.Close()
		return layer.Extract(ctx, l.progress.reader(content.NewReader(blob)), l.diffID, dir, below)
	})
	if err != nil {
		return fmt.Errorf("layer %s %w", l.blob.Digest, err)
	}
	l.progress.enter(Unpacked)
	return nil
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
