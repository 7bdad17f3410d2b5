package image

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/testimage"
)

func TestPull(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, c := range []testimage.Compression{testimage.Gzip, testimage.Zstd, testimage.Uncompressed} {
		t.Run("compression="+string(c), func(t *testing.T) {
			t.Parallel()
			s, r := newStore(t), newRegistry(t)
			img := assemble(t, makeLayer(t, c, 1, 100_000), makeLayer(t, c, 2, 10), makeLayer(t, c, 3, 50_000))
			name := r.push(t, "team/web", "1.0", img)
			byDigest := r.host + "/team/web@" + img.Descriptor.Digest.String()

			got := mustPull(t, s, name)
			if got.ID != img.ID() || !slices.Equal(got.Tags, []string{name}) || !slices.Equal(got.Digests, []string{byDigest}) {
				t.Errorf("pulled %+v, want ID %s, tag %s, digest %s", got, img.ID(), name, byDigest)
			}
			if got.Platform != "linux/"+here.Architecture || got.Config.Cmd[0] != "/bin/true" || got.Created.IsZero() || got.InUse {
				t.Errorf("pulled %+v", got)
			}
			size := img.Descriptor.Size + int64(len(img.Config))
			for _, l := range img.Layers {
				size += int64(len(l.Blob))
			}
			if got.Size != size || got.Unpacked < 150_000 {
				t.Errorf("size %d, unpacked %d, want %d and more than 150000", got.Size, got.Unpacked, size)
			}
			wantFiles(t, s, img)
			for _, ref := range []string{name, byDigest, name + "@" + img.Descriptor.Digest.String(), img.ID(), strings.TrimPrefix(img.ID(), "sha256:"), img.ID()[:19], img.ID()[7:15]} {
				if found, err := s.Get(ref); err != nil || found.ID != img.ID() {
					t.Errorf("get %s: %v %v", ref, found.ID, err)
				}
			}
			if list := s.List(); len(list) != 1 {
				t.Errorf("listed: %v", list)
			}
		})
	}
}

func TestPullByDigest(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	img := makeImage(t, 1, 1, 1000)
	name := r.push(t, "web", "latest", img)
	other := r.push(t, "web", "other", makeImage(t, 9, 1, 1000))
	byDigest := r.host + "/web@" + img.Descriptor.Digest.String()

	// The digest takes precedence over the tag.
	got := mustPull(t, s, other+"@"+img.Descriptor.Digest.String())
	if got.ID != img.ID() || len(got.Tags) != 0 || !slices.Equal(got.Digests, []string{byDigest}) {
		t.Errorf("pulled %+v", got)
	}
	got = mustPull(t, s, name)
	if got.ID != img.ID() || !slices.Equal(got.Tags, []string{name}) || len(got.Digests) != 1 {
		t.Errorf("pulled by tag afterwards: %+v", got)
	}
	// The image is reported by the name that was pulled, not by all that it has.
	stable := r.push(t, "web", "stable", img)
	if got = mustPull(t, s, stable); !slices.Equal(got.Tags, []string{stable}) {
		t.Errorf("pulled by another tag: %+v", got)
	}
}

func TestPullForPlatform(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	var images []*testimage.Image
	for i, p := range []ocispec.Platform{{OS: "linux", Architecture: "s390x"}, here, {OS: "linux", Architecture: "riscv64"}} {
		img, err := testimage.New(p, ocispec.ImageConfig{}, makeLayer(t, testimage.Gzip, uint64(i), 1000))
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	index, err := r.pushTo().PushIndex(t.Context(), "multi", "v1", images...)
	if err != nil {
		t.Fatal(err)
	}
	name := r.host + "/multi:v1"
	got := mustPull(t, s, name)
	if got.ID != images[1].ID() || !slices.Equal(got.Digests, []string{r.host + "/multi@" + index.String()}) {
		t.Errorf("pulled %+v, want the one for this host, with the digest of the index", got)
	}
	got, err = s.Pull(t.Context(), name, PullOptions{Platform: "linux/s390x"})
	if err != nil || got.ID != images[0].ID() || got.Platform != "linux/s390x" {
		t.Errorf("for s390x: %+v %v", got, err)
	}
	before := disk(t, s)
	_, err = s.Pull(t.Context(), name, PullOptions{Platform: "linux/ppc64le"})
	wantError(t, err, name, "linux/ppc64le", "linux/riscv64, linux/s390x", "choose another")
	if !errdefs.IsNotFound(err) {
		t.Errorf("wrong kind of error: %v", err)
	}
	single := r.push(t, "single", "v1", images[0])
	_, err = s.Pull(t.Context(), single, PullOptions{})
	wantError(t, err, single, "only for linux/s390x")
	_, err = s.Pull(t.Context(), name, PullOptions{Platform: "linux/a/b/c/d"})
	wantError(t, err, name, `platform "linux/a/b/c/d"`, "linux/amd64")
	wantDisk(t, s, before)
}

func TestPullDockerManifest(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	img := makeImage(t, 1, 2, 1000)
	for from, to := range map[string]string{
		ocispec.MediaTypeImageManifest:  "application/vnd.docker.distribution.manifest.v2+json",
		ocispec.MediaTypeImageConfig:    "application/vnd.docker.container.image.v1+json",
		ocispec.MediaTypeImageLayerGzip: "application/vnd.docker.image.rootfs.diff.tar.gzip",
	} {
		img.Manifest = []byte(strings.ReplaceAll(string(img.Manifest), from, to))
	}
	img.Descriptor.Digest = digest.FromBytes(img.Manifest)
	if got := mustPull(t, s, r.push(t, "docker", "v2", img)); got.ID != img.ID() {
		t.Errorf("pulled %+v", got)
	}
	wantFiles(t, s, img)
}

// TestPullSharesLayers checks that shared blobs are downloaded once, and kept while an
// image needs them.
func TestPullSharesLayers(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	base := makeLayer(t, testimage.Gzip, 1, 50_000)
	one := assemble(t, base, makeLayer(t, testimage.Gzip, 2, 1000))
	two := assemble(t, base, makeLayer(t, testimage.Gzip, 3, 1000))
	moved := assemble(t, makeLayer(t, testimage.Gzip, 4, 1000), base) // the same blob, but not the same layer on disk
	for i, img := range []*testimage.Image{one, two, moved} {
		mustPull(t, s, r.push(t, "shared", string(rune('a'+i)), img))
		wantFiles(t, s, img)
	}
	if n := r.gets(base.Descriptor.Digest.String()); n != 1 {
		t.Errorf("the shared layer was downloaded %d times", n)
	}
	for _, img := range []*testimage.Image{one, moved} {
		if _, err := s.Remove(t.Context(), img.ID(), false); err != nil {
			t.Fatal(err)
		}
	}
	wantFiles(t, s, two)
	if list := disk(t, s); len(list) != 2+2+2 { // manifest, config, two blobs, two directories
		t.Errorf("on disk: %v", list)
	}
}

func TestPullMovedTag(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	old, fresh := makeImage(t, 1, 1, 1000), makeImage(t, 2, 1, 1000)
	name := r.push(t, "web", "latest", old)
	mustPull(t, s, name)
	r.push(t, "web", "latest", fresh)
	if got := mustPull(t, s, name); got.ID != fresh.ID() {
		t.Errorf("pulled %s, want the tag's new image", got.ID)
	}
	got, err := s.Get(old.ID())
	if err != nil || len(got.Tags) != 0 || len(got.Digests) != 1 {
		t.Errorf("the old image: %+v %v", got, err)
	}
	wantFiles(t, s, old)
	wantFiles(t, s, fresh)
}

func TestPullImageWithoutLayers(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	img := assemble(t)
	mustPull(t, s, r.push(t, "empty", "v1", img))
	wantFiles(t, s, img)
}

// TestConcurrentPullsShareDownload checks that concurrent pulls of an image, by tag and
// by digest, download it once, and that each reports progress.
func TestConcurrentPullsShareDownload(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	halfway, goOn := make(chan struct{}, 100), make(chan struct{})
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&pausedWriter{ResponseWriter: w, at: 100_000, reached: halfway, goOn: goOn}, r)
	}))
	s := newStore(t)
	img := makeImage(t, 1, 3, 200_000)
	name := r.push(t, "web", "v1", img)
	refs := []string{name, r.host + "/web@" + img.Descriptor.Digest.String()}

	var wg sync.WaitGroup
	var seen sync.Map
	for i := range 10 {
		wg.Go(func() {
			got, err := s.Pull(t.Context(), refs[i%2], PullOptions{Progress: func(p Progress) {
				if p.Stage == Downloading && len(p.Layers) == 3 && p.Done >= 3*90_000 && p.Total > 600_000 {
					seen.Store(i, true)
				}
			}})
			if err != nil || got.ID != img.ID() {
				t.Errorf("pull %d: %v %v", i, got.ID, err)
			}
		})
	}
	for range 3 {
		<-halfway
	}
	eventually(t, "all pulls report progress", func() bool {
		n := 0
		seen.Range(func(any, any) bool { n++; return true })
		return n == 10
	})
	close(goOn)
	wg.Wait()
	for _, l := range img.Layers {
		if n := r.gets(l.Descriptor.Digest.String()); n != 1 {
			t.Errorf("a layer was downloaded %d times", n)
		}
	}
	wantFiles(t, s, img)
}

// pausedWriter pauses once in the middle of a body, until goOn.
type pausedWriter struct {
	http.ResponseWriter
	at            int
	reached, goOn chan struct{}
}

func (p *pausedWriter) Write(b []byte) (int, error) {
	if p.at < 0 || len(b) < p.at {
		p.at -= len(b)
		return p.ResponseWriter.Write(b)
	}
	n, err := p.ResponseWriter.Write(b[:p.at])
	if err != nil {
		return n, err
	}
	_ = http.NewResponseController(p.ResponseWriter).Flush()
	p.reached <- struct{}{}
	<-p.goOn
	rest := b[p.at:]
	p.at = -1
	m, err := p.ResponseWriter.Write(rest)
	return n + m, err
}

// TestLastWaiterCancelsPull checks that a pull runs while a caller waits, that the last
// one cancels it, and that the next pull resumes the download.
func TestLastWaiterCancelsPull(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	halfway, goOn := make(chan struct{}, 100), make(chan struct{})
	var ranges sync.Map
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if from := r.Header.Get("Range"); from != "" {
			ranges.Store(from, true)
		}
		select {
		case <-goOn:
			next.ServeHTTP(w, r)
		default:
			paused := &pausedWriter{ResponseWriter: w, at: 64_000, reached: halfway, goOn: make(chan struct{})}
			go func() { <-r.Context().Done(); close(paused.goOn) }()
			next.ServeHTTP(paused, r)
		}
	}))
	s := newStore(t)
	img := makeImage(t, 1, 1, 300_000)
	name := r.push(t, "web", "v1", img)
	first, cancelFirst := context.WithCancel(t.Context())
	second, cancelSecond := context.WithCancel(t.Context())
	errs := make(chan error)
	for _, ctx := range []context.Context{first, second} {
		go func() {
			_, err := s.Pull(ctx, name, PullOptions{})
			errs <- err
		}()
	}
	<-halfway
	eventually(t, "both callers wait", func() bool {
		s.inflight.mu.Lock()
		defer s.inflight.mu.Unlock()
		for _, p := range s.inflight.pulls {
			return p.waiters == 2
		}
		return false
	})
	eventually(t, "the first half is on disk", func() bool { return ingested(t, s) >= 64_000 })
	cancelFirst()
	err := <-errs
	wantError(t, err, name, "downloading")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("wrong kind of error: %v", err)
	}
	s.inflight.mu.Lock()
	if len(s.inflight.pulls) != 1 {
		t.Error("the pull was cancelled while a caller waited")
	}
	s.inflight.mu.Unlock()
	cancelSecond()
	if err := <-errs; !errors.Is(err, context.Canceled) {
		t.Errorf("wrong kind of error: %v", err)
	}
	close(goOn)
	mustPull(t, s, name)
	wantFiles(t, s, img)
	resumed := false
	ranges.Range(func(any, any) bool { resumed = true; return true })
	if !resumed {
		t.Error("the second pull started from the beginning")
	}
}

// ingested returns the number of bytes in partial downloads.
func ingested(t testing.TB, s *Store) (total int64) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.root, "content/ingest/*/data"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err == nil {
			total += info.Size()
		}
	}
	return total
}

func TestPullDeadline(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, r := newStore(t), newRegistry(t)
	name := r.push(t, "web", "v1", makeImage(t, 1, 1, 1000))
	ctx, cancel := context.WithTimeout(t.Context(), time.Nanosecond)
	defer cancel()
	if _, err := s.Pull(ctx, name, PullOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// TestPullCutConnections closes every layer download at several offsets, both orderly
// and by reset, and lets the next attempt get further.
func TestPullCutConnections(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, reset := range []bool{false, true} {
		var mu sync.Mutex
		times := map[string]int{}
		r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			mu.Lock()
			times[r.URL.Path]++
			n := times[r.URL.Path]
			mu.Unlock()
			cut(w, r, next, []int{0, 1, 10_000, 33_333, 50_000, 1 << 30}[min(n-1, 5)], reset)
		}))
		s := newStore(t)
		img := makeImage(t, 1, 4, 100_000)
		mustPull(t, s, r.push(t, "web", "v1", img))
		wantFiles(t, s, img)
	}
}

// TestPullStalls checks that a stalled pull is cancelled, and a slow one is not.
func TestPullStalls(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	halfway := make(chan struct{}, 100)
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		paused := &pausedWriter{ResponseWriter: w, at: 64_000, reached: halfway, goOn: make(chan struct{})}
		go func() { <-r.Context().Done(); close(paused.goOn) }()
		next.ServeHTTP(paused, r)
	}))
	s := newStore(t)
	s.stall = 2 * time.Second
	_, err := s.Pull(t.Context(), r.push(t, "web", "v1", makeImage(t, 1, 2, 200_000)), PullOptions{})
	wantError(t, err, "sent no data", "2s", "try again")

	slow := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(slowWriter{w}, r)
	}))
	mustPull(t, s, slow.push(t, "web", "v1", makeImage(t, 1, 1, 20_000)))
}

// slowWriter writes 10,000 bytes per second.
type slowWriter struct{ http.ResponseWriter }

func (s slowWriter) Write(p []byte) (int, error) {
	for i := 0; i < len(p); i += 500 {
		if _, err := s.ResponseWriter.Write(p[i:min(i+500, len(p))]); err != nil {
			return i, err
		}
		_ = http.NewResponseController(s.ResponseWriter).Flush()
		time.Sleep(50 * time.Millisecond) // the slowness under test
	}
	return len(p), nil
}

// TestPullUnpacksWhileItDownloads checks that three layers are downloaded concurrently
// and that finished ones are unpacked meanwhile.
func TestPullUnpacksWhileItDownloads(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	img := makeImage(t, 1, 6, 50_000)
	lowest := img.Layers[0].Descriptor.Digest.String()
	var mu sync.Mutex
	var now, most int
	unpacked := false // the lowest layer, while another one is downloaded in its place
	goOn := make(chan struct{})
	proceed := sync.OnceFunc(func() { close(goOn) })
	s, r := newStore(t), newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, digest.FromBytes(img.Config).String()) {
			next.ServeHTTP(w, r)
			return
		}
		mu.Lock()
		now++
		most = max(most, now)
		if unpacked && now == 3 {
			proceed()
		}
		mu.Unlock()
		if !strings.HasSuffix(r.URL.Path, lowest) {
			<-goOn
		}
		next.ServeHTTP(w, r)
		mu.Lock()
		now--
		mu.Unlock()
	}))
	name := r.push(t, "web", "v1", img)
	_, err := s.Pull(t.Context(), name, PullOptions{Progress: func(p Progress) {
		if len(p.Layers) == 6 && p.Layers[0].Stage == Unpacked && p.Layers[3].Stage == Downloading {
			mu.Lock()
			defer mu.Unlock()
			if unpacked = true; now == 3 {
				proceed()
			}
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if most != 3 {
		t.Errorf("%d layers were downloaded concurrently, want 3", most)
	}
	wantFiles(t, s, img)
}

// TestPullUnpacksAboveMissingLayers checks that layers are unpacked before those below them are
// there, and that directories that such a layer only implies nevertheless inherit their attributes.
func TestPullUnpacksAboveMissingLayers(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	home := testimage.Dir("home/alice", 0o2750)
	home.Uid, home.Gid = 1000, 1001
	home.PAXRecords = map[string]string{"SCHILY.xattr.user.colour": "blue"}
	lower, err := testimage.NewLayer(testimage.Gzip, home)
	if err != nil {
		t.Fatal(err)
	}
	upper, err := testimage.NewLayer(testimage.Gzip, testimage.File("home/alice/new/file", 0o644, []byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	img := assemble(t, lower, upper)
	s := newStore(t)
	const file = "layers/snapshots/*/fs/home/alice/new/file"
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, lower.Descriptor.Digest.String()) {
			for found := []string(nil); len(found) == 0 && r.Context().Err() == nil; time.Sleep(time.Millisecond) {
				found, _ = filepath.Glob(filepath.Join(s.root, file))
			}
		}
		next.ServeHTTP(w, r)
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	got, err := s.Pull(ctx, r.push(t, "web", "v1", img), PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := s.Rootfs(got.ID)
	if err != nil || len(dirs) != 2 {
		t.Fatal(dirs, err)
	}
	stat := func(name string) (st unix.Stat_t) {
		if err := unix.Lstat(filepath.Join(dirs[0], name), &st); err != nil {
			t.Fatal(err)
		}
		return st
	}
	colour := make([]byte, 10)
	n, err := unix.Lgetxattr(filepath.Join(dirs[0], "home/alice"), "user.colour", colour)
	if st := stat("home/alice"); st.Uid != 1000 || st.Gid != 1001 || st.Mode != unix.S_IFDIR|0o2750 || st.Mtim.Sec != 1_700_000_000 || err != nil || string(colour[:n]) != "blue" {
		t.Errorf("%+v %q %v", st, colour, err)
	}
	if st := stat("home/alice/new"); st.Uid != 0 || st.Mode&^unix.S_ISGID != unix.S_IFDIR|0o755 {
		t.Errorf("a new directory: %+v", st)
	}
}

func TestPullShortName(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	r := newRegistry(t)
	img := makeImage(t, 1, 1, 100)
	full := r.push(t, "team/web", "v1", img)
	s := newStore(t)
	s.index.short = shortNames(strings.TrimSuffix(full, "/web:v1"))
	if _, err := s.Pull(t.Context(), "web:v1", PullOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"web:v1", full} {
		if found, err := s.Get(name); err != nil || found.ID != img.ID() {
			t.Errorf("get %s: %s %v, want %s", name, found.ID, err, img.ID())
		}
	}
	if got := s.PulledName("web:v1"); got != full {
		t.Errorf("web:v1 is pulled as %s", got)
	}
}

func TestRefusedNames(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	s.index.short = RefuseShortNames
	for ref, full := range map[string]string{
		"web":         "docker.io/library/web:latest",
		"web:v2":      "docker.io/library/web:v2",
		"library/web": "docker.io/library/web:latest",
	} {
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		wantError(t, err, ref, "a name without a registry is not pulled, because short-names is refuse: use the full name, such as "+full)
	}
	for _, ref := range []string{"", "Web", "a b", "reg.example/x:", "reg.example/x@sha256:12", "http://reg.example/x", strings.Repeat("a/", 200) + "x", "reg.example/../x", "\x00"} {
		_, err := s.Pull(t.Context(), ref, PullOptions{})
		wantError(t, err, "malformed")
		if !errdefs.IsInvalidArgument(err) {
			t.Errorf("wrong kind of error: %v", err)
		}
	}
}

func TestPullAfterClose(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := s.Pull(t.Context(), "reg.example/x", PullOptions{})
	wantError(t, err, "closed")
	_, err = s.Load(t.Context(), strings.NewReader(""), nil)
	wantError(t, err, "closed")
}

// TestCloseCancelsPulls checks that Close doesn't wait for a registry.
func TestCloseCancelsPulls(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	halfway := make(chan struct{}, 100)
	r := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		paused := &pausedWriter{ResponseWriter: w, at: 100, reached: halfway, goOn: make(chan struct{})}
		go func() { <-r.Context().Done(); close(paused.goOn) }()
		next.ServeHTTP(paused, r)
	}))
	root := filepath.Join(t.TempDir(), "images")
	s := openStore(t, root)
	name := r.push(t, "web", "v1", makeImage(t, 1, 1, 100_000))
	errs := make(chan error)
	go func() {
		_, err := s.Pull(t.Context(), name, PullOptions{})
		errs <- err
	}()
	<-halfway
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	wantError(t, <-errs, name, "interrupted")
	wantDisk(t, openStore(t, root), nil)
}

// TestSlowRegistryHoldsUpNoOther checks that a registry which claims to have a popular image, and
// sends a layer of it for ever, keeps no pull of that image from another registry waiting: neither
// for the layer, nor for those above it, which are unpacked.
func TestSlowRegistryHoldsUpNoOther(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s, img := newStore(t), makeImage(t, 1, 2, 200_000)
	halfway, goOn := make(chan struct{}, 100), make(chan struct{})
	slow := newRegistry(t, onBlobs(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.HasSuffix(r.URL.Path, img.Layers[0].Descriptor.Digest.String()) {
			w = &pausedWriter{ResponseWriter: w, at: 100_000, reached: halfway, goOn: goOn}
		}
		next.ServeHTTP(w, r)
	}))
	slowName := slow.push(t, "web", "v1", img)
	var resume sync.Once
	defer resume.Do(func() { close(goOn) })
	above := make(chan struct{}) // closed when the upper layer is being unpacked, or was
	ended := make(chan error, 1)
	go func() {
		var once sync.Once
		_, err := s.Pull(t.Context(), slowName, PullOptions{Progress: func(p Progress) {
			if len(p.Layers) == 2 && p.Layers[1].Stage == Unpacking {
				once.Do(func() { close(above) })
			}
		}})
		ended <- err
	}()
	<-halfway
	<-above
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := s.Pull(ctx, newRegistry(t).push(t, "web", "v1", img), PullOptions{}); err != nil {
		t.Error(err)
	}
	resume.Do(func() { close(goOn) })
	if err := <-ended; err != nil {
		t.Errorf("the slow pull: %v", err)
	}
	wantFiles(t, s, img)
}
