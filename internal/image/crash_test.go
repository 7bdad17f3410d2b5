package image

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image/database"
	"github.com/huskd/husk/test/testimage"
)

// Environment variables of the process to be killed.
const (
	crashDir = "HUSK_TEST_CRASH_DIR" // directory of images; makes the test binary that process
	crashRef = "HUSK_TEST_CRASH_REF" // images that it pulls and removes in a loop
)

// crash is the main function of that process. It prints "open" when it starts.
func crash(dir string) {
	s, err := Open(context.Background(), Config{Root: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("open")
	for {
		for _, ref := range strings.Fields(os.Getenv(crashRef)) {
			if _, err := s.Pull(context.Background(), ref, PullOptions{}); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
		}
		if _, err := s.Prune(context.Background(), true); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
}

func startCrasher(t testing.TB, root string, refs ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), crashDir+"="+root, crashRef+"="+strings.Join(refs, " "))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1000)
	if n, err := out.Read(line); err != nil || string(line[:n]) != "open\n" {
		t.Fatalf("the process to be killed printed %q %v", line[:n], err)
	}
	return cmd
}

func kill(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the process was not killed, but exited: %v", err)
	}
}

// TestKilledAnywhere kills a process that pulls and removes images, at many moments. It
// checks that the store can be opened, that its images are complete, and that removing
// them leaves nothing.
func TestKilledAnywhere(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	r := newRegistry(t)
	base := makeLayer(t, testimage.Gzip, 1, 300_000)
	images := []*testimage.Image{
		assemble(t, base, makeLayer(t, testimage.Gzip, 2, 200_000)),
		assemble(t, base, makeLayer(t, testimage.Zstd, 3, 10), makeLayer(t, testimage.Gzip, 4, 100_000)),
	}
	var refs []string
	for i, img := range images {
		refs = append(refs, r.push(t, "web", fmt.Sprint("v", i), img))
	}
	root := filepath.Join(t.TempDir(), "images")
	found := map[int]int{}
	times := 40
	if testing.Short() {
		times = 10
	}
	for i := range times {
		cmd := startCrasher(t, root, refs...)
		time.Sleep(time.Duration(i*7%150) * time.Millisecond) // any moment
		kill(t, cmd)

		s := openStore(t, root)
		list := s.List()
		found[len(list)]++
		for _, got := range list {
			at := slices.IndexFunc(images, func(img *testimage.Image) bool { return img.ID() == got.ID })
			if at < 0 {
				t.Fatalf("found an unknown image: %+v", got)
			}
			wantFiles(t, s, images[at])
		}
		if i%3 == 0 {
			for j, ref := range refs {
				mustPull(t, s, ref)
				wantFiles(t, s, images[j])
			}
		}
		if i%2 == 0 {
			if _, err := s.Prune(t.Context(), true); err != nil {
				t.Fatal(err)
			}
			wantDisk(t, s, nil)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		wantNoOperations(t, root)
	}
	t.Logf("number of images found after a kill: %v", found)
}

// wantNoOperations fails if the database has leases.
func wantNoOperations(t testing.TB, root string) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(root, "images.db"), 0o600, &bbolt.Options{Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.View(func(tx *bbolt.Tx) error {
		bucket := tx.Bucket([]byte("v1"))
		for _, name := range []string{"husk", "leases"} {
			if bucket == nil {
				return nil
			}
			bucket = bucket.Bucket([]byte(name))
		}
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(k, _ []byte) error { return fmt.Errorf("operation %s has not ended", k) })
	})
	if err != nil {
		t.Error(err)
	}
}

// TestKilledInTheMiddle kills a process in the middle of a layer's download, with two
// other layers unpacked.
func TestKilledInTheMiddle(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	var block sync.Map
	halfway := make(chan struct{}, 100)
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if _, blocked := block.Load(filepath.Base(r.URL.Path)); !blocked {
			next.ServeHTTP(w, r)
			return
		}
		paused := &pausedWriter{ResponseWriter: w, at: 100_000, reached: halfway, goOn: make(chan struct{})}
		go func() { <-r.Context().Done(); close(paused.goOn) }()
		next.ServeHTTP(paused, r)
	}))
	img := makeImage(t, 1, 3, 200_000)
	name := r.push(t, "web", "v1", img)
	block.Store(img.Layers[2].Descriptor.Digest.String(), true)
	root := filepath.Join(t.TempDir(), "images")
	cmd := startCrasher(t, root, name)
	<-halfway
	eventually(t, "two layers are unpacked and a third is being downloaded", func() bool {
		layers, _ := filepath.Glob(filepath.Join(root, "layers/snapshots/[0-9]*/fs/data/*"))
		data, _ := filepath.Glob(filepath.Join(root, "content/ingest/*/data"))
		return len(layers) == 2 && len(data) == 1
	})
	kill(t, cmd)
	s := openStore(t, root)
	wantDisk(t, s, nil)
	block.Clear()
	mustPull(t, s, name)
	wantFiles(t, s, img)
}

func TestOpenTwice(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	_, err := Open(t.Context(), Config{Root: s.root})
	wantError(t, err, s.root, "in use by another process")
}

func TestOpenErrors(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), Config{Root: filepath.Join(file, "images")})
	wantError(t, err, file, "not a directory")
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "images.db"), []byte(strings.Repeat("garbage!", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), Config{Root: root})
	wantError(t, err, "invalid database", "delete "+root)
}

// TestRestart checks that images are found after a restart, under all their names.
func TestRestart(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	r := newRegistry(t)
	root := filepath.Join(t.TempDir(), "images")
	s := openStore(t, root)
	pulled, loaded, empty := makeImage(t, 1, 3, 1000), makeImage(t, 2, 1, 1000), assemble(t)
	mustPull(t, s, r.push(t, "web", "v1", pulled))
	loadAs(t, s, loaded, "localhost/a:v1", "localhost/b:v1")
	loadAs(t, s, empty)
	want := s.List()
	lower, err := s.Rootfs(pulled.ID())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, root)
	if got := s.List(); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("after a restart:\n%+v\nwant\n%+v", got, want)
	}
	if got, err := s.Rootfs(pulled.ID()); err != nil || !slices.Equal(got, lower) {
		t.Errorf("layers after a restart: %v %v, want %v", got, err, lower)
	}
}

// setBoot records that images were unpacked in an earlier boot and are not synced.
func setBoot(t testing.TB, root string, ids ...string) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(root, "images.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, id := range ids {
			bucket := tx.Bucket([]byte("v1")).Bucket([]byte("husk")).Bucket([]byte("images")).Bucket([]byte(id)).Bucket([]byte("labels"))
			if err := bucket.Put([]byte("husk.boot"), []byte("another")); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestPowerFailure checks that layers which were not synced before a reboot are unpacked
// again from their blobs, including shared ones.
func TestPowerFailure(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	root := filepath.Join(t.TempDir(), "images")
	s := openStore(t, root)
	base := makeLayer(t, testimage.Gzip, 1, 10_000)
	one, two, onlyBase := assemble(t, base, makeLayer(t, testimage.Gzip, 2, 1000)), assemble(t, base, makeLayer(t, testimage.Gzip, 3, 1000)), assemble(t, base)
	var ids, damaged []string
	for i, img := range []*testimage.Image{one, two, onlyBase} {
		loadAs(t, s, img, fmt.Sprintf("localhost/%d:v1", i))
		ids = append(ids, img.ID())
		lower, err := s.Rootfs(img.ID())
		if err != nil {
			t.Fatal(err)
		}
		damaged = append(damaged, lower...)
	}
	eventually(t, "all layers are synced", func() bool {
		records, err := s.db.Records()
		if err != nil {
			t.Fatal(err)
		}
		return !slices.ContainsFunc(records, func(r database.Record) bool { return r.Unsynced })
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range damaged {
		files, err := filepath.Glob(dir + "/data/*")
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		if err := os.Truncate(files[0], 0); err != nil {
			t.Fatal(err)
		}
	}
	setBoot(t, root, ids...)
	s = openStore(t, root)
	for i, img := range []*testimage.Image{one, two, onlyBase} {
		wantFiles(t, s, img)
		if got, err := s.Get(fmt.Sprintf("localhost/%d:v1", i)); err != nil || got.ID != img.ID() {
			t.Errorf("image %d: %v", i, err)
		}
	}
	for _, id := range ids {
		if _, err := s.Remove(t.Context(), id, false); err != nil {
			t.Fatal(err)
		}
	}
	wantDisk(t, s, nil)
}

// TestDamagedImages checks that missing layers are unpacked again, that an image whose
// blobs are missing too is removed, and that other images stay.
func TestDamagedImages(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	root := filepath.Join(t.TempDir(), "images")
	s := openStore(t, root)
	good, layerLost, blobLost := makeImage(t, 1, 2, 1000), makeImage(t, 2, 2, 1000), makeImage(t, 3, 2, 1000)
	for i, img := range []*testimage.Image{good, layerLost, blobLost} {
		loadAs(t, s, img, fmt.Sprintf("localhost/%d:v1", i))
	}
	var gone []string
	for _, img := range []*testimage.Image{layerLost, blobLost} {
		lower, err := s.Rootfs(img.ID())
		if err != nil {
			t.Fatal(err)
		}
		gone = append(gone, filepath.Dir(lower[1]))
	}
	gone = append(gone, filepath.Join(root, "content/blobs/sha256", blobLost.Layers[0].Descriptor.Digest.Encoded()))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, path := range gone {
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, root)
	wantFiles(t, s, good)
	wantFiles(t, s, layerLost)
	_, err := s.Get("localhost/2:v1")
	wantError(t, err, "not found")
	loadAs(t, s, blobLost, "localhost/2:v1")
	wantFiles(t, s, blobLost)
}

// TestPruneDeletesInterruptedPull checks that Prune deletes the data of an interrupted
// pull.
func TestPruneDeletesInterruptedPull(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) { cut(w, r, next, 50_000, true) }))
	s := newStore(t)
	name := r.push(t, "web", "v1", makeImage(t, 1, 1, 10_000_000))
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Pull(ctx, name, PullOptions{Progress: func(p Progress) {
		if p.Done > 100_000 {
			cancel()
		}
	}})
	wantError(t, err, "interrupted")
	eventually(t, "the pull has ended", func() bool {
		s.partials.mu.Lock()
		defer s.partials.mu.Unlock()
		return len(s.partials.timers) == 1
	})
	if ingested(t, s) < 100_000 {
		t.Error("nothing is kept for the next attempt")
	}
	if _, err := s.Prune(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	wantDisk(t, s, nil)
}
