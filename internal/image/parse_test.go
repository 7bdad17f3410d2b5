package image

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

func TestNames(t *testing.T) {
	t.Parallel()
	d := digest.FromString("x").String()
	for name, want := range map[string]struct {
		full       string
		repository string
		registry   bool
	}{
		"web":                          {"docker.io/library/web:latest", "docker.io/library/web", false},
		"web:1":                        {"docker.io/library/web:1", "docker.io/library/web", false},
		"team/web":                     {"docker.io/team/web:latest", "docker.io/team/web", false},
		"docker.io/web":                {"docker.io/library/web:latest", "docker.io/library/web", true},
		"index.docker.io/web":          {"docker.io/library/web:latest", "docker.io/library/web", true},
		"localhost/web":                {"localhost/web:latest", "localhost/web", true},
		"localhost:5000/web":           {"localhost:5000/web:latest", "localhost:5000/web", true},
		"reg.example/a/b/c:v1":         {"reg.example/a/b/c:v1", "reg.example/a/b/c", true},
		"reg.example:5000/a:v1@" + d:   {"reg.example:5000/a@" + d, "reg.example:5000/a", true},
		"web@" + d:                     {"docker.io/library/web@" + d, "docker.io/library/web", false},
		"[2001:db8::1]:5000/web":       {"[2001:db8::1]:5000/web:latest", "[2001:db8::1]:5000/web", true},
		"reg.example/x_y/z.w__v--a:_1": {"reg.example/x_y/z.w__v--a:_1", "reg.example/x_y/z.w__v--a", true},
	} {
		named, err := parseName(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if named.String() != want.full || repository(named.String()) != want.repository || hasRegistry(name, named) != want.registry {
			t.Errorf("%s: %s, repository %s, registry %v", name, named, repository(named.String()), hasRegistry(name, named))
		}
	}
}

func TestChoose(t *testing.T) {
	t.Parallel()
	desc := func(platform string) ocispec.Descriptor {
		d := ocispec.Descriptor{Digest: digest.FromString(platform)}
		if platform != "" {
			p, err := parsePlatform(platform)
			if strings.HasPrefix(platform, "unknown") {
				p, err = ocispec.Platform{OS: "unknown", Architecture: "unknown"}, nil
			}
			if err != nil {
				t.Fatal(err)
			}
			d.Platform = &p
		}
		return d
	}
	for _, test := range []struct {
		index, platform, want string
	}{
		{"linux/amd64 linux/arm64", "linux/arm64", "linux/arm64"},
		{"linux/arm/v6 linux/arm/v7 linux/arm/v5", "linux/arm/v7", "linux/arm/v7"},
		{"linux/arm/v6 linux/arm/v5", "linux/arm/v7", "linux/arm/v6"},
		{"linux/amd64 linux/386", "linux/386", "linux/386"},
		{"linux/386", "linux/amd64", "linux/386"},
		{"linux/386 linux/amd64", "linux/amd64", "linux/amd64"},
		{"windows/amd64 linux/amd64", "linux/amd64", "linux/amd64"},
		{"- linux/amd64", "linux/amd64", "linux/amd64"},
		{"- linux/arm64", "linux/amd64", "-"},
		{"unknown linux/arm64", "linux/amd64", "only for linux/arm64:"},
		{"unknown", "linux/amd64", "names no platform"},
		{"linux/s390x linux/arm64 linux/arm64", "linux/amd64", "only for linux/arm64, linux/s390x:"},
	} {
		var index []ocispec.Descriptor
		for _, p := range strings.Fields(test.index) {
			index = append(index, desc(strings.Trim(p, "-")))
		}
		platform, err := parsePlatform(test.platform)
		if err != nil {
			t.Fatal(err)
		}
		got, err := choose(index, platform)
		if err != nil {
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("%s of %s: %v, want %s", test.platform, test.index, err, test.want)
			}
		} else if got.Digest != digest.FromString(strings.Trim(test.want, "-")) {
			t.Errorf("%s of %s: not %s", test.platform, test.index, test.want)
		}
	}
}

// FuzzManifest checks that any document is parsed or refused with a one-line error.
func FuzzManifest(f *testing.F) {
	img := makeImage(f, 1, 2, 10)
	f.Add(img.Manifest, img.Config)
	f.Add([]byte(`{"manifests":[{"platform":{}}]}`), []byte(`{"rootfs":{"diff_ids":["x"]}}`))
	f.Add([]byte(`{"config":{"mediaType":"application/vnd.oci.image.config.v1+json"},"layers":[{}]}`), []byte(`{"rootfs":{"diff_ids":["sha256:x"]}}`))
	f.Fuzz(func(t *testing.T, raw, config []byte) {
		check := func(err error) {
			if err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
		}
		doc, err := parseDocument(ocispec.Descriptor{Digest: digest.FromBytes(raw)}, raw)
		check(err)
		if err != nil {
			return
		}
		_, err = choose(doc.index, here)
		check(err)
		if doc.manifest == nil {
			return
		}
		track := func(digest.Digest, int64) *layerTracker { return nil }
		err = doc.manifest.parse(config, track)
		check(err)
		if err == nil {
			check(doc.manifest.runsOn(here))
			if len(doc.manifest.layers) != len(doc.manifest.Layers) {
				t.Error("layers are missing")
			}
		}
	})
}

// FuzzName checks that parsing a parsed name returns the same name.
func FuzzName(f *testing.F) {
	for _, name := range []string{"web", "reg.example:5000/a/b:v1@sha256:0123", "", "a@b", "sha256:abcd", "A\n"} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		named, err := parseName(name)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("more than one line: %q", err)
			}
			return
		}
		again, err := parseName(named.String())
		if err != nil || again.String() != named.String() {
			t.Errorf("%q parses to %s, which parses to %v, %v", name, named, again, err)
		}
		if !strings.HasPrefix(named.String(), repository(named.String())) {
			t.Errorf("repository of %s: %s", named, repository(named.String()))
		}
	})
}

// TestProgress checks the stages and that bytes are summed up over the layers.
func TestProgress(t *testing.T) {
	t.Parallel()
	u := &unpacker{}
	tr := u.newTracker("web")
	m := &manifest{}
	config, err := json.Marshal(ocispec.Image{RootFS: ocispec.RootFS{DiffIDs: []digest.Digest{digest.FromString("1"), digest.FromString("2")}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int64{100, 50} {
		m.Layers = append(m.Layers, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayer, Digest: digest.FromString("b"), Size: size})
	}
	if err := m.parse(config, tr.layer); err != nil {
		t.Fatal(err)
	}
	var seen []Progress
	note := func() { seen = append(seen, tr.snapshot()) }
	note()
	tr.reset("web", m.trackers())
	tr.enter(Downloading)
	note()
	m.layers[0].progress.enter(Downloading)
	m.layers[0].progress.at(60)
	note()
	m.layers[0].progress.enter(Downloaded)
	m.layers[1].progress.enter(Downloaded)
	note()
	m.layers[0].progress.enter(Unpacked)
	m.layers[1].progress.enter(Unpacking)
	note()
	tr.enter(Done)
	note()
	var got []string
	for _, p := range seen {
		got = append(got, p.Stage)
	}
	if want := []string{Resolving, Downloading, Downloading, Unpacking, Unpacking, Done}; !slices.Equal(got, want) {
		t.Errorf("stages %v, want %v", got, want)
	}
	if p := seen[2]; p.Done != 60 || p.Total != 150 || p.Layers[0].Stage != Downloading || p.Layers[1].Stage != Waiting {
		t.Errorf("halfway: %+v", p)
	}
	if p := seen[4]; p.Done != 150 || p.Layers[0].Stage != Unpacked {
		t.Errorf("at the end: %+v", p)
	}
}
