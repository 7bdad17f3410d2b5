// Package image owns images. It pulls and loads them, keeps them unpacked, and
// returns the layer directories that a container's root filesystem is mounted from.
//
// Durable state is in the database (internal/image/database). All metadata of
// images is also in memory: listing, finding or using an image needs no
// transaction and no system call.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/image/access"
	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/internal/image/loginfile"
)

// stallTimeout is how long a pull may go without receiving a byte.
const stallTimeout = 5 * time.Minute

// Config configures a Store.
type Config struct {
	// Root is the directory of all images. Its filesystem must support overlay
	// lower directories, as ext4 and xfs do.
	Root string
	// CertsDir has a directory per registry with a hosts.toml (mirrors, plain http, headers)
	// or certificates, in the layout of containerd and docker. It need not exist.
	CertsDir string
	// ShortNames is the registry of image names without one, with or without a path, or
	// RefuseShortNames. Empty is DockerHub.
	ShortNames string
	// Verify says of which images pods have to show that they may pull them. Its zero value is the
	// default policy.
	Verify access.Policy
	// Pulled, if set, is called after every pull with its duration and error.
	Pulled func(time.Duration, error)
	// Log receives what can't be returned to a caller; nil is the default logger.
	Log *slog.Logger
}

// Image describes an unpacked image.
type Image struct {
	ID       string   // digest of its config
	Tags     []string // full names with a tag, sorted
	Digests  []string // full names with a digest, sorted
	Size     int64    // bytes of its blobs, compressed
	Unpacked int64    // bytes of its layers on disk; layers may be shared
	Created  time.Time
	Platform string // for example linux/amd64
	InUse    bool   // it is held, see Hold
	Config   ocispec.ImageConfig
}

// Store owns a directory of images. Its methods are safe for concurrent use.
type Store struct {
	root, certsDir string
	verify         access.Policy
	pulled         func(time.Duration, error) // may be nil
	log            *slog.Logger
	db             *database.DB

	// ctx ends when the store is closed; ops counts the operations running under it.
	// Invariant: ops isn't incremented once ctx has ended. closing guards both.
	ctx     context.Context
	cancel  context.CancelFunc
	ops     sync.WaitGroup
	closing sync.Mutex

	// Invariant: the image records in db equal those in index while changing is not held.
	// It is locked before index.mu.
	changing sync.Mutex
	index    index

	unpacker unpacker
	inflight inflight
	partials partials
	// possessions are of downloads that aren't part of an image yet.
	possessions possessions
	flusher     *flusher

	// Logins are the node's own.
	Logins Logins

	stall time.Duration // stallTimeout; shorter in tests
}

// Open opens the images below cfg.Root and creates the directory if it doesn't
// exist. It completes or undoes operations that an earlier process left
// unfinished. Only one process at a time can have the images open.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	db, err := database.Open(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	log := cmp.Or(cfg.Log, slog.Default())
	s := &Store{
		root:     cfg.Root,
		certsDir: cfg.CertsDir,
		verify:   cfg.Verify,
		pulled:   cfg.Pulled,
		log:      log,
		db:       db,
		index:    newIndex(shortNames(cmp.Or(cfg.ShortNames, DockerHub))),
		unpacker: unpacker{db: db, root: cfg.Root},
		flusher:  newFlusher(db, log),
		Logins:   Logins{cfg.CertsDir, loginfile.At(filepath.Join(cfg.Root, "logins.json"))},
		stall:    stallTimeout,
	}
	s.ctx, s.cancel = context.WithCancel(db.Context(context.Background()))
	if err := s.recover(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("images: %w", err)
	}
	return s, nil
}

// Close cancels running operations, waits for them to end and closes the store.
// Directories returned by Rootfs stay valid.
func (s *Store) Close() error {
	s.closing.Lock()
	s.cancel()
	s.closing.Unlock()
	s.ops.Wait()
	s.partials.stop()
	s.flusher.stop()
	return s.db.Close()
}

// enter keeps the store from being closed until exit is called.
func (s *Store) enter() (exit func(), err error) {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.ctx.Err() != nil {
		return nil, errdefs.ErrUnavailable.WithMessage("image store is closed: huskd is shutting down")
	}
	s.ops.Add(1)
	return s.ops.Done, nil
}

// commit records the images of an operation, all or none, and returns each image once, with
// those of its names that the operation has given it.
func (s *Store) commit(op *database.Operation, list ...namedEntry) ([]Image, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	grants := map[string]access.Grants{}
	texts := map[string]map[string]string{}
	for _, n := range list { // several names may be for one image
		grants[n.id] = slices.Concat(grants[n.id], n.grants)
	}
	for id, add := range grants {
		grants[id], texts[id] = s.index.grant(id, add)
	}
	var records []database.Record
	for _, n := range list {
		r := n.record()
		r.Grants = texts[n.id]
		records = append(records, r)
	}
	if err := op.Commit(records...); err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range list {
		s.index.put(n.entry, n.names, grants[n.id])
		if !slices.Contains(ids, n.id) { // several names may be for one image
			ids = append(ids, n.id)
		}
	}
	s.flusher.flush(ids...)
	var images []Image
	for _, id := range ids {
		img := s.index.image(id)
		unnamed := func(name string) bool {
			return !slices.ContainsFunc(list, func(n namedEntry) bool { return n.id == id && slices.Contains(n.names, name) })
		}
		img.Tags = slices.DeleteFunc(slices.Clone(img.Tags), unnamed)
		img.Digests = slices.DeleteFunc(slices.Clone(img.Digests), unnamed)
		images = append(images, img)
	}
	return images, nil
}

// explainDiskFull adds advice to the error of a full disk and returns any other
// error unchanged.
func (s *Store) explainDiskFull(err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("no space left below %s: prune images or free disk space (%v)", s.root, err))
}

// abort aborts an operation that failed with err, and returns err.
func (s *Store) abort(op *database.Operation, err error) error {
	abortErr := op.Abort()
	if abortErr == nil && errdefs.IsResourceExhausted(err) {
		// Files whose creation could not be recorded on the full disk are orphans.
		abortErr = s.db.CollectOrphans()
	}
	if abortErr != nil {
		return fmt.Errorf("%w (its files are deleted only at the next start: %v)", err, abortErr)
	}
	return err
}
