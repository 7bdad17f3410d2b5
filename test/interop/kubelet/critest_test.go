package kubelet

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

var critest = flag.Bool("critest", false, "run critest, the tests of CRI")

// criExceptions are the specs of critest that can't pass, and why.
var criExceptions = map[string]string{
	"public image with digest should be pulled and removed": "It pulls an image of the Internet by its digest, which an image that is built here doesn't have.",
}

// TestCritest runs critest of cri-tools, the tests for runtimes that implement CRI, against huskd.
func TestCritest(t *testing.T) {
	if !*critest {
		t.Skip("it takes minutes: run make test-critest")
	}
	out, err := filepath.Abs("out/cri")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		t.Fatal(err)
	}
	m := newMachine(t)
	m.logs = out
	m.huskd.Stop()
	serveImages([]*machine{m}, []string{"registry.k8s.io", "gcr.io", "k8s.gcr.io"}, criImages(t))
	m.Must("mount", "--make-rshared", "/")         // as on a machine with systemd: specs of mount propagation need it
	if err := os.Chmod(m.Dir, 0o711); err != nil { // the root users of user namespaces pass through it
		t.Fatal(err)
	}
	huskd := m.Huskd(node.Flags("--config", m.write("huskd.toml", "")))
	report := filepath.Join(out, "critest.json")
	_ = os.Remove(report)
	began := time.Now()
	socket := "unix://" + m.State + "/husk.sock"
	<-m.startLogged("critest", "critest", "-runtime-endpoint", socket, "-image-endpoint", socket, "-ginkgo.skip", exactly(slices.Collect(maps.Keys(criExceptions))),
		"-ginkgo.json-report", report, "-ginkgo.no-color").done
	r, err := readReport(report, func(spec types.SpecReport) bool {
		for name := range criExceptions {
			if strings.Contains(spec.FullText(), name) {
				return true
			}
		}
		return false
	})
	if err != nil {
		t.Fatalf("critest ended without a report, see %s: %v", filepath.Join(out, "critest.log"), err)
	}
	r.Group, r.Took = "critest", time.Since(began)
	t.Logf("%v, %d are excepted, %d aren't applicable", r, r.Excepted, r.Skipped)
	if r.Unfinished != "" {
		t.Errorf("critest: %s", r.Unfinished)
	}
	if r.Excepted != len(criExceptions) {
		t.Errorf("%d of %d exceptions are specs of critest", r.Excepted, len(criExceptions))
	}
	for _, spec := range r.Failed {
		t.Errorf("%s: %s", spec.Name, firstLine(spec.Message))
	}
	huskd.Stop()
	m.Must("umount", "/var/log")
}

// criImages builds the images of critest.
func criImages(t *testing.T) map[string]*testimage.Image {
	t.Helper()
	b := newImageBuilder(t, "coreutils", "nginx-light", "procps", "util-linux")
	root := "root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33:www-data:/var/www:/bin/sh\ndefault-user:x:1000:1000::/:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n"
	groups := "root:x:0:\nwww-data:x:33:\ndefault-user:x:1000:\nnogroup:x:65534:\n"
	base := append(b.busybox[:len(b.busybox):len(b.busybox)], b.layer(append(b.programs("ipcs", "ipcmk", "ls", "pgrep"), // ls is a file of its own, as a spec masks it
		testimage.File("etc/passwd", 0o644, []byte(root)), testimage.File("etc/group", 0o644, []byte(groups)))...))
	image := func(config ocispec.ImageConfig, layers ...testimage.Layer) *testimage.Image {
		t.Helper()
		if config.Cmd == nil && config.Entrypoint == nil {
			config.Cmd = []string{"sh"}
		}
		return b.image(config, append(base[:len(base):len(base)], layers...)...)
	}
	web := func(port int, config ocispec.ImageConfig) *testimage.Image {
		t.Helper()
		text := strings.NewReplacer("listen 80", fmt.Sprint("listen ", port), "daemon off;", "user root; pid /var/run/nginx.pid;").Replace(nginxConfig)
		return image(config, b.layer(append(b.programs("nginx"), testimage.Dir("usr/share/nginx/html", 0o755), testimage.Dir("var/run", 0o755),
			testimage.Dir("var/lib/nginx", 0o755), testimage.Dir("var/log/nginx", 0o755), testimage.File("etc/nginx/nginx.conf", 0o644, []byte(text)),
			testimage.File("usr/share/nginx/html/index.html", 0o644, []byte("It works!\n")))...))
	}
	serve := []string{"nginx", "-c", "/etc/nginx/nginx.conf", "-g", "daemon off;"}
	images := map[string]*testimage.Image{
		"busybox:1.29-2": image(ocispec.ImageConfig{}),
		"nginx:1.14-2":   web(80, ocispec.ImageConfig{Cmd: serve}),
		"httpd:2.4.39-4": web(80, ocispec.ImageConfig{Cmd: []string{"sh", "-c", "echo httpd starts; exec nginx -c /etc/nginx/nginx.conf -g 'daemon off;'"}}),
		"nonewprivs:1.3": image(ocispec.ImageConfig{Entrypoint: []string{"/nnp"}}, b.binary("nonewprivs", "nnp", 0o4755)),
	}
	named := map[string]*testimage.Image{}
	for name, img := range images {
		named["registry.k8s.io/e2e-test-images/"+name] = img
	}
	pause := b.image(ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, b.binary("pause", "pause", 0o755))
	for _, tag := range []string{"3.9", "3.10", "3.10.1", "3.10.2"} {
		named["registry.k8s.io/pause:"+tag] = pause
	}
	staging := map[string]*testimage.Image{"hostnet-nginx-amd64:latest": web(12003, ocispec.ImageConfig{Cmd: serve})}
	for i, name := range []string{"test-image-1:latest", "test-image-2:latest", "test-image-3:latest", "test-image-latest:latest", "test-image-tag:test", "test-image-tag:all"} {
		staging[name] = image(ocispec.ImageConfig{}, b.layer(testimage.File("which", 0o644, []byte(fmt.Sprintln(i)))))
	}
	for _, tag := range []string{"1", "2", "3"} {
		staging["test-image-tags:"+tag] = image(ocispec.ImageConfig{Labels: map[string]string{"tags": "several"}})
	}
	for name, user := range map[string]string{"uid": "1002", "username": "www-data", "uid-group": "1003:1003", "username-group": "www-data:www-data"} {
		staging["test-image-user-"+name+":latest"] = image(ocispec.ImageConfig{User: user})
	}
	staging["test-image-predefined-group:latest"] = image(ocispec.ImageConfig{User: "1000"},
		b.layer(testimage.File("etc/group", 0o644, []byte(groups+"group-defined-in-image:x:50000:default-user\n"))))
	for name, img := range staging {
		named["gcr.io/k8s-staging-cri-tools/"+name] = img
	}
	return named
}
