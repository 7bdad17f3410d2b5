// Package database keeps the blobs, the unpacked layers and the records of
// images: blobs in containerd's content store, layers in its overlay
// snapshotter, and what belongs together in its metadata database, all three
// in process.
//
// Whatever makes blobs and layers happens under a lease, from the first of them
// to the one transaction that records what they are for and ends the lease. A
// lease that Open finds is of an operation that was cut: all it did is swept
// away.
package database

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/core/metadata"
	"github.com/containerd/containerd/v2/core/metadata/boltutil"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/containerd/v2/plugins/snapshots/overlay"
	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	// namespace is containerd's word for one of many users of a database.
	namespace = "husk"
	// snapshotter is the name of the overlay snapshotter in the database.
	snapshotter = "overlayfs"
	// lockTimeout is how long Open waits for another process to let go of the
	// database, such as one that is just exiting.
	lockTimeout = 2 * time.Second
)

// DB is the images' database. Its methods may be called from any goroutine.
type DB struct {
	// Content has the blobs. A context for it comes from Context or from an
	// Operation.
	Content content.Store
	Layers  Layers

	root    string
	meta    *metadata.DB
	images  images.Store
	leases  leases.Manager
	overlay snapshots.Cleaner // what Layers lie in
}

// Open opens the database below root, makes it if it isn't there, and sweeps
// away what operations left that were cut. Only one process at a time can have
// it open.
func Open(root string) (*DB, error) {
	// The libraries log by a logger of their own. What they say below a warning,
	// their errors say again; and that of missing fs-verity, at the start, is of
	// no use to anybody.
	log.UseSlog()
	_ = log.SetLevel(log.ErrorLevel)
	defer func() { _ = log.SetLevel(log.WarnLevel) }()
	if err := os.MkdirAll(root, 0o700); err != nil {
		return nil, err
	}
	file, err := bbolt.Open(filepath.Join(root, "images.db"), 0o600, &bbolt.Options{Timeout: lockTimeout})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, errdefs.ErrUnavailable.WithMessage(fmt.Sprintf("%s is in use by another process: stop it, or use another directory", root))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: if images.db is damaged, delete %s and pull the images again", err, root)
	}
	db, err := open(file, root)
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	if err := db.sweep(); err != nil {
		_ = db.Close()
		return nil, err
	}
	return db, nil
}

func open(file *bbolt.DB, root string) (*DB, error) {
	blobs, err := local.NewStore(filepath.Join(root, "content"))
	if err != nil {
		return nil, err
	}
	// Removed layers are deleted after the database is free again; and the
	// directory of each layer is told as a label.
	layers, err := overlay.NewSnapshotter(filepath.Join(root, "layers"), overlay.AsynchronousRemove, overlay.WithUpperdirLabel)
	if err != nil {
		return nil, err
	}
	meta := metadata.NewDB(file, blobs, map[string]snapshots.Snapshotter{snapshotter: layers})
	if err := meta.Init(context.Background()); err != nil {
		_ = layers.Close()
		return nil, err
	}
	manager := metadata.NewLeaseManager(meta)
	return &DB{
		Content: meta.ContentStore(),
		Layers:  Layers{snapshots: meta.Snapshotter(snapshotter), leases: manager},
		root:    root,
		meta:    meta,
		images:  metadata.NewImageStore(meta),
		leases:  manager,
		overlay: layers.(snapshots.Cleaner),
	}, nil
}

// Close closes the database.
func (db *DB) Close() error {
	return errors.Join(db.Layers.snapshots.Close(), db.meta.Close())
}

// Context returns ctx made fit for the database.
func (db *DB) Context(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

// background is the context of what must be finished once begun.
func (db *DB) background() context.Context { return db.Context(context.Background()) }

// transact runs fn in one transaction.
func (db *DB) transact(fn func(ctx context.Context) error) error {
	return db.meta.Update(func(tx *bbolt.Tx) error {
		return fn(boltutil.WithTransaction(db.background(), tx))
	})
}

// Collect deletes the blobs and layers that neither a record nor an operation
// keeps.
func (db *DB) Collect() error {
	_, err := db.meta.GarbageCollect(db.background())
	return err
}

// Usage returns the bytes of all blobs and layers.
func (db *DB) Usage() (int64, error) {
	var total int64
	err := db.Content.Walk(db.background(), func(blob content.Info) error {
		total += blob.Size
		return nil
	})
	if err != nil {
		return 0, err
	}
	layers, err := db.Layers.usage(db.background())
	return total + layers, err
}

// Operation is something that makes blobs and layers, and keeps them until it
// ends.
type Operation struct {
	// Context is for whatever the operation does.
	Context context.Context
	db      *DB
	lease   leases.Lease
}

// Begin begins an operation, whose context derives from ctx. It ends by one of
// its methods, or by the end of the process.
func (db *DB) Begin(ctx context.Context) (*Operation, error) {
	ctx = db.Context(ctx)
	lease, err := db.leases.Create(ctx, leases.WithRandomID())
	if err != nil {
		return nil, err
	}
	return &Operation{leases.WithLease(ctx, lease.ID), db, lease}, nil
}

// Commit records images, all or none, and ends the operation.
func (op *Operation) Commit(records ...Record) error {
	return op.db.transact(func(ctx context.Context) error {
		for _, r := range records {
			if err := op.db.put(ctx, r); err != nil {
				return err
			}
		}
		return op.db.leases.Delete(ctx, op.lease)
	})
}

// End ends an operation whose blobs and layers older records keep.
func (op *Operation) End() error {
	err := op.db.leases.Delete(op.db.background(), op.lease)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Abort ends an operation and deletes what only it kept.
func (op *Operation) Abort() error { return op.db.collectFor(op.db.Collect, op.lease) }

// sweep deletes all that operations left that an earlier process did not end.
func (db *DB) sweep() error {
	left, err := db.leases.List(db.background())
	if err != nil || len(left) == 0 {
		return err
	}
	if err := os.RemoveAll(filepath.Join(db.root, "content", "ingest")); err != nil {
		return err
	}
	return db.collectFor(db.Scour, left...)
}

// collectFor ends leases and collects what they kept. One of them stays, empty,
// until that is done: should it be cut, the next process does it again.
func (db *DB) collectFor(collect func() error, list ...leases.Lease) error {
	err := db.transact(func(ctx context.Context) error {
		for _, lease := range list {
			if err := db.leases.Delete(ctx, lease); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		_, err := db.leases.Create(ctx, leases.WithID(list[0].ID))
		return err
	})
	if err != nil {
		return err
	}
	if err := collect(); err != nil {
		return err
	}
	return db.leases.Delete(db.background(), list[0])
}

// Scour is Collect, and deletes also what the database knows nothing of: when
// a process has died, or the disk was full, between the database's change and
// that of the files.
func (db *DB) Scour() error {
	ctx := db.background()
	if err := db.transact(db.removeStillborn); err != nil {
		return err
	}
	// The snapshotter gives the number of a directory that it doesn't know
	// again, and can't make it then.
	if err := db.overlay.Cleanup(ctx); err != nil && !errdefs.IsNotFound(err) { // as when it never had any
		return err
	}
	// The collector compares files with the database only where it has removed
	// something itself. So there must be something of each kind to remove.
	blob := []byte("to be removed")
	desc := ocispec.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	if err := content.WriteBlob(ctx, db.Content, "scour", bytes.NewReader(blob), desc); err != nil {
		return err
	}
	if _, err := db.Layers.snapshots.Prepare(ctx, "scour", ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return db.Collect()
}

// removeStillborn removes downloads that never got as far as to be named. It
// is called in a transaction, as is whatever begins a download.
func (db *DB) removeStillborn(context.Context) error {
	dirs, err := filepath.Glob(filepath.Join(db.root, "content", "ingest", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		ref, _ := os.ReadFile(filepath.Join(dir, "ref"))
		if digest.FromBytes(ref).Encoded() == filepath.Base(dir) {
			continue
		}
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
	}
	return nil
}
