package kubeadm

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/debian"
	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// registryAddress is where the machines find the registry, in the place of all others.
const registryAddress = "198.18.1.254:5000"

// The versions of the images that kubeadm 1.36.3 asks for.
const (
	kubernetesVersion = "v1.36.3"
	etcdVersion       = "3.6.8-0"
	dnsVersion        = "v1.14.2"
	pauseVersion      = "3.10.2"
)

// serveImages starts a registry on the router with the images of a cluster, and one that is called
// nginx.
func serveImages(t *testing.T, u *node.Underlay) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var listener net.Listener
	must(netns.Do(u.Net(), func() (err error) {
		listener, err = net.Listen("tcp", registryAddress)
		return err
	}))
	server := &http.Server{Handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)), registry.WithBlobHandler(registry.NewDiskBlobHandler(t.TempDir())))}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	to := testimage.Registry{URL: "http://" + registryAddress, Client: &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(_ context.Context, network, address string) (conn net.Conn, err error) {
		err = netns.Do(u.Net(), func() error {
			conn, err = net.Dial(network, address)
			return err
		})
		return conn, err
	}}}}
	build := func(repository, tag string, config ocispec.ImageConfig, entries ...testimage.Entry) {
		t.Helper()
		layer, err := testimage.NewLayer(testimage.Uncompressed, entries...)
		must(err)
		config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
		img, err := testimage.New(ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}, config, layer)
		must(err)
		must(to.Push(t.Context(), repository, tag, img))
	}
	program := func(name, dir string) testimage.Entry {
		t.Helper()
		body, err := os.ReadFile(filepath.Join(os.Getenv(binaries), name))
		must(err)
		return testimage.File(dir+name, 0o755, body)
	}
	tmp := testimage.Dir("tmp", 0o1777)
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"} {
		build(name, kubernetesVersion, ocispec.ImageConfig{}, program(name, "usr/local/bin/"), tmp)
	}
	build("etcd", etcdVersion, ocispec.ImageConfig{}, program("etcd", "usr/local/bin/"), tmp)
	build("pause", pauseVersion, ocispec.ImageConfig{Entrypoint: []string{"/pause"}}, program("pause", ""))
	build("coredns/coredns", dnsVersion, ocispec.ImageConfig{Entrypoint: []string{"/coredns"}}, program("coredns", ""), tmp)
	build("kube-proxy", kubernetesVersion, ocispec.ImageConfig{}, append(firewallTools(t), program("kube-proxy", "usr/local/bin/"), tmp)...)
	nginx, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Web})
	must(err)
	must(to.Push(t.Context(), "library/nginx", "latest", nginx))
}

// firewallTools returns nft with its libraries, which kube-proxy runs.
func firewallTools(t *testing.T) []testimage.Entry {
	t.Helper()
	packages := []string{"nftables"}
	root, err := debian.Cached("husk-kubeadm", strings.Join(packages, "-"), func(root string) error {
		all, err := debian.Dependencies(t.Context(), packages...)
		if err != nil {
			return err
		}
		return debian.Extract(t.Context(), root, all...)
	})
	if err != nil {
		t.Fatal(err)
	}
	entries, err := testimage.Programs(root, "nft")
	if err != nil {
		t.Fatal(err)
	}
	return entries
}
