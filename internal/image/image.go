// Package image owns images. It pulls and loads them, keeps them unpacked, and
// says from which directories a container's root filesystem is mounted.
//
// What is durable lies in the database (internal/image/database). Everything
// about whole images is also in memory: to list, find or use one costs no
// transaction and no system call.
package image

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/image/database"
)

// stallTimeout is how long a pull may go without a single byte.
const stallTimeout = 5 * time.Minute

// Config says where a store keeps its state.
type Config struct {
	// Root is the directory of all images. It needs a filesystem that can hold
	// the layers of an overlay, such as ext4 or xfs.
	Root string
	// CertsDir has a directory for each registry that needs one, with a
	// hosts.toml (mirrors, plain http, headers) or certificates, as containerd
	// and docker lay them out. It need not be there.
	CertsDir string
	// Pulled, if set, is told how long each pull took, and how it failed if it did.
	Pulled func(time.Duration, error)
	// Log gets what nobody is there to be told; nil is the default logger.
	Log *slog.Logger
}

// Image describes an image that is here, unpacked.
type Image struct {
	ID       string   // digest of its config
	Tags     []string // whole names with a tag, sorted
	Digests  []string // whole names with a digest, sorted
	Size     int64    // bytes of its blobs, compressed
	Unpacked int64    // bytes of its layers on disk; layers may be shared
	Created  time.Time
	Platform string // for example linux/amd64
	InUse    bool   // somebody holds it
	Config   ocispec.ImageConfig
}

// Store is the one owner of a directory of images. Its methods may be called
// from any goroutine.
type Store struct {
	root, certsDir string
	pulled         func(time.Duration, error) // may be nil
	log            *slog.Logger
	db             *database.DB

	// ctx ends when the store is closed; ops counts what runs under it. Nothing
	// is added to ops after that, because both happen under closing.
	ctx     context.Context
	cancel  context.CancelFunc
	ops     sync.WaitGroup
	closing sync.Mutex

	// changing is held while records of images change, in the database and in
	// index, so that both always say the same. It is locked before index.mu.
	changing sync.Mutex
	index    index

	assembler assembler
	flights   flights
	partial   partial
	settler   *settler

	stall time.Duration // stallTimeout; shorter in tests
}

// Open opens the images below cfg.Root, and makes the directory if it isn't
// there. It finishes or undoes what an earlier process left half-done. Only one
// process at a time can have the images open.
func Open(ctx context.Context, cfg Config) (*Store, error) {
	db, err := database.Open(cfg.Root)
	if err != nil {
		return nil, fmt.Errorf("images: %w", err)
	}
	log := cmp.Or(cfg.Log, slog.Default())
	s := &Store{
		root:      cfg.Root,
		certsDir:  cfg.CertsDir,
		pulled:    cfg.Pulled,
		log:       log,
		db:        db,
		index:     newIndex(),
		assembler: assembler{db: db, root: cfg.Root},
		settler:   newSettler(db, log),
		stall:     stallTimeout,
	}
	s.ctx, s.cancel = context.WithCancel(db.Context(context.Background()))
	if err := s.recover(ctx); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("images: %w", err)
	}
	return s, nil
}

// Close cuts what is going on, waits for it to end and closes the store. What
// has been handed out by Rootfs stays valid.
func (s *Store) Close() error {
	s.closing.Lock()
	s.cancel()
	s.closing.Unlock()
	s.ops.Wait()
	s.partial.stop()
	s.settler.stop()
	return s.db.Close()
}

// enter keeps the store from being closed until exit is called.
func (s *Store) enter() (exit func(), err error) {
	s.closing.Lock()
	defer s.closing.Unlock()
	if s.ctx.Err() != nil {
		return nil, errdefs.ErrUnavailable.WithMessage("images are closed: the daemon is about to exit")
	}
	s.ops.Add(1)
	return s.ops.Done, nil
}

// commit makes the images of an operation be there, all or none, and returns
// each once.
func (s *Store) commit(op *database.Operation, list ...named) ([]Image, error) {
	s.changing.Lock()
	defer s.changing.Unlock()
	var records []database.Record
	for _, n := range list {
		records = append(records, n.record())
	}
	if err := op.Commit(records...); err != nil {
		return nil, err
	}
	var ids []string
	for _, n := range list {
		s.index.put(n.entry, n.names)
		if !slices.Contains(ids, n.id) { // several names may be of one image
			ids = append(ids, n.id)
		}
	}
	s.settler.settle(ids...)
	var images []Image
	for _, id := range ids {
		images = append(images, s.index.image(id))
	}
	return images, nil
}

// diskFull explains the error of a full disk, and no other.
func (s *Store) diskFull(err error) error {
	if !errors.Is(err, unix.ENOSPC) && !errors.Is(err, unix.EDQUOT) {
		return err
	}
	return errdefs.ErrResourceExhausted.WithMessage(fmt.Sprintf("no space left below %s: prune images, or make room there (%v)", s.root, err))
}

// undo aborts an operation that failed with err.
func (s *Store) undo(op *database.Operation, err error) error {
	abortErr := op.Abort()
	if abortErr == nil && errdefs.IsResourceExhausted(err) {
		// Not all could be deleted while there was no room to record it.
		abortErr = s.db.Scour()
	}
	if abortErr != nil {
		return fmt.Errorf("%w (and what there is of it is only deleted at the next start: %v)", err, abortErr)
	}
	return err
}
