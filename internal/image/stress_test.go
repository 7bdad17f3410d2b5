package image

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/test/testimage"
)

// TestConcurrentOperations pulls, loads, removes, prunes and uses images that share
// layers, all concurrently. It checks that held images are complete and that nothing is
// left in the end.
func TestConcurrentOperations(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	base := makeLayer(t, testimage.Gzip, 1, 50_000)
	var images []*testimage.Image
	var names []string
	var archives [][]byte
	for i := range 4 {
		img := assemble(t, base, makeLayer(t, testimage.Gzip, uint64(10+i), 5_000))
		images = append(images, img)
		names = append(names, r.push(t, "web", fmt.Sprint("v", i), img))
		archives = append(archives, archiveOf(t, testimage.Named{Image: img, Names: []string{names[i]}}))
	}
	until := time.Now().Add(3 * time.Second)
	var wg sync.WaitGroup
	forever := func(do func(i int) error) {
		wg.Go(func() {
			for i := 0; time.Now().Before(until); i++ {
				if err := do(i % len(images)); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 2 {
		forever(func(i int) error { _, err := s.Pull(t.Context(), names[i], PullOptions{}); return err })
		forever(func(i int) error { _, err := s.Remove(t.Context(), names[i], false); return err })
	}
	forever(func(i int) error { _, err := s.Load(t.Context(), bytes.NewReader(archives[i]), nil); return err })
	forever(func(i int) error { _, err := s.Prune(t.Context(), i%2 == 0); return err })
	forever(func(_ int) error { _ = s.List(); _, _ = s.Usage(); return nil })
	used := 0
	forever(func(i int) error {
		release, err := s.Hold(images[i].ID(), "test")
		if err != nil {
			return err
		}
		defer release()
		lower, err := s.Rootfs(images[i].ID())
		if err != nil {
			return errors.New("a held image was removed") // not one of the expected kinds
		}
		for _, dir := range lower {
			files, err := filepath.Glob(dir + "/data/*")
			if err != nil || len(files) != 1 {
				return fmt.Errorf("a layer of a held image has files %v %v, want one", files, err)
			}
		}
		used++
		return nil
	})
	wg.Wait()
	if used == 0 {
		t.Error("no image was ever held")
	}
	if _, err := s.Prune(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	wantDisk(t, s, nil)
}

// TestDebianImage loads an image of real programs and runs them.
func TestDebianImage(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	img, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Web, Layers: 4})
	if err != nil {
		t.Fatal(err)
	}
	s := newStore(t)
	loadAs(t, s, img, "localhost/web:latest")
	lower, err := s.Rootfs(img.ID())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := rootfs.Mount(rootfs.Spec{Dir: dir, Lower: lower})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := rootfs.Unmount(dir); err != nil {
			t.Error(err)
		}
	}()
	out, err := exec.Command("chroot", root, "/bin/sh", "-c", "id -un && cat /layer/4 && echo written >/tmp/x && cat /tmp/x").CombinedOutput()
	if err != nil || string(out) != "root\n4\nwritten\n" {
		t.Errorf("%q %v", out, err)
	}
	if _, err := os.Stat(filepath.Join(lower[len(lower)-1], "tmp/x")); err == nil {
		t.Error("a write reached a layer")
	}
	if got, _ := s.Get("localhost/web"); strings.Join(got.Config.Cmd, " ") != "/bin/httpd -f -p 80 -h /www" {
		t.Errorf("command %q", got.Config.Cmd)
	}
}

// BenchmarkContainerLayer measures what creating and removing a container needs of its
// image.
func BenchmarkContainerLayer(b *testing.B) {
	hosttest.Root(b)
	s := newStore(b)
	img := makeImage(b, 1, 3, 10_000)
	loadAs(b, s, img, "localhost/web:latest")
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		got, err := s.Get("localhost/web")
		if err != nil {
			b.Fatal(err)
		}
		release, err := s.Hold(got.ID, "container")
		if err != nil {
			b.Fatal(err)
		}
		lower, err := s.Rootfs(got.ID)
		if err != nil {
			b.Fatal(err)
		}
		container := filepath.Join(dir, fmt.Sprint(i))
		if _, err := rootfs.Mount(rootfs.Spec{Dir: container, Lower: lower}); err != nil {
			b.Fatal(err)
		}
		if err := rootfs.Unmount(container); err != nil {
			b.Fatal(err)
		}
		release()
	}
}

// BenchmarkLookup measures the part of that which doesn't touch the disk.
func BenchmarkLookup(b *testing.B) {
	s := newStore(b)
	for i := range 100 {
		s.index.put(&entry{id: fmt.Sprintf("sha256:%064x", i), lower: make([]string, 10)}, []string{fmt.Sprintf("localhost/%d:latest", i)}, nil)
	}
	for b.Loop() {
		got, err := s.Get("localhost/7")
		if err != nil {
			b.Fatal(err)
		}
		if _, err := s.Rootfs(got.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkPull pulls an image of three layers from this host, and removes it.
func BenchmarkPull(b *testing.B) {
	hosttest.Root(b)
	for _, size := range []int{10_000, 5_000_000} {
		b.Run(fmt.Sprintf("layer=%dkB", size/1000), func(b *testing.B) {
			s, r := newStore(b), newRegistry(b)
			name := r.push(b, "web", "v1", makeImage(b, 1, 3, size))
			b.SetBytes(int64(3 * size))
			for b.Loop() {
				mustPull(b, s, name)
				b.StopTimer()
				if _, err := s.Remove(b.Context(), name, false); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// BenchmarkPullAgain pulls an image that exists.
func BenchmarkPullAgain(b *testing.B) {
	hosttest.Root(b)
	s, r := newStore(b), newRegistry(b)
	name := r.push(b, "web", "v1", makeImage(b, 1, 3, 10_000))
	for b.Loop() {
		mustPull(b, s, name)
	}
}

// BenchmarkOpen opens a store with a hundred images of five layers.
func BenchmarkOpen(b *testing.B) {
	hosttest.Root(b)
	root := filepath.Join(b.TempDir(), "images")
	s := openStore(b, root)
	for i := range 100 {
		loadAs(b, s, makeImage(b, uint64(i), 5, 100), fmt.Sprintf("localhost/%d:latest", i))
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := openStore(b, root).Close(); err != nil {
			b.Fatal(err)
		}
	}
}
