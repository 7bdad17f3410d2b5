package kubelet

import (
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	imageutils "k8s.io/kubernetes/test/utils/image"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/debian"
	"github.com/huskd/husk/test/testimage"
)

// mirror is where the registry listens on each node. Pods use port 5000.
const mirror = "127.0.0.1:4999"

// The hosts of the images in the tests, in the place of which huskd asks the mirror.
var mirrored = []string{"registry.k8s.io"}

// serveImages starts a registry with images, by their names, in the place of registries of the
// Internet. All nodes have it at mirror.
func serveImages(machines []*machine, hosts []string, images map[string]*testimage.Image) {
	first := machines[0]
	first.t.Helper()
	must := mustOf(first.t)
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(first.log("registry"), "", log.LstdFlags)))}
	first.t.Cleanup(func() { _ = server.Close() })
	for _, m := range machines {
		var listener net.Listener
		must(netns.Do(m.Net(), func() (err error) {
			listener, err = net.Listen("tcp", mirror)
			return err
		}))
		go func() { _ = server.Serve(listener) }()
		for _, host := range hosts {
			dir := filepath.Join(m.Dir, "certs.d", host)
			must(os.MkdirAll(dir, 0o755))
			must(os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte("[host.\"http://"+mirror+"\"]\ncapabilities = [\"pull\", \"resolve\"]\n"), 0o644))
		}
	}
	to := testimage.Registry{URL: "http://" + mirror, Client: &http.Client{Transport: &http.Transport{DialContext: first.dial}}}
	for name, img := range images {
		_, repository, _ := strings.Cut(name, "/")
		repository, tag, _ := strings.Cut(repository, ":")
		must(to.Push(first.t.Context(), repository, tag, img))
	}
}

// mustOf returns a function that ends the test at an error.
func mustOf(t *testing.T) func(error) {
	return func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// imageBuilder builds images of what the Makefile has built and of Debian packages.
type imageBuilder struct {
	t       *testing.T
	root    string // a directory with the files of the packages
	busybox []testimage.Layer
}

func newImageBuilder(t *testing.T, packages ...string) imageBuilder {
	t.Helper()
	must := mustOf(t)
	busybox, err := testimage.Build(t.Context(), testimage.Spec{})
	must(err)
	root, err := debian.Cached("husk-conformance", strings.Join(packages, "-"), func(root string) error {
		all, err := debian.Dependencies(t.Context(), packages...)
		if err != nil {
			return err
		}
		return debian.Extract(t.Context(), root, all...)
	})
	must(err)
	return imageBuilder{t, root, busybox.Layers}
}

func (b imageBuilder) layer(entries ...testimage.Entry) testimage.Layer {
	b.t.Helper()
	l, err := testimage.NewLayer(testimage.Uncompressed, entries...)
	mustOf(b.t)(err)
	return l
}

func (b imageBuilder) image(config ocispec.ImageConfig, layers ...testimage.Layer) *testimage.Image {
	b.t.Helper()
	config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	img, err := testimage.New(ocispec.Platform{OS: "linux", Architecture: goruntime.GOARCH}, config, layers...)
	mustOf(b.t)(err)
	return img
}

func (b imageBuilder) copied(to string, mode int64, from string) testimage.Entry {
	b.t.Helper()
	body, err := os.ReadFile(from)
	mustOf(b.t)(err)
	return testimage.File(to, mode, body)
}

// binary returns a layer with a program that the Makefile has built, and further entries.
func (b imageBuilder) binary(name, path string, mode int64, entries ...testimage.Entry) testimage.Layer {
	b.t.Helper()
	return b.layer(append(entries, b.copied(path, mode, filepath.Join(binaries, name)))...)
}

// programs returns programs of the packages, with the libraries that they need.
func (b imageBuilder) programs(names ...string) []testimage.Entry {
	b.t.Helper()
	entries, err := testimage.Programs(b.root, names...)
	mustOf(b.t)(err)
	return entries
}

// tools are the programs in most images, beside those of busybox, and the packages that have them.
var (
	tools        = []string{"bash", "curl", "dig", "getent", "host", "ip", "ipcmk", "ipcs", "nc.openbsd", "nginx", "nslookup", "printenv", "ss", "wget"}
	toolPackages = []string{"bash", "bind9-dnsutils", "bind9-host", "coreutils", "curl", "etcd-server", "iproute2", "libc-bin", "netcat-openbsd", "nginx-light", "util-linux", "wget"}
)

const nginxConfig = `daemon off;
error_log /dev/stderr;
events {}
http {
	access_log /dev/stdout;
	default_type text/html;
	server {
		listen 80;
		location / { root /usr/share/nginx/html; index index.html; }
	}
}
`

// buildImages builds the images by their names. Servers in them have the API server's certificate,
// which is in dir.
func buildImages(t *testing.T, dir string) map[string]*testimage.Image {
	t.Helper()
	b := newImageBuilder(t, toolPackages...)
	layer, binary, copied, programs, build := b.layer, b.binary, b.copied, b.programs, b.image
	pause := build(ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, binary("pause", "pause", 0o755))
	base := slices.Concat(b.busybox, []testimage.Layer{layer(append(programs(tools...), testimage.Symlink("usr/local/bin/nc", "/bin/nc.openbsd"))...)})
	agnhostLayer := binary("agnhost", "agnhost", 0o755, append(fakeRegistry(pause, "pause", "testing"),
		testimage.File("etc/os-release", 0o644, []byte("NAME=\"Alpine Linux\"\n")), // a spec about image volumes reads it
		testimage.Symlink("agnhost-2", "agnhost"), testimage.Dir("uploads", 0o755),
		copied("localhost.crt", 0o644, dir+"/apiserver.crt"), copied("localhost.key", 0o644, dir+"/apiserver.key"),
		testimage.File("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nuser-defined-in-image:x:1000:1000::/home/alice:/bin/sh\n")),
		testimage.File("etc/group", 0o644, []byte("root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n")))...)
	tooled := func(config ocispec.ImageConfig, layers ...testimage.Layer) *testimage.Image {
		return build(config, slices.Concat(base, layers)...)
	}
	agnhost := func(config ocispec.ImageConfig, layers ...testimage.Layer) *testimage.Image {
		config.Entrypoint = []string{"/agnhost"}
		if config.Cmd == nil {
			config.Cmd = []string{"pause"}
		}
		return tooled(config, append([]testimage.Layer{agnhostLayer}, layers...)...)
	}
	picture := func(name string) *testimage.Image {
		return agnhost(ocispec.ImageConfig{Cmd: []string{"test-webserver"}},
			layer(testimage.File("data.json", 0o644, []byte(`{"image": "`+name+`.jpg"}`+"\n")), testimage.File(name+".jpg", 0o644, []byte(name))))
	}
	nginx := tooled(ocispec.ImageConfig{Cmd: []string{"nginx", "-c", "/etc/nginx/nginx.conf"}},
		layer(testimage.Dir("usr/share/nginx/html", 0o755), testimage.File("etc/nginx/nginx.conf", 0o644, []byte(nginxConfig)),
			testimage.Dir("var/lib/nginx", 0o755), testimage.Dir("var/log/nginx", 0o755),
			testimage.File("etc/passwd", 0o644, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n")),
			testimage.File("etc/group", 0o644, []byte("root:x:0:\nnogroup:x:65534:\n")),
			testimage.File("usr/share/nginx/html/index.html", 0o644, []byte("<title>Welcome to nginx!</title>\n"))))
	// The shell of Debian's busybox drops variables whose names it can't use. A spec expects them.
	bash := layer(append(programs("bash"), testimage.Symlink("bin/sh", "bash"))...)
	shell := ocispec.ImageConfig{Cmd: []string{"sh"}}
	images := map[string]*testimage.Image{
		"registry.k8s.io/husk/coredns:1": build(ocispec.ImageConfig{Entrypoint: []string{"/coredns"}}, binary("coredns", "coredns", 0o755, testimage.Dir("tmp", 0o1777))),
	}
	for id, img := range map[imageutils.ImageID]*testimage.Image{
		imageutils.Pause: pause, imageutils.Agnhost: agnhost(ocispec.ImageConfig{}, binary("coredns", "coredns", 0o755)), imageutils.AgnhostPrev: agnhost(ocispec.ImageConfig{Labels: map[string]string{"previous": "true"}}),
		imageutils.BusyBox: build(shell, append(slices.Clone(b.busybox), bash)...), imageutils.NonRoot: build(ocispec.ImageConfig{Cmd: []string{"sh"}, User: "1234"}, b.busybox...),
		imageutils.Nginx: nginx, imageutils.NginxNew: nginx, imageutils.IpcUtils: tooled(shell), imageutils.GlibcDnsTesting: tooled(shell),
		imageutils.Kitten: picture("kitten"), imageutils.Nautilus: picture("nautilus"),
		imageutils.Nonewprivs:           tooled(ocispec.ImageConfig{Cmd: []string{"nnp"}}, binary("nonewprivs", "usr/local/bin/nnp", 0o4755)),
		imageutils.RegressionIssue74839: tooled(ocispec.ImageConfig{Entrypoint: []string{"/regression-issue-74839"}}, binary("regression-issue-74839", "regression-issue-74839", 0o755)),
		imageutils.APIServer:            tooled(ocispec.ImageConfig{Entrypoint: []string{"/sample-apiserver"}}, binary("sample-apiserver", "sample-apiserver", 0o755)),
		imageutils.Etcd:                 tooled(ocispec.ImageConfig{Entrypoint: []string{"/usr/local/bin/etcd"}}, layer(append(programs("etcd"), testimage.Symlink("usr/local/bin/etcd", "/usr/bin/etcd"))...)),
	} {
		images[imageutils.GetE2EImage(id)] = img
	}
	return images
}

// fakeRegistry returns the files from which agnhost's fake-registry-server serves an image.
func fakeRegistry(img *testimage.Image, name, tag string) []testimage.Entry {
	dir := "var/registry/" + name + "/"
	path := func(kind, algorithm, encoded string) string {
		return dir + kind + "/" + algorithm + "/" + encoded[:2] + "/" + encoded + "/data"
	}
	digest := img.Descriptor.Digest
	entries := []testimage.Entry{
		testimage.File(dir+"manifests/"+tag, 0o644, []byte(digest.String())),
		testimage.File(path("manifests", digest.Algorithm().String(), digest.Encoded()), 0o644, img.Manifest),
	}
	for d, blob := range img.Blobs() {
		entries = append(entries, testimage.File(path("blobs", d.Algorithm().String(), d.Encoded()), 0o644, blob))
	}
	return entries
}
