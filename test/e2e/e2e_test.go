// Package e2e tests the real binaries of huskd and husk, each test on a node of its own, with real
// runtimes, namespaces and images.
package e2e

import (
	"context"
	"log"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

func TestMain(m *testing.M) {
	if os.Getenv(api.PluginNameEnvVar) != "" {
		serveNRIPlugin()
		return
	}
	if os.Getenv(intruderEnv) != "" {
		if err := intrude(); err != nil {
			log.Fatal(err)
		}
		return
	}
	node.Main(m)
}

var archive struct {
	once sync.Once
	data []byte
	err  error
}

// webArchive returns an archive of the image localhost/web:1.
func webArchive(t testing.TB) []byte {
	t.Helper()
	archive.once.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		image, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web})
		if err != nil {
			archive.err = err
			return
		}
		var out strings.Builder
		archive.err = testimage.WriteArchive(&out, testimage.Named{Image: image, Names: []string{"localhost/web:1"}})
		archive.data = []byte(out.String())
	})
	if archive.err != nil {
		t.Fatal(archive.err)
	}
	return archive.data
}

// start starts a node with a huskd that has the web image.
func start(t testing.TB, options ...node.Option) (*node.Node, *node.Daemon) {
	t.Helper()
	n := node.New(t)
	return n, startHuskd(t, n, options...)
}

// startHuskd starts huskd on a node and loads the web image.
func startHuskd(t testing.TB, n *node.Node, options ...node.Option) *node.Daemon {
	t.Helper()
	d := n.Huskd(options...)
	path := filepath.Join(n.Dir, "web.tar")
	if err := os.WriteFile(path, webArchive(t), 0o600); err != nil {
		t.Fatal(err)
	}
	n.MustHusk("image", "load", path)
	return d
}

// write writes a file that the node sees at the same path, which it returns.
func write(t testing.TB, n *node.Node, name, content string) string {
	t.Helper()
	path := filepath.Join(n.Dir, name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// mustGet retries node.Get until it succeeds: a container runs before its program listens.
func mustGet(t testing.TB, netnsPath, address string) (body string) {
	t.Helper()
	node.Eventually(t, 10*time.Second, func() string {
		var err error
		if body, err = node.Get(netnsPath, address); err != nil {
			return err.Error()
		}
		return ""
	})
	return body
}
