// Package database stores the blobs, the unpacked layers and the records of
// images: blobs in containerd's content store, layers in its overlay snapshotter,
// and references between them in its metadata database, all three in process.
//
// Blobs and layers are created under a lease. One transaction records the image
// that they belong to and deletes the lease. A lease that Open finds belongs to an
// operation that a crash interrupted: Open deletes what it created.
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
	// namespace is the containerd namespace of all data.
	namespace = "husk"
	// snapshotter is the name of the overlay snapshotter in the database.
	snapshotter = "overlayfs"
	// lockTimeout is how long Open waits for another process to close the database,
	// such as one that is just exiting.
	lockTimeout = 2 * time.Second
)

// DB is the database of images. Its methods are safe for concurrent use.
type DB struct {
	// Content stores the blobs. Its methods need a context from Context or from an
	// Operation.
	Content content.Store
	Layers  Layers

	root    string
	meta    *metadata.DB
	images  images.Store
	leases  leases.Manager
	overlay snapshots.Cleaner // the snapshotter below Layers
}

// Open opens the database below root, creates it if it doesn't exist, and deletes
// what interrupted operations created. Only one process at a time can have it open.
func Open(root string) (*DB, error) {
	// containerd's packages have a global logger. Their errors repeat what they log
	// below a warning, and the warning at start about missing fs-verity is noise.
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
	if err := db.abortAbandoned(); err != nil {
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
	// Files of removed layers are deleted outside of the database transaction. Each
	// snapshot gets a label with its directory.
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

// Context returns ctx with the database's namespace.
func (db *DB) Context(ctx context.Context) context.Context {
	return namespaces.WithNamespace(ctx, namespace)
}

// background is the context of steps that must not be interrupted.
func (db *DB) background() context.Context { return db.Context(context.Background()) }

// transact runs fn in one transaction.
func (db *DB) transact(fn func(ctx context.Context) error) error {
	return db.meta.Update(func(tx *bbolt.Tx) error {
		return fn(boltutil.WithTransaction(db.background(), tx))
	})
}

// Collect deletes the blobs and layers that neither a record nor an operation
// references.
func (db *DB) Collect() error {
	_, err := db.meta.GarbageCollect(db.background())
	return err
}

// Blobs returns the sizes of all blobs in bytes.
func (db *DB) Blobs() (map[digest.Digest]int64, error) {
	sizes := map[digest.Digest]int64{}
	err := db.Content.Walk(db.background(), func(blob content.Info) error {
		sizes[blob.Digest] = blob.Size
		return nil
	})
	return sizes, err
}

// Usage returns the size of all blobs and layers in bytes.
func (db *DB) Usage() (int64, error) {
	blobs, err := db.Blobs()
	if err != nil {
		return 0, err
	}
	var total int64
	for _, size := range blobs {
		total += size
	}
	layers, err := db.Layers.usage(db.background())
	return total + layers, err
}

// Operation holds a lease on the blobs and layers created or retained with its
// Context, until it ends.
type Operation struct {
	// Context carries the lease.
	Context context.Context
	db      *DB
	lease   leases.Lease
}

// Begin starts an operation whose context derives from ctx. Commit, End or Abort
// ends it, or the next Open if the process dies.
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

// End ends an operation without records, such as one that repaired recorded images.
func (op *Operation) End() error {
	err := op.db.leases.Delete(op.db.background(), op.lease)
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// Abort ends an operation and deletes what only it referenced.
func (op *Operation) Abort() error { return op.db.release(op.db.Collect, op.lease) }

// abortAbandoned aborts the operations that an earlier process did not end.
func (db *DB) abortAbandoned() error {
	abandoned, err := db.leases.List(db.background())
	if err != nil || len(abandoned) == 0 {
		return err
	}
	if err := os.RemoveAll(filepath.Join(db.root, "content", "ingest")); err != nil {
		return err
	}
	return db.release(db.CollectOrphans, abandoned...)
}

// release deletes leases and then collects garbage. One lease stays, empty, until the
// collection is done, so that after a crash the next process repeats it.
func (db *DB) release(collect func() error, list ...leases.Lease) error {
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

// CollectOrphans is like Collect, but also deletes files that the database doesn't
// know. They are left when the process dies, or the disk is full, between a change
// of the database and that of the files.
func (db *DB) CollectOrphans() error {
	ctx := db.background()
	if err := db.transact(db.removeUnnamedIngests); err != nil {
		return err
	}
	// An unknown directory would be in the way: the snapshotter reuses its number for
	// a new snapshot and then can't create it.
	if err := db.overlay.Cleanup(ctx); err != nil && !errdefs.IsNotFound(err) { // there never was a snapshot
		return err
	}
	// The collector compares files with the database only in stores where it has
	// removed something. So create something to remove in each store.
	blob := []byte("to be removed")
	desc := ocispec.Descriptor{Digest: digest.FromBytes(blob), Size: int64(len(blob))}
	if err := content.WriteBlob(ctx, db.Content, "orphans", bytes.NewReader(blob), desc); err != nil {
		return err
	}
	if _, err := db.Layers.snapshots.Prepare(ctx, "orphans", ""); err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	return db.Collect()
}

// removeUnnamedIngests removes downloads that a crash interrupted before their ref
// file was written. It is called in a transaction, like everything that starts a
// download, so it can't remove a running one.
func (db *DB) removeUnnamedIngests(context.Context) error {
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
