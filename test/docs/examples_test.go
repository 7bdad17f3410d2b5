package docs

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// webArchive writes an archive of the image that all examples use.
var webArchive = sync.OnceValues(func() ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	image, err := testimage.Build(ctx, testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		return nil, err
	}
	var out strings.Builder
	err = testimage.WriteArchive(&out, testimage.Named{Image: image, Names: []string{"localhost/web:1"}})
	return []byte(out.String()), err
})

// saveArchive writes the archive to path.
func saveArchive(t *testing.T, path string) {
	t.Helper()
	data, err := webArchive()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// shows checks what the comment of each example promises, while its pod runs or after it has ended.
var shows = map[string]func(t *testing.T, n *node.Node, address string){
	"web.yaml": func(t *testing.T, n *node.Node, address string) {
		answers(t, n.Net(), address+":80", "/", "web "+address)
		node.Eventually(t, 10*time.Second, func() string {
			return lacks(n.MustHusk("logs", "web", "-c", "visitor"), "web "+address)
		})
	},
	"application.yaml": func(t *testing.T, n *node.Node, _ string) {
		servers := map[string]bool{}
		node.Eventually(t, 10*time.Second, func() string {
			servers[n.MustHusk("exec", "deployment/hello", "--", "wget", "-q", "-O", "-", "http://hello/")] = true
			if len(servers) < 3 {
				return "three pods to answer"
			}
			return ""
		})
	},
	"configured.yaml": func(t *testing.T, n *node.Node, address string) {
		answers(t, n.Net(), address+":80", "/", "hello from a config map")
		if got := n.MustHusk("exec", "configured", "--", "sh", "-c", "echo $PASSWORD"); got != "not that secret\n" {
			t.Errorf("the password is %q", got)
		}
		if missing := lacks(n.MustHusk("describe", "configured"), "healthy; http :http/index.html every 2s"); missing != "" {
			t.Error(missing)
		}
	},
	"hostport.yaml": func(t *testing.T, n *node.Node, address string) {
		answers(t, n.Net(), address+":80", "/", "hostport")
		answers(t, n.Net(), "127.0.0.1:8080", "/", "hostport")
		answers(t, n.Net(), "[::1]:8080", "/", "hostport")
		answers(t, n.OtherNet(), node.Address4+":8080", "/", "hostport")
		answers(t, n.OtherNet(), "["+node.Address6+"]:8080", "/", "hostport")
	},
	"init-and-sidecar.yaml": func(t *testing.T, n *node.Node, address string) {
		answers(t, n.Net(), address+":80", "/", "news of news\n")
		answers(t, n.Net(), address+":80", "/", "UTC")
	},
	"job.yaml": func(t *testing.T, n *node.Node, _ string) {
		if missing := lacks(n.MustHusk("logs", "job"), "the sum is 42\n"); missing != "" {
			t.Error(missing)
		}
	},
	"service.yaml": func(t *testing.T, n *node.Node, address string) {
		answers(t, n.Net(), address+":80", "/index.html", "published 2")
		for _, line := range []string{"Startup", "healthy", "publisher"} {
			if missing := lacks(n.MustHusk("describe", "service"), line); missing != "" {
				t.Error(missing)
			}
		}
		if missing := lacks(n.MustHusk("ps"), "2/2"); missing != "" {
			t.Error(missing)
		}
	},
	"database.yaml": func(t *testing.T, n *node.Node, _ string) {
		t.Cleanup(func() { n.Must("rm", "-r", "/var/lib/husk-example-database") })
		n.MustHusk("exec", "database", "--", "sh", "-c", "echo one >>/data/rows; echo two >>/data/rows")
		n.MustHusk("stop", "database")
		path, err := filepath.Abs(filepath.Join(top, "examples/database.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		n.MustHusk("run", "--wait", "--timeout", "1m", path)
		if missing := lacks(n.MustHusk("logs", "database"), "recovered 2 rows"); missing != "" {
			t.Error(missing)
		}
	},
	"shared-processes.yaml": func(t *testing.T, n *node.Node, _ string) {
		node.Eventually(t, 10*time.Second, func() string {
			return lacks(n.MustHusk("logs", "shared", "-c", "keeper"), "the server is process ")
		})
		if missing := lacks(n.MustHusk("exec", "shared", "-c", "keeper", "--", "sh", "-c", "ls /proc/$(pidof httpd)/root/www"), "cgi-bin"); missing != "" {
			t.Error(missing)
		}
	},
	"volumes.yaml": func(t *testing.T, n *node.Node, address string) {
		answers(t, n.Net(), address+":80", "/release", "ID=")
		answers(t, n.Net(), address+":80", "/memory", " 16384 ") // KiB
	},
}

func TestExamples(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob(filepath.Join(top, "examples/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	n := node.New(t)
	d := n.Huskd()
	archive := filepath.Join(n.Dir, "web.tar")
	saveArchive(t, archive)
	n.MustHusk("image", "load", archive)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			show := shows[filepath.Base(file)]
			if show == nil {
				t.Fatal("nothing tests this example")
			}
			path, err := filepath.Abs(file)
			if err != nil {
				t.Fatal(err)
			}
			n.MustHusk("run", "--wait", "--timeout", "1m", path)
			fields := strings.Fields(strings.Split(n.MustHusk("ps", "-a"), "\n")[1])
			show(t, n, fields[len(fields)-1])
			n.MustHusk("rm", "-f", path)
		})
	}
	d.Stop()
	n.NothingLeft()
}

// answers checks that the web server at address soon answers with want.
func answers(t *testing.T, netnsPath, address, path, want string) {
	t.Helper()
	node.Eventually(t, 10*time.Second, func() string {
		var answer []byte
		err := netns.Do(netnsPath, func() error {
			conn, err := net.DialTimeout("tcp", address, 3*time.Second)
			if err != nil {
				return err
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.0\r\n\r\n"); err != nil {
				return err
			}
			answer, err = io.ReadAll(conn)
			return err
		})
		if err != nil {
			return err.Error()
		}
		return lacks(string(answer), want)
	})
}

// lacks returns a message if text doesn't contain want.
func lacks(text, want string) string {
	if strings.Contains(text, want) {
		return ""
	}
	return "want " + want + ", got " + text
}

func TestExampleConfiguration(t *testing.T) {
	cfg, err := config.Parse([]string{"--config", filepath.Join(top, "examples/huskd.toml")}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if cfg.Manifests == "" {
		t.Error("it names no directory of manifests")
	}
}

// TestGettingStartedInstallsLittle checks that the first commands of the page install what pods
// need, and nothing else.
func TestGettingStartedInstallsLittle(t *testing.T) {
	first, _, _ := strings.Cut(strings.SplitN(read(t, "docs/getting-started.md"), "```sh\n", 2)[1], "```")
	_, pods, _ := strings.Cut(read(t, "Makefile"), "\nPODS  := ")
	pods, _, _ = strings.Cut(pods, "\n")
	want := "apt-get install --no-install-recommends " + pods + "\nmake build\n"
	if !strings.HasPrefix(first, want) || strings.Contains(first, "make deps") {
		t.Errorf("the first commands are\n%s\nwant\n%s", first, want)
	}
}
