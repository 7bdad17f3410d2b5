package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/test/testimage"
)

func archiveOf(t testing.TB, images ...testimage.Named) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := testimage.WriteArchive(&b, images...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func dockerArchiveOf(t testing.TB, images ...testimage.Named) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := testimage.WriteDockerArchive(&b, images...); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t testing.TB, raw []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(raw); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstdCompressed(t testing.TB, raw []byte) []byte {
	t.Helper()
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(raw, nil)
}

func TestLoad(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	img := makeImage(t, 1, 2, 10_000)
	one := testimage.Named{Image: img, Names: []string{"localhost/web:v1"}}
	for name, raw := range map[string][]byte{
		"OCI":              archiveOf(t, one),
		"OCI, gzip":        gzipped(t, archiveOf(t, one)),
		"OCI, zstd":        zstdCompressed(t, archiveOf(t, one)),
		"docker":           dockerArchiveOf(t, one),
		"docker, gzip":     gzipped(t, dockerArchiveOf(t, one)),
		"in small pieces":  archiveOf(t, one),
		"with extra bytes": append(archiveOf(t, one), make([]byte, 4096)...),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			var r io.Reader = bytes.NewReader(raw)
			if name == "in small pieces" {
				r = smallReads{r}
			}
			var last Progress
			got, err := s.Load(t.Context(), r, func(p Progress) { last = p })
			if err != nil {
				t.Fatal(err)
			}
			if len(got) != 1 || got[0].ID != img.ID() || !slices.Equal(got[0].Tags, []string{"localhost/web:v1"}) || len(got[0].Digests) != 0 {
				t.Errorf("loaded %+v", got)
			}
			if last.Stage != Done || last.Ref != "localhost/web:v1" || len(last.Layers) != 2 || last.Layers[1].Stage != Unpacked || last.Done != last.Total {
				t.Errorf("last progress: %+v", last)
			}
			wantFiles(t, s, img)
			if list := disk(t, s); len(list) != 2+2+2 {
				t.Errorf("more on disk than the image: %v", list)
			}
			// Loading it again changes nothing.
			if _, err := s.Load(t.Context(), bytes.NewReader(raw), nil); err != nil {
				t.Error(err)
			}
			if list := disk(t, s); len(list) != 2+2+2 || len(s.List()) != 1 {
				t.Errorf("after the second load: %v", list)
			}
		})
	}
}

// smallReads returns few bytes per read.
type smallReads struct{ io.Reader }

func (s smallReads) Read(p []byte) (int, error) { return s.Reader.Read(p[:min(len(p), 7)]) }

func TestLoadNames(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	a, b, c := makeImage(t, 1, 1, 100), makeImage(t, 2, 1, 100), makeImage(t, 3, 1, 100)
	s := newStore(t)
	got, err := s.Load(t.Context(), bytes.NewReader(archiveOf(t,
		testimage.Named{Image: a, Names: []string{"web", "reg.example/web:v2"}},
		testimage.Named{Image: b, Names: []string{"team/b:v1"}},
		testimage.Named{Image: c},
	)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 3 {
		t.Errorf("loaded %d images: %+v", len(got), got)
	}
	for name, id := range map[string]string{
		"web":                          a.ID(),
		"docker.io/library/web:latest": a.ID(),
		"reg.example/web:v2":           a.ID(),
		"team/b:v1":                    b.ID(),
		"docker.io/team/b:v1":          b.ID(),
		c.ID():                         c.ID(),
	} {
		if found, err := s.Get(name); err != nil || found.ID != id {
			t.Errorf("get %s: %s %v, want %s", name, found.ID, err, id)
		}
	}
	// What is loaded is reported without the names that an image had.
	again, err := s.Load(t.Context(), bytes.NewReader(archiveOf(t, testimage.Named{Image: a, Names: []string{"reg.example/web:v2"}})), nil)
	if err != nil || len(again) != 1 || !slices.Equal(again[0].Tags, []string{"reg.example/web:v2"}) {
		t.Errorf("loaded again under one of its names: %+v, %v", again, err)
	}
	// A name moves to the image that the last archive gives it to.
	if _, err := s.Load(t.Context(), bytes.NewReader(dockerArchiveOf(t, testimage.Named{Image: c, Names: []string{"web:latest"}})), nil); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Get("web"); err != nil || found.ID != c.ID() {
		t.Errorf("after it moved, web is %s %v", found.ID, err)
	}
	if found, err := s.Get(a.ID()); err != nil || !slices.Equal(found.Tags, []string{"reg.example/web:v2"}) {
		t.Errorf("the image that lost its name: %+v %v", found, err)
	}
}

// files returns what a tar archive holds.
func files(t testing.TB, raw []byte) map[string][]byte {
	t.Helper()
	list := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(raw)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		if list[h.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

// tarOf returns a tar archive of list. It is the inverse of files.
func tarOf(t testing.TB, list map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for name, body := range list {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))}); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(body); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// change returns an archive with some files replaced; nil removes a file.
func change(t testing.TB, raw []byte, changes map[string][]byte) []byte {
	t.Helper()
	list := files(t, raw)
	for name, body := range changes {
		if body == nil {
			delete(list, name)
		} else {
			list[name] = body
		}
	}
	return tarOf(t, list)
}

func TestLoadBad(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	img := makeImage(t, 1, 2, 50_000)
	named := testimage.Named{Image: img, Names: []string{"localhost/web:v1"}}
	good, docker := archiveOf(t, named), dockerArchiveOf(t, named)
	blob := func(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }
	layer := blob(img.Layers[1].Descriptor.Digest)
	other, err := testimage.New(ocispec.Platform{OS: "linux", Architecture: "s390x"}, ocispec.ImageConfig{}, img.Layers...)
	if err != nil {
		t.Fatal(err)
	}
	noTar, err := testimage.PackLayer(testimage.Gzip, []byte("not a tar"))
	if err != nil {
		t.Fatal(err)
	}
	index := func(m ...ocispec.Descriptor) []byte {
		raw, err := json.Marshal(ocispec.Index{Manifests: m})
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	badName := img.Descriptor
	badName.Annotations = map[string]string{"io.containerd.image.name": "Not A Name"}
	for _, test := range []struct {
		name string
		raw  []byte
		want string
	}{
		{"nothing", nil, "neither an OCI image layout nor a docker save archive"},
		{"text", []byte(strings.Repeat("hello ", 1000)), "neither"},
		{"zeros", make([]byte, 100_000), "neither"},
		{"a tar of something", tarOf(t, map[string][]byte{"readme": []byte("x")}), "neither"},
		{"gzip of text", gzipped(t, []byte(strings.Repeat("hello ", 1000))), "neither"},
		{"cut at the start", good[:300], "truncated"},
		{"cut in a blob", good[:len(good)/2], "truncated"},
		{"cut gzip", gzipped(t, good)[:60_000], "truncated"},
		{"cut zstd", zstdCompressed(t, good)[:60_000], "truncated"},
		{"cut docker", docker[:len(docker)-40_000], "truncated"},
		{"no index", change(t, good, map[string][]byte{"index.json": nil}), "index.json"},
		{"bad index", change(t, good, map[string][]byte{"index.json": []byte("{")}), "index.json is malformed"},
		{"empty index", change(t, good, map[string][]byte{"index.json": index()}), "contains no image"},
		{"bad layout", change(t, good, map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"7"}`)}), "7"},
		{"no manifest", change(t, good, map[string][]byte{blob(img.Descriptor.Digest): nil}), "is missing from the archive"},
		{"no config", change(t, good, map[string][]byte{blob(digest.FromBytes(img.Config)): nil}), "is missing from the archive"},
		{"no layer", change(t, good, map[string][]byte{layer: nil}), img.Layers[1].Descriptor.Digest.String() + " is missing from the archive"},
		{"layer is another", change(t, good, map[string][]byte{layer: []byte("x")}), "does not match its digest"},
		{"layer is no tar", archiveOf(t, testimage.Named{Image: assemble(t, noTar), Names: []string{"localhost/web:v1"}}), "is not a valid tar archive"},
		{"other platform", archiveOf(t, testimage.Named{Image: other, Names: []string{"localhost/web:v1"}}), "only for linux/s390x"},
		{"bad name", change(t, good, map[string][]byte{"index.json": index(badName)}), `image name "Not A Name" is malformed`},
		{"docker: no layer", change(t, docker, map[string][]byte{img.Layers[0].Descriptor.Digest.Encoded() + "/layer.tar": nil}), "layer"},
		{"docker: no config", change(t, docker, map[string][]byte{digest.FromBytes(img.Config).Encoded() + ".json": nil}), "config"},
		{"docker: bad manifest", change(t, docker, map[string][]byte{"manifest.json": []byte("[{]")}), "manifest"},
		{"docker: empty manifest", change(t, docker, map[string][]byte{"manifest.json": []byte("[]")}), "contains no image"},
		{"one bad of two", change(t, archiveOf(t, testimage.Named{Image: makeImage(t, 5, 1, 100), Names: []string{"localhost/good:v1"}}, named), map[string][]byte{layer: nil}), "is missing from the archive"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t)
			_, err := s.Load(t.Context(), bytes.NewReader(test.raw), nil)
			wantError(t, err, "image archive", test.want)
			wantDisk(t, s, nil)
			if len(s.List()) != 0 {
				t.Errorf("images: %v", s.List())
			}
			// The next load works.
			if _, err := s.Load(t.Context(), bytes.NewReader(good), nil); err != nil {
				t.Error(err)
			}
			wantFiles(t, s, img)
		})
	}
}

func TestLoadForThisPlatform(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	mine := makeImage(t, 1, 1, 100)
	other, err := testimage.New(ocispec.Platform{OS: "linux", Architecture: "s390x"}, ocispec.ImageConfig{}, makeLayer(t, testimage.Gzip, 2, 100))
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"localhost/multi:v1"}
	got, err := s.Load(t.Context(), bytes.NewReader(archiveOf(t, testimage.Named{Image: other, Names: names}, testimage.Named{Image: mine, Names: names})), nil)
	if err != nil || len(got) != 1 || got[0].ID != mine.ID() {
		t.Errorf("loaded %+v %v", got, err)
	}
	if list := disk(t, s); len(list) != 2+1+1 {
		t.Errorf("the other platform's image is kept: %v", list)
	}
}

func TestLoadInterrupted(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	s := newStore(t)
	raw := archiveOf(t, testimage.Named{Image: makeImage(t, 1, 2, 200_000)})
	ctx, cancel := context.WithCancel(t.Context())
	n := 0
	_, err := s.Load(ctx, readerFunc(func(p []byte) (int, error) {
		if n += 1000; n > 150_000 {
			cancel()
		}
		return copy(p, raw[n-1000:n]), nil
	}), nil)
	wantError(t, err, "load interrupted")
	if !errors.Is(err, context.Canceled) {
		t.Errorf("wrong kind of error: %v", err)
	}
	wantDisk(t, s, nil)
}

// TestLoadSkopeoArchives loads archives that skopeo writes, in each of its formats.
func TestLoadSkopeoArchives(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	skopeo, err := exec.LookPath("skopeo")
	if err != nil {
		t.Skip("skopeo is not installed")
	}
	r, img := newRegistry(t), makeImage(t, 1, 3, 10_000)
	name := r.push(t, "team/web", "v1", img)
	for _, to := range []string{"docker-archive:%:reg.example/web:v1", "oci-archive:%:reg.example/web:v1", "oci-archive:%:v1"} {
		s, file := newStore(t), filepath.Join(t.TempDir(), "a.tar")
		out, err := exec.Command(skopeo, "copy", "--src-tls-verify=false", "docker://"+name, strings.Replace(to, "%", file, 1)).CombinedOutput()
		if err != nil {
			t.Fatalf("skopeo: %v: %s", err, out)
		}
		raw, err := exec.Command("cat", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Load(t.Context(), bytes.NewReader(raw), nil)
		if err != nil || len(got) != 1 || got[0].ID != img.ID() {
			t.Fatalf("%s: %+v %v", to, got, err)
		}
		if whole := strings.Contains(to, "reg.example"); whole != slices.Equal(got[0].Tags, []string{"reg.example/web:v1"}) {
			t.Errorf("%s: tags %v", to, got[0].Tags)
		}
		wantFiles(t, s, img)
	}
}
