package registry

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// public returns a client for the image in a registry whose name isn't of the node. It is served at
// loopback, as if DNS said so. mirrors are added to its hosts.toml.
func public(t *testing.T, s *server, mirrors string) *Registry {
	t.Helper()
	r := client(t, "registry.test/"+testRepository+":v1", "server = \"https://registry.test\"\nskip_verify = true\n"+mirrors, Login{})
	for _, transport := range r.transports {
		dial := transport.DialContext
		transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
			if address == "registry.test:443" {
				address = s.host
			}
			return dial(ctx, network, address)
		}
	}
	return r
}

// TestRegistryCannotReachTheNode checks that a registry can't make the node send requests to itself
// or to the metadata service of its cloud, neither by redirects nor as a token server, neither by
// address nor by name.
func TestRegistryCannotReachTheNode(t *testing.T) {
	t.Parallel()
	node := serve(t)
	_, port, err := net.SplitHostPort(node.host)
	if err != nil {
		t.Fatal(err)
	}
	node6 := httptest.NewUnstartedServer(node.Config.Handler) // counts as node
	if node6.Listener, err = net.Listen("tcp", "[::1]:0"); err != nil {
		t.Fatal(err)
	}
	node6.Start()
	t.Cleanup(node6.Close)
	_, port6, err := net.SplitHostPort(node6.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{
		"127.0.0.1:" + port, "localhost:" + port, "0.0.0.0:" + port, "[::ffff:127.0.0.1]:" + port, "[::]:" + port6,
		"[::1]:" + port6, "localhost:" + port6,
		"169.254.169.254", "[fe80::1]", "[fe80::1%25lo]", "[fd00:ec2::254]", "[ff02::1]",
	} {
		for _, part := range []string{"/manifests/", "/blobs/", "realm"} {
			t.Run(host+part, func(t *testing.T) {
				t.Parallel()
				how := redirectPart(part, "http://"+host)
				if part == "realm" {
					how = bearer(func(*http.Request) string { return "http://" + host + "/token" })
				}
				s := start(t, (*httptest.Server).StartTLS, how)
				wantError(t, pull(t.Context(), public(t, s, "")), "registry.test sends huskd to ", "is an address of the node")
			})
		}
	}
	t.Cleanup(func() { // after the parallel ones
		if n := node.count(""); n > 0 {
			t.Errorf("%d requests to the node", n)
		}
	})
}

// TestRegistryOfTheNode checks that a registry at loopback may use others there, but doesn't reach
// the metadata service either.
func TestRegistryOfTheNode(t *testing.T) {
	t.Parallel()
	storage := serve(t)
	s := serve(t, redirect(strings.Replace(storage.URL, "127.0.0.1", "localhost", 1)))
	mustPull(t, client(t, s.host+"/"+testRepository+":v1", "", Login{}))
	s = serve(t, redirect("http://169.254.169.254"))
	wantError(t, pull(t.Context(), client(t, s.host+"/"+testRepository+":v1", "", Login{})), fmt.Sprintf("registry %s sends huskd to 169.254.169.254", s.host))
}

// TestMirrorDoesNotOpenLoopback checks that a mirror on the node, as of a cache, opens its loopback
// to no registry.
func TestMirrorDoesNotOpenLoopback(t *testing.T) {
	t.Parallel()
	node, mirror := serve(t), serve(t, func(w http.ResponseWriter, r *http.Request, _ http.Handler) { http.NotFound(w, r) })
	s := start(t, (*httptest.Server).StartTLS, redirectPart("/manifests/", node.URL))
	if err := pull(t.Context(), public(t, s, fmt.Sprintf("[host.%q]\n", mirror.URL))); err == nil {
		t.Error("pulled")
	}
	if node.count("") > 0 || mirror.count("") == 0 {
		t.Errorf("%d requests to the node, %d to the mirror", node.count(""), mirror.count(""))
	}
}
