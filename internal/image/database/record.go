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

	"github.com/huskd/husk/internal/host"
)

// In the database, an image is a record named by its ID, which references its blobs
// and layers, and one more record for each of its names. All refer to its manifest.
const (
	// idLabel, on the record of a name, is the image's ID.
	idLabel = "husk.image"
	// bootLabel, on the record of an ID, is the boot ID at the time when its layers
	// were unpacked. It is removed once they are synced to disk.
	bootLabel = "husk.boot"
	// grantLabel begins the labels, on the record of an ID, that say who may use the image.
	grantLabel = "husk.grant."

	contentRef  = "containerd.io/gc.ref.content."
	snapshotRef = "containerd.io/gc.ref.snapshot." + snapshotter
)

// Record is the record of an image.
type Record struct {
	ID       string
	Names    []string // full names
	Manifest ocispec.Descriptor
	Blobs    []digest.Digest // without the manifest; only for Commit
	// Top is the chain ID of the topmost layer; empty if there is none.
	Top digest.Digest
	// Grants say who may use the image, by their keys. Commit adds them to those of the image, and
	// those without a text are removed.
	Grants map[string]string
	// Unsynced means that MarkSynced has not been called for the image. Suspect means
	// that the machine has also rebooted since: any file of its layers may be empty.
	Unsynced, Suspect bool
}

// put adds an image, unless it is there, and moves names to it.
func (db *DB) put(ctx context.Context, r Record) error {
	labels := map[string]string{bootLabel: bootID(), snapshotRef: r.Top.String()}
	for i, d := range r.Blobs {
		labels[fmt.Sprint(contentRef, i)] = d.String()
	}
	for key, text := range r.Grants {
		labels[grantLabel+key] = text
	}
	_, err := db.images.Create(ctx, images.Image{Name: r.ID, Target: r.Manifest, Labels: labels})
	if errdefs.IsAlreadyExists(err) {
		err = db.putGrants(ctx, r)
	}
	if err != nil {
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

// putGrants adds to the grants of an image that is there.
func (db *DB) putGrants(ctx context.Context, r Record) error {
	if len(r.Grants) == 0 {
		return nil
	}
	labels := map[string]string{}
	var paths []string
	for key, text := range r.Grants {
		labels[grantLabel+key] = text
		paths = append(paths, "labels."+grantLabel+key)
	}
	_, err := db.images.Update(ctx, images.Image{Name: r.ID, Labels: labels}, paths...)
	return err
}

func grantsOf(labels map[string]string) map[string]string {
	out := map[string]string{}
	for label, text := range labels {
		if key, is := strings.CutPrefix(label, grantLabel); is {
			out[key] = text
		}
	}
	return out
}

// Records returns the records of all images.
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
			ID:       r.Name,
			Names:    names[r.Name],
			Manifest: r.Target,
			Top:      digest.Digest(r.Labels[snapshotRef]),
			Grants:   grantsOf(r.Labels),
			Unsynced: boot != "",
			Suspect:  boot != "" && boot != bootID(),
		})
	}
	return records, nil
}

// Delete deletes the records of names and IDs, and what only they referenced.
func (db *DB) Delete(names ...string) error {
	if len(names) == 0 {
		return nil
	}
	// With an operation, a collection that a crash interrupts is repeated by Open.
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

// MarkSynced records that the layers of images are on disk.
func (db *DB) MarkSynced(ids ...string) error {
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

// bootID identifies the current boot of this machine.
var bootID = sync.OnceValue(func() string {
	id, err := host.BootID()
	if err != nil {
		return time.Now().String() // unique, so that every start counts as a boot
	}
	return id
})
