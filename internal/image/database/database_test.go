package database

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.etcd.io/bbolt"
	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func openDB(t *testing.T, root string) *DB {
	t.Helper()
	db, err := Open(root)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// newDB opens a database in a new directory.
func newDB(t *testing.T) *DB {
	t.Helper()
	hosttest.Root(t)
	return openDB(t, filepath.Join(t.TempDir(), "images"))
}

// reopen closes a database and opens it again.
func reopen(t *testing.T, db *DB) *DB {
	t.Helper()
	must(t, db.Close())
	return openDB(t, db.root)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func begin(t *testing.T, db *DB) *Operation {
	t.Helper()
	op, err := db.Begin(t.Context())
	must(t, err)
	return op
}

// putBlob stores text as a blob.
func putBlob(ctx context.Context, db *DB, text string) (ocispec.Descriptor, error) {
	desc := ocispec.Descriptor{MediaType: "text/plain", Digest: digest.FromString(text), Size: int64(len(text))}
	return desc, content.WriteBlob(ctx, db.Content, text, strings.NewReader(text), desc)
}

// adding serializes addLayers, because callers of Layers.Create must not create a layer twice
// concurrently.
var adding sync.Mutex

// addLayers adds a stack of layers, lowest first, each with a file of its name.
func addLayers(ctx context.Context, db *DB, names ...string) (top digest.Digest, err error) {
	adding.Lock()
	defer adding.Unlock()
	for i := range names {
		id := digest.FromString(strings.Join(names[:i+1], "/"))
		created, err := db.Layers.Create(ctx, id)
		if err == nil && created != nil {
			err = errors.Join(os.WriteFile(filepath.Join(created.Dir, names[i]), nil, 0o600), created.Commit(ctx, top))
		}
		if err != nil {
			return "", err
		}
		top = id
	}
	return top, nil
}

// addImage records an image with a manifest, a blob and layers.
func addImage(ctx context.Context, db *DB, id string, layers []string, names ...string) error {
	op, err := db.Begin(ctx)
	if err != nil {
		return err
	}
	manifest, err := putBlob(op.Context, db, "manifest "+id)
	if err != nil {
		return err
	}
	blob, err := putBlob(op.Context, db, "blob of "+strings.Join(layers, "/"))
	if err != nil {
		return err
	}
	top, err := addLayers(op.Context, db, layers...)
	if err != nil {
		return err
	}
	return op.Commit(Record{ID: id, Names: names, Manifest: manifest, Blobs: []digest.Digest{blob.Digest}, Top: top})
}

// wantFiles fails unless there are exactly that many blobs, partial downloads and layers on disk.
func wantFiles(t *testing.T, db *DB, blobs, ingests, layers int) {
	t.Helper()
	for pattern, want := range map[string]int{"content/blobs/*/*": blobs, "content/ingest/*": ingests, "layers/snapshots/*": layers} {
		found, err := filepath.Glob(filepath.Join(db.root, pattern))
		must(t, err)
		if len(found) != want {
			t.Errorf("%s: %d files %v, want %d", pattern, len(found), found, want)
		}
	}
}

// wantRecords fails unless the records are exactly want, each written as "ID name name…".
func wantRecords(t *testing.T, db *DB, want ...string) {
	t.Helper()
	records, err := db.Records()
	must(t, err)
	got := []string{}
	for _, r := range records {
		slices.Sort(r.Names)
		got = append(got, strings.Join(append([]string{r.ID}, r.Names...), " "))
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("records %q, want %q", got, want)
	}
}

// update changes the closed database file of db.
func update(t *testing.T, db *DB, change func(v1 *bbolt.Bucket) error) {
	t.Helper()
	must(t, db.Close())
	file, err := bbolt.Open(filepath.Join(db.root, "images.db"), 0o600, nil)
	must(t, err)
	defer file.Close()
	must(t, file.Update(func(tx *bbolt.Tx) error { return change(tx.Bucket([]byte("v1"))) }))
}

func TestCommit(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base", "app"}, "web:v1", "web:v2"))
	for range 2 {
		must(t, db.Collect())
		wantRecords(t, db, "sha256:a web:v1 web:v2")
		wantFiles(t, db, 2, 0, 2)
		records, err := db.Records()
		must(t, err)
		stack, err := db.Layers.Stack(db.background(), records[0].Top)
		must(t, err)
		for i, name := range []string{"app", "base"} { // topmost first
			if _, err := os.Stat(filepath.Join(stack[i].Dir, name)); err != nil || stack[i].Inodes < 2 {
				t.Errorf("layer %d: %+v, %v", i, stack[i], err)
			}
		}
		if raw, err := content.ReadBlob(db.background(), db.Content, records[0].Manifest); err != nil || string(raw) != "manifest sha256:a" {
			t.Errorf("manifest %q, %v", raw, err)
		}
		if size, err := db.Usage(); err != nil || size < int64(len("manifest sha256:a")+len("blob of base/app")) {
			t.Errorf("usage %d, %v", size, err)
		}
		db = reopen(t, db)
	}
}

// TestCommitIsAtomic checks that a failing Commit records nothing.
func TestCommitIsAtomic(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	op := begin(t, db)
	manifest, err := putBlob(op.Context, db, "manifest")
	must(t, err)
	err = op.Commit(Record{ID: "sha256:a", Names: []string{"web:v1"}, Manifest: manifest}, Record{ID: "", Manifest: manifest})
	if err == nil {
		t.Error("a record without an ID was committed")
	}
	wantRecords(t, db)
	wantFiles(t, db, 1, 0, 0) // the operation has not ended
	must(t, op.Abort())
	wantFiles(t, db, 0, 0, 0)
}

func TestNamesMove(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"a"}, "web:v1", "web:latest"))
	must(t, addImage(t.Context(), db, "sha256:b", []string{"b"}, "web:v2", "web:latest"))
	wantRecords(t, db, "sha256:a web:v1", "sha256:b web:latest web:v2")
	must(t, addImage(t.Context(), db, "sha256:a", []string{"a"}, "web:again"))
	wantRecords(t, db, "sha256:a web:again web:v1", "sha256:b web:latest web:v2")
}

// TestDelete checks that Delete deletes what only the image references.
func TestDelete(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base", "a"}, "web:a"))
	must(t, addImage(t.Context(), db, "sha256:b", []string{"base", "b"}, "web:b"))
	wantFiles(t, db, 4, 0, 3)
	must(t, db.Delete("web:a"))
	wantRecords(t, db, "sha256:a", "sha256:b web:b")
	wantFiles(t, db, 4, 0, 3)
	must(t, db.Delete("sha256:a", "unknown"))
	wantRecords(t, db, "sha256:b web:b")
	wantFiles(t, db, 2, 0, 2)
	must(t, db.Delete("sha256:b", "web:b"))
	wantFiles(t, db, 0, 0, 0)
	must(t, db.Delete())
}

// TestAbort checks that Abort deletes only what no other operation or record references.
func TestAbort(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base"}))
	one, other := begin(t, db), begin(t, db)
	for _, op := range []*Operation{one, other} {
		_, err := putBlob(op.Context, db, "shared")
		must(t, err)
	}
	if found, err := db.Layers.Retain(one.Context, digest.FromString("base")); !found || err != nil {
		t.Errorf("retain: %v, %v", found, err)
	}
	if found, err := db.Layers.Retain(one.Context, digest.FromString("none")); found || err != nil {
		t.Errorf("retain of a missing layer: %v, %v", found, err)
	}
	must(t, db.Delete("sha256:a"))
	wantFiles(t, db, 1, 0, 1) // kept by the operations
	must(t, one.Abort())
	wantFiles(t, db, 1, 0, 0)
	must(t, other.Abort())
	wantFiles(t, db, 0, 0, 0)
	must(t, other.End()) // has ended already
}

// TestAbandonedOperations checks that Open deletes what operations of an earlier process created,
// and nothing else.
func TestAbandonedOperations(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base"}, "web:v1"))
	op := begin(t, db)
	_, err := putBlob(op.Context, db, "blob")
	must(t, err)
	_, err = addLayers(op.Context, db, "base", "app")
	must(t, err)
	w, err := db.Content.Writer(op.Context, content.WithRef("partial"))
	must(t, err)
	_, err = w.Write([]byte("half"))
	must(t, err)
	must(t, w.Close())
	wantFiles(t, db, 3, 1, 2)
	db = reopen(t, db)
	wantFiles(t, db, 2, 0, 1)
	wantRecords(t, db, "sha256:a web:v1")
}

// TestCollectOrphans checks that files that the database doesn't know are deleted.
func TestCollectOrphans(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base"}, "web:v1"))
	for _, dir := range []string{"layers/snapshots/999/fs", "content/ingest/unnamed"} {
		must(t, os.MkdirAll(filepath.Join(db.root, dir), 0o700))
	}
	orphan := filepath.Join(db.root, "content/blobs/sha256", digest.FromString("orphan").Encoded())
	must(t, os.WriteFile(orphan, []byte("orphan"), 0o600))
	must(t, db.CollectOrphans())
	wantFiles(t, db, 2, 0, 1)
	wantRecords(t, db, "sha256:a web:v1")
}

// TestSynced checks that a layer is suspect if the machine reboots before MarkSynced.
func TestSynced(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"a"}))
	must(t, addImage(t.Context(), db, "sha256:b", []string{"b"}))
	must(t, db.Sync())
	must(t, db.MarkSynced("sha256:b", "unknown"))
	want := func(unsynced, suspect bool) {
		t.Helper()
		records, err := db.Records()
		must(t, err)
		for _, r := range records {
			if synced := r.ID == "sha256:b"; r.Unsynced != (unsynced && !synced) || r.Suspect != (suspect && !synced) {
				t.Errorf("%s: unsynced is %v, suspect %v", r.ID, r.Unsynced, r.Suspect)
			}
		}
	}
	want(true, false)
	update(t, db, func(v1 *bbolt.Bucket) error {
		labels := v1.Bucket([]byte("husk")).Bucket([]byte("images")).Bucket([]byte("sha256:a")).Bucket([]byte("labels"))
		return labels.Put([]byte(bootLabel), []byte("an earlier boot"))
	})
	db = openDB(t, db.root)
	want(true, true)
	must(t, db.MarkSynced("sha256:a"))
	want(false, false)
}

// TestDiscardedLayer checks that nothing is left of a layer that is discarded.
func TestDiscardedLayer(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	op := begin(t, db)
	base, err := addLayers(op.Context, db, "base")
	must(t, err)
	id := digest.FromString("bad")
	created, err := db.Layers.Create(op.Context, id)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(created.Dir, "file"), nil, 0o600))
	created.Discard(op.Context)
	if _, err := db.Layers.Stack(op.Context, id); !errdefs.IsNotFound(err) {
		t.Errorf("the layer exists: %v", err)
	}
	must(t, db.Collect())
	wantFiles(t, db, 0, 0, 1)
	if created, err := db.Layers.Create(op.Context, base); err != nil || created != nil {
		t.Errorf("an existing layer is created again: %v %v", created, err)
	}
}

// TestLayersInAnyOrder checks that layers can be created at the same time, and that one needs its
// parent only for Commit.
func TestLayersInAnyOrder(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	op := begin(t, db)
	low, high := digest.FromString("low"), digest.FromString("high")
	upper, err := db.Layers.Create(op.Context, high)
	must(t, err)
	lower, err := db.Layers.Create(op.Context, low)
	must(t, err)
	if err := upper.Commit(op.Context, low); !errdefs.IsNotFound(err) {
		t.Errorf("committed without its parent: %v", err)
	}
	must(t, lower.Commit(op.Context, ""))
	must(t, upper.Commit(op.Context, low))
	stack, err := db.Layers.Stack(op.Context, high)
	must(t, err)
	if len(stack) != 2 || stack[0].Dir != upper.Dir || stack[1].Dir != lower.Dir {
		t.Errorf("%+v", stack)
	}
	must(t, db.Collect())
	wantFiles(t, db, 0, 0, 2)
}

// TestRemoveLayers checks that Remove stops at a layer that another is on.
func TestRemoveLayers(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	op := begin(t, db)
	one, err := addLayers(op.Context, db, "base", "one", "more")
	must(t, err)
	_, err = addLayers(op.Context, db, "base", "two")
	must(t, err)
	db.Layers.Remove(op.Context, one)
	must(t, db.Collect())
	wantFiles(t, db, 0, 0, 2)
	db.Layers.Remove(op.Context, one) // does nothing
}

// TestDamagedFile checks that a database that can't be opened is an error that says what to do, and
// that the file stays as it is.
func TestDamagedFile(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	for name, damage := range map[string][]byte{
		"garbage": []byte(strings.Repeat("garbage!", 10_000)),
		"short":   []byte("x"),
		"zeros":   make([]byte, 64<<10),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			file := filepath.Join(root, "images.db")
			must(t, os.WriteFile(file, damage, 0o600))
			_, err := Open(root)
			if err == nil || !strings.Contains(err.Error(), "if images.db is damaged, delete "+root) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
			if left, err := os.ReadFile(file); err != nil || !bytes.Equal(left, damage) {
				t.Errorf("the file was changed: %d bytes, %v", len(left), err)
			}
		})
	}
}

// TestMissingFiles checks that the database opens if files of blobs and layers are missing, and
// that reading those fails.
func TestMissingFiles(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base"}, "web:v1"))
	must(t, db.Close())
	for _, dir := range []string{"content", "layers/snapshots"} {
		must(t, os.RemoveAll(filepath.Join(db.root, dir)))
	}
	db = openDB(t, db.root)
	records, err := db.Records()
	must(t, err)
	if len(records) != 1 {
		t.Fatalf("records %+v", records)
	}
	if _, err := content.ReadBlob(db.background(), db.Content, records[0].Manifest); !errdefs.IsNotFound(err) {
		t.Errorf("read a missing blob: %v", err)
	}
	if stack, err := db.Layers.Stack(db.background(), records[0].Top); err == nil {
		if _, err := os.Stat(stack[0].Dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the layer's directory: %v", err)
		}
	}
	// The image can be deleted and added again.
	must(t, db.Delete("sha256:a", "web:v1"))
	must(t, addImage(t.Context(), db, "sha256:a", []string{"base"}, "web:v1"))
	wantFiles(t, db, 2, 0, 1)
}

// TestVersions checks that databases of earlier and of later versions of containerd's schema are
// opened with all their records.
func TestVersions(t *testing.T) {
	t.Parallel()
	for _, version := range []uint64{0, 1, 1 << 20} {
		t.Run(fmt.Sprint(version), func(t *testing.T) {
			t.Parallel()
			db := newDB(t)
			must(t, addImage(t.Context(), db, "sha256:a", []string{"base"}, "web:v1"))
			update(t, db, func(v1 *bbolt.Bucket) error {
				return v1.Put([]byte("version"), binary.AppendVarint(nil, int64(version)))
			})
			db = openDB(t, db.root)
			wantRecords(t, db, "sha256:a web:v1")
			must(t, addImage(t.Context(), db, "sha256:b", []string{"base", "b"}, "web:v2"))
			wantRecords(t, db, "sha256:a web:v1", "sha256:b web:v2")
		})
	}
}

// TestOpenTwice checks that only one process can open a database, and that Open waits for another
// that is about to close it.
func TestOpenTwice(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	_, err := Open(db.root)
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), db.root+" is in use by another process") {
		t.Errorf("got %v", err)
	}
	closed := make(chan error)
	time.AfterFunc(lockTimeout/4, func() { closed <- db.Close() })
	again, err := Open(db.root)
	must(t, <-closed)
	must(t, err)
	must(t, again.Close())
}

// TestConcurrentUse adds and deletes images that share layers and blobs, concurrently. It checks
// that recorded images are complete and that nothing is left in the end.
func TestConcurrentUse(t *testing.T) {
	t.Parallel()
	db := newDB(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for range 10 {
				id, name := fmt.Sprint("sha256:", i), fmt.Sprintf("web:v%d", i)
				if err := addImage(t.Context(), db, id, []string{"base", "shared", fmt.Sprint(i)}, name); err != nil {
					t.Error(err)
					return
				}
				stack, err := db.Layers.Stack(db.background(), digest.FromString(fmt.Sprint("base/shared/", i)))
				if err != nil || len(stack) != 3 {
					t.Errorf("layers of a recorded image: %v, %v", stack, err)
					return
				}
				for j, file := range []string{fmt.Sprint(i), "shared", "base"} {
					if _, err := os.Stat(filepath.Join(stack[j].Dir, file)); err != nil {
						t.Error(err)
					}
				}
				if err := db.Delete(id, name); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for range 20 {
			op, err := db.Begin(t.Context())
			if err == nil {
				_, err = putBlob(op.Context, db, fmt.Sprint("blob ", rand.Uint64()))
			}
			if err == nil {
				err = op.Abort()
			}
			if err == nil {
				_, err = db.Usage()
			}
			if err != nil && !errdefs.IsNotFound(err) { // Usage may meet a layer that is being deleted
				t.Error(err)
				return
			}
		}
	})
	wg.Wait()
	wantRecords(t, db)
	wantFiles(t, db, 0, 0, 0)
}
