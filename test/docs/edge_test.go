package docs

import (
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/page"
	"github.com/huskd/husk/test/testimage"
)

// edge is a page for machines without a cluster, whose huskd has the page's configuration.
const edge = "docs/edge.md"

// edgeFile returns a file that the page tells its reader to write.
func edgeFile(t *testing.T, section, path string) string {
	t.Helper()
	for _, f := range page.Read(t, filepath.Join(top, edge)).Section(section).Files {
		if f.Path == path {
			return f.Content
		}
	}
	t.Fatalf("%s has no %s", edge, path)
	return ""
}

// proxy is an HTTP proxy on a node's loopback. It leads all connections to one server, which the
// node can't reach.
type proxy struct {
	url string

	mu       sync.Mutex
	requests []string // methods and hosts
}

func newProxy(t *testing.T, n *node.Node, to net.Addr) *proxy {
	t.Helper()
	p := &proxy{}
	var listener net.Listener
	if err := netns.Do(n.Net(), func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	p.url = "http://" + listener.Addr().String()
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.requests = append(p.requests, r.Method+" "+r.Host)
		p.mu.Unlock()
		if r.Method != http.MethodConnect {
			http.Error(w, "only CONNECT", http.StatusMethodNotAllowed)
			return
		}
		out, err := net.Dial(to.Network(), to.String())
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadGateway)
			return
		}
		defer out.Close()
		in, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer in.Close()
		_, _ = io.WriteString(in, "HTTP/1.1 200 OK\r\n\r\n") // a client that is gone ends the copies below
		go func() {
			_, _ = io.Copy(out, in)
			_ = out.Close()
		}()
		_, _ = io.Copy(in, out)
	})}}
	server.Start()
	t.Cleanup(server.Close)
	return p
}

// seen returns the requests so far, each once.
func (p *proxy) seen() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Compact(slices.Sorted(slices.Values(p.requests)))
}

// TestEdge runs the page's commands with the page's configuration. Then it cuts the power, and the
// pod starts without a registry.
func TestEdge(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	dir := workplace(t, n)
	etc := filepath.Join(n.Dir, "etc")
	if err := os.MkdirAll(filepath.Join(etc, "pods"), 0o755); err != nil {
		t.Fatal(err)
	}
	logs := filepath.Join(n.Dir, "log") // /var/log of a node is the host's
	paths := strings.NewReplacer("/etc/husk", etc, "/var/log", logs)
	config := filepath.Join(etc, "huskd.toml")
	if err := os.WriteFile(config, []byte(paths.Replace(edgeFile(t, "Install", "/etc/husk/huskd.toml"))), 0o600); err != nil {
		t.Fatal(err)
	}
	d := n.Huskd(node.Flags("--config", config))
	run := func(line int, command string, prints []string) {
		node.Eventually(t, time.Minute, func() string {
			out := n.Run("sh", "-c", fmt.Sprintf("cd %s && PATH=$PWD/bin:$PATH && { %s\n} 2>&1", dir, paths.Replace(command))).Stdout
			want := strings.Split(paths.Replace(strings.Join(prints, "\n")), "\n")
			if len(prints) == 0 {
				want = nil
			}
			if !matches(want, strings.Split(strings.TrimRight(out, "\n"), "\n")) {
				return fmt.Sprintf("%s:%d: %s prints\n%s\nand not\n%s", edge, line, command, out, strings.Join(prints, "\n"))
			}
			return ""
		})
	}
	list := steps(read(t, edge))
	for _, s := range list {
		run(s.line, s.run, s.prints)
	}
	links, err := filepath.Glob(filepath.Join(logs, "containers/hostport_default_server-*.log"))
	if err != nil || len(links) != 1 {
		t.Errorf("the links to logs are %q, %v", links, err)
	}

	d.Kill()
	n.Reboot()
	d = n.Huskd(node.Flags("--config", config))
	run(0, "curl -s http://127.0.0.1:8081/", []string{"hostport …"})
	if err := os.Remove(filepath.Join(etc, "pods/hostport.yaml")); err != nil {
		t.Fatal(err)
	}
	run(0, "husk ps -a -q", nil)
	d.Stop()
	n.NothingLeft()
}

// TestEdgeProxy pulls the image of a pod through a proxy, with the environment of the page. The
// pod's probe and registries in NO_PROXY aren't requested through it.
func TestEdgeProxy(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	image, err := testimage.Build(t.Context(), testimage.Spec{Flavour: testimage.Web})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	if err := (testimage.Registry{URL: server.URL, Client: server.Client()}).Push(t.Context(), "shop/web", "1", image); err != nil {
		t.Fatal(err)
	}
	p := newProxy(t, n, server.Listener.Addr())
	certs := filepath.Join(n.Dir, "certs.d/example.com") // a name in the server's certificate
	if err := os.MkdirAll(certs, 0o755); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(n.Dir, "web.yaml")
	for path, content := range map[string]string{
		filepath.Join(certs, "ca.crt"):     string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})),
		filepath.Join(certs, "hosts.toml"): "server = \"https://example.com\"\nca = \"ca.crt\"\n",
		manifest: `{apiVersion: v1, kind: Pod, metadata: {name: web}, spec: {terminationGracePeriodSeconds: 1,
			containers: [{name: c, image: example.com/shop/web:1, readinessProbe: {periodSeconds: 1, httpGet: {port: 80}}}]}}`,
	} {
		if err := os.WriteFile(path, []byte(strings.ReplaceAll(content, "\t", " ")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var options []node.Option
	unit := edgeFile(t, "Registries", "/etc/systemd/system/huskd.service.d/proxy.conf")
	for line := range strings.Lines(strings.NewReplacer("http://192.0.2.10:3128", p.url, "192.0.2.0/24", node.Address4+"/32").Replace(unit)) {
		if variable, ok := strings.CutPrefix(strings.TrimSpace(line), "Environment="); ok {
			name, value, _ := strings.Cut(variable, "=")
			options = append(options, node.Env(name, value))
		}
	}
	d := n.Huskd(options...)
	n.MustHusk("run", "--wait", "--timeout", "1m", manifest)
	if r := n.Husk("image", "pull", node.Address4+":1/shop/web:1"); r.Code == 0 || !strings.Contains(r.Stderr, "refused") {
		t.Errorf("a registry that doesn't listen: %+v", r)
	}
	if r := n.Run("env", "HTTP_PROXY="+p.url, "HTTPS_PROXY="+p.url, n.Binary("husk"), "ps", "-q"); r.Code != 0 || !strings.Contains(r.Stdout, "web") {
		t.Errorf("husk with a proxy in its environment: exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	if r := n.Husk("exec", "web", "--", "env"); r.Code != 0 || strings.Contains(r.Stdout, "PROXY") {
		t.Errorf("the environment of a container, exit code %d:\n%s", r.Code, r.Stdout)
	}
	if got := p.seen(); !slices.Equal(got, []string{"CONNECT example.com:443"}) {
		t.Errorf("requests through the proxy: %q", got)
	}
	n.MustHusk("rm", "-f", manifest)
	d.Stop()
	n.NothingLeft()
}
