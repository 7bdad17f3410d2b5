package database

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"
)

// An image is, in the database, one record whose name is its ID, which keeps
// its blobs and layers from being collected, and one record more for each of
// its names. All of them point to a manifest.
const (
	// idLabel is, on a name's record, the ID of the image that it names.
	idLabel = "husk.image"
	// bootLabel is, on an ID's record, the boot in which its layers were
	// unpacked, until they are on disk for sure.
	bootLabel = "husk.boot"

	contentRef  = "containerd.io/gc.ref.content."
	snapshotRef = "containerd.io/gc.ref.snapshot." + snapshotter
)

// Record is what is recorded of an image.
type Record struct {
	ID       string
	Names    []string // whole names
	Manifest ocispec.Descriptor
	Blobs    []digest.Digest // beside the manifest; only for Commit
	// Top is the chain ID of the topmost layer; empty if there is none.
	Top digest.Digest
	// Unsettled says that Settle has not been called for it. Suspect says
	// that, moreover, the machine has been restarted since: any file of its
	// layers may be empty.
	Unsettled, Suspect bool
}

// put adds an image, if it isn't there, and gives it names, which other images
// lose.
func (db *DB) put(ctx context.Context, r Record) error {
	labels := map[string]string{bootLabel: bootID(), snapshotRef: r.Top.String()}
	for i, d := range r.Blobs {
		labels[fmt.Sprint(contentRef, i)] = d.String()
	}
	_, err := db.images.Create(ctx, images.Image{Name: r.ID, Target: r.Manifest, Labels: labels})
	if err != nil && !errdefs.IsAlreadyExists(err) {
		return err
	}
	for _, name := range r.Names {
		record := images.Image{Name: name, Target: r.Manifest, Labels: map[string]string{idLabel: r.ID}}
		_, err := db.images.Update(ctx, record)
		if errdefs.IsNotFound(err) {
			_, err = db.images.Create(ctx, record)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Records returns what is recorded of all images.
func (db *DB) Records() ([]Record, error) {
	list, err := db.images.List(db.background())
	if err != nil {
		return nil, err
	}
	names := map[string][]string{}
	for _, r := range list {
		if id := r.Labels[idLabel]; id != "" {
			names[id] = append(names[id], r.Name)
		}
	}
	var records []Record
	for _, r := range list {
		if r.Labels[idLabel] != "" {
			continue
		}
		boot := r.Labels[bootLabel]
		records = append(records, Record{
			ID:        r.Name,
			Names:     names[r.Name],
			Manifest:  r.Target,
			Top:       digest.Digest(r.Labels[snapshotRef]),
			Unsettled: boot != "",
			Suspect:   boot != "" && boot != bootID(),
		})
	}
	return records, nil
}

// Erase deletes the records of names and IDs, and what only they kept.
func (db *DB) Erase(names ...string) error {
	if len(names) == 0 {
		return nil
	}
	// An operation, so that the collection is made up for should it be cut.
	op, err := db.Begin(context.Background())
	if err != nil {
		return err
	}
	err = db.transact(func(ctx context.Context) error {
		for _, name := range names {
			if err := db.images.Delete(ctx, name); err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if abortErr := op.Abort(); err == nil {
		err = abortErr
	}
	return err
}

// Sync waits until everything that has been unpacked is on disk.
func (db *DB) Sync() error {
	dir, err := os.Open(db.root)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := unix.Syncfs(int(dir.Fd())); err != nil {
		return fmt.Errorf("sync %s: %w", db.root, err)
	}
	return nil
}

// Settle records that the layers of images are on disk.
func (db *DB) Settle(ids ...string) error {
	return db.transact(func(ctx context.Context) error {
		for _, id := range ids {
			_, err := db.images.Update(ctx, images.Image{Name: id}, "labels."+bootLabel)
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
}

// bootID tells one boot of this machine from another.
var bootID = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return time.Now().String() // never seen again: every start counts as a boot
	}
	return strings.TrimSpace(string(id))
})
