package image

import (
	"bytes"
	"path/filepath"
	"slices"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/testimage"
)

// loadAs loads an image under names.
func loadAs(t testing.TB, s *Store, img *testimage.Image, names ...string) {
	t.Helper()
	if _, err := s.Load(t.Context(), bytes.NewReader(archiveOf(t, testimage.Named{Image: img, Names: names})), nil); err != nil {
		t.Fatal(err)
	}
}

func mustRemove(t testing.TB, s *Store, name string, want ...string) {
	t.Helper()
	removed, err := s.Remove(t.Context(), name, false)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(removed, want) {
		t.Errorf("removing %s removed %v, want %v", name, removed, want)
	}
}

func TestRemoveByNames(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	img := makeImage(t, 1, 2, 1000)
	loadAs(t, s, img, "localhost/a:v1", "localhost/a:v2", "localhost/b:v1")
	mustRemove(t, s, "localhost/a:v1", "localhost/a:v1")
	mustRemove(t, s, "localhost/b:v1", "localhost/b:v1")
	wantFiles(t, s, img)
	mustRemove(t, s, "localhost/a:v2", "localhost/a:v2", img.ID())
	wantDisk(t, s, nil)
	_, err := s.Remove(t.Context(), "localhost/a:v2", false)
	wantError(t, err, "localhost/a:v2", "not found")
	if !errdefs.IsNotFound(err) {
		t.Errorf("wrong kind of error: %v", err)
	}
}

func TestRemoveByID(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	img := makeImage(t, 1, 2, 1000)
	for _, name := range []string{img.ID(), img.ID()[7:19]} {
		loadAs(t, s, img, "localhost/a:v1", "reg.example/b:v1")
		mustRemove(t, s, name, "localhost/a:v1", "reg.example/b:v1", img.ID())
		wantDisk(t, s, nil)
	}
	loadAs(t, s, img)
	mustRemove(t, s, img.ID(), img.ID())
	wantDisk(t, s, nil)
}

// TestRemoveTagTakesDigests checks that the last tag of a repository takes the digests of
// that repository along.
func TestRemoveTagTakesDigests(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	img := makeImage(t, 1, 1, 1000)
	one, two := r.push(t, "web", "v1", img), r.push(t, "web", "v2", img)
	byDigest := r.host + "/web@" + img.Descriptor.Digest.String()
	mustPull(t, s, one)
	mustPull(t, s, two)
	mustRemove(t, s, one, one)
	mustRemove(t, s, two, two, byDigest, img.ID())
	wantDisk(t, s, nil)
	mustPull(t, s, one)
	mustRemove(t, s, byDigest, byDigest)
	mustRemove(t, s, one, one, img.ID())
	wantDisk(t, s, nil)
}

func TestRemoveHeld(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	img := makeImage(t, 1, 2, 1000)
	loadAs(t, s, img, "localhost/a:v1", "localhost/a:v2")
	release, err := s.Hold(img.ID(), "container web of pod default/web")
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.Hold(img.ID(), "container web of pod default/web")
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := s.Get(img.ID()); !got.InUse {
		t.Error("a held image is not in use")
	}
	mustRemove(t, s, "localhost/a:v1", "localhost/a:v1") // not its last name
	for _, name := range []string{"localhost/a:v2", img.ID()} {
		_, err := s.Remove(t.Context(), name, false)
		wantError(t, err, name, "in use by container web of pod default/web", "remove that first")
		if !errdefs.IsFailedPrecondition(err) {
			t.Errorf("wrong kind of error: %v", err)
		}
	}
	if report, err := s.Prune(t.Context(), true); err != nil || len(report.Removed) != 0 {
		t.Errorf("pruned %v %v", report, err)
	}
	removed, err := s.Remove(t.Context(), img.ID(), true)
	if err != nil || !slices.Equal(removed, []string{"localhost/a:v2"}) {
		t.Errorf("by force: %v %v", removed, err)
	}
	wantFiles(t, s, img)
	release()
	release() // a second call has no effect
	if report, err := s.Prune(t.Context(), false); err != nil || len(report.Removed) != 0 {
		t.Errorf("pruned %v %v, though it is still held", report, err)
	}
	again()
	report, err := s.Prune(t.Context(), false)
	if err != nil || !slices.Equal(report.Removed, []string{img.ID()}) || report.Freed < 4000 {
		t.Errorf("pruned %+v %v", report, err)
	}
	wantDisk(t, s, nil)
	if _, err := s.Hold(img.ID(), "x"); !errdefs.IsNotFound(err) {
		t.Errorf("hold a removed image: %v", err)
	}
	if _, err := s.Rootfs(img.ID()); !errdefs.IsNotFound(err) {
		t.Errorf("rootfs of a removed image: %v", err)
	}
}

func TestManyHolders(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	img := makeImage(t, 1, 1, 10)
	loadAs(t, s, img, "localhost/a:v1")
	for _, holder := range []string{"e", "d", "c", "b", "a"} {
		if _, err := s.Hold(img.ID(), holder); err != nil {
			t.Fatal(err)
		}
	}
	_, err := s.Remove(t.Context(), "localhost/a:v1", false)
	wantError(t, err, "in use by a, b, c and 2 more")
}

func TestPrune(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	root := filepath.Join(t.TempDir(), "images")
	s := openStore(t, root)
	base := makeLayer(t, testimage.Gzip, 9, 20_000)
	tagged, dangling, held := assemble(t, base, makeLayer(t, testimage.Gzip, 1, 1000)), assemble(t, base, makeLayer(t, testimage.Gzip, 2, 50_000)), makeImage(t, 3, 1, 1000)
	loadAs(t, s, tagged, "localhost/a:v1")
	loadAs(t, s, dangling)
	loadAs(t, s, held)
	release, err := s.Hold(held.ID(), "container x")
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	used, free, err := s.DiskUsage(func(img Image) bool { return !img.InUse && len(img.Tags) == 0 })
	if err != nil || used < free+20_000 {
		t.Errorf("disk usage: %d bytes, %d reclaimable, %v", used, free, err)
	}
	_, freeAll, err := s.DiskUsage(func(img Image) bool { return !img.InUse })
	if err != nil {
		t.Error(err)
	}
	report, err := s.Prune(t.Context(), false)
	if err != nil || !slices.Equal(report.Removed, []string{dangling.ID()}) {
		t.Errorf("pruned %+v %v", report, err)
	}
	if report.Freed < 100_000 || report.Freed > 120_000 { // its blob and its files, without the shared base
		t.Errorf("freed %d bytes, want a little more than 100000", report.Freed)
	}
	if report.Freed != free {
		t.Errorf("freed %d bytes, but %d were said to be reclaimable", report.Freed, free)
	}
	wantFiles(t, s, tagged)
	freeAll -= report.Freed
	report, err = s.Prune(t.Context(), true)
	if report.Freed != freeAll {
		t.Errorf("freed %d bytes, but %d were said to be reclaimable", report.Freed, freeAll)
	}
	if err != nil || !slices.Equal(report.Removed, []string{"localhost/a:v1", tagged.ID()}) {
		t.Errorf("pruned all: %+v %v", report, err)
	}
	wantFiles(t, s, held)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openStore(t, root)
	if list := s.List(); len(list) != 1 || list[0].ID != held.ID() {
		t.Errorf("after a restart: %v", list)
	}
	if bytes, inodes := s.Usage(); bytes-s.List()[0].Size < 1000 || inodes < 3 {
		t.Errorf("usage %d bytes, %d inodes", bytes, inodes)
	}
}

func TestGetAmbiguous(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	s.index.put(&entry{id: "sha256:abcd11"}, nil, nil)
	s.index.put(&entry{id: "sha256:abcd22"}, []string{"docker.io/library/abcd2:latest"}, nil)
	for name, want := range map[string]string{"abcd1": "sha256:abcd11", "abcd22": "sha256:abcd22", "abcd2": "sha256:abcd22", "sha256:abcd1": "sha256:abcd11"} {
		if got, err := s.Get(name); err != nil || got.ID != want {
			t.Errorf("get %s: %s %v, want %s", name, got.ID, err, want)
		}
	}
	_, err := s.Get("abcd")
	wantError(t, err, "more than one", "more digits")
	for _, name := range []string{"abc", "abce", "sha256:ffff", "ffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff"} {
		_, err := s.Get(name)
		wantError(t, err, name)
	}
	_, err = s.Get("not a name")
	wantError(t, err, "malformed")
}
