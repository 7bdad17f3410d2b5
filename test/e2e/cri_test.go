package e2e

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/internal/netns"
	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// The images of the registry that a criNode has a mirror of. Those below /private/ need
// registryUser's login.
const (
	criRegistry  = "registry.test"
	webImage     = criRegistry + "/cri/web:1"
	usersImage   = criRegistry + "/cri/users:1"
	privateImage = criRegistry + "/private/web:1"

	registryUser, registryPassword = "alice", "opensesame"
)

// criNode is a node with a client of its CRI socket.
type criNode struct {
	*node.Node
	runtimeapi.RuntimeServiceClient
	images runtimeapi.ImageServiceClient
	conn   *grpc.ClientConn
	huskd  *node.Daemon
	t      testing.TB
	ctx    context.Context
	names  *atomic.Int64 // number of the names of pods and containers given out
}

// startCRI starts a node whose huskd can pull test images.
func startCRI(t testing.TB, options ...node.Option) *criNode {
	t.Helper()
	n := node.New(t)
	serveRegistry(t, n)
	return serveCRI(t, n, options...)
}

// serveCRI starts huskd on a node that already has a registry.
func serveCRI(t testing.TB, n *node.Node, options ...node.Option) *criNode {
	t.Helper()
	c := &criNode{Node: n, huskd: n.Huskd(options...), t: t, names: &atomic.Int64{}}
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithTimeout(t.Context(), 4*time.Minute)
	t.Cleanup(cancel)
	c.connect()
	return c
}

// subtest runs fn as a subtest, with a criNode that reports to it.
func (c *criNode) subtest(t *testing.T, name string, fn func(t *testing.T, c *criNode)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		in := *c
		in.t = t
		fn(t, &in)
	})
}

// connect connects to the socket. Tests call it again after a restart of huskd.
func (c *criNode) connect() {
	c.t.Helper()
	conn, err := grpc.NewClient("unix://"+c.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20)))
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = conn.Close() })
	c.conn, c.RuntimeServiceClient, c.images = conn, runtimeapi.NewRuntimeServiceClient(conn), runtimeapi.NewImageServiceClient(conn)
}

// serveRegistry starts a registry on the node's loopback, and configures it for huskd as the mirror
// of criRegistry.
func serveRegistry(t testing.TB, n *node.Node) {
	t.Helper()
	stored := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	for name, flavour := range map[string]testimage.Spec{
		"cri/web": {Flavour: testimage.Web}, "cri/users": {Flavour: testimage.Users}, "private/web": {Flavour: testimage.Web, Layers: 2},
		"cri/volumes": {Flavour: testimage.Users, Config: ocispec.ImageConfig{Volumes: map[string]struct{}{"/data/new": {}, "/tmp": {}, "/bin/sh": {}, "/dev/x": {}}}},
	} {
		image, err := testimage.Build(t.Context(), flavour)
		if err != nil {
			t.Fatal(err)
		}
		outside := httptest.NewServer(stored)
		err = testimage.Registry{URL: outside.URL}.Push(t.Context(), name, "1", image)
		outside.Close()
		if err != nil {
			t.Fatal(err)
		}
	}
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if strings.Contains(r.URL.Path, "/private/") && (user != registryUser || password != registryPassword) {
			w.Header().Set("WWW-Authenticate", `Basic realm="private"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"log in"}]}`, http.StatusUnauthorized)
			return
		}
		stored.ServeHTTP(w, r)
	})
	var listener net.Listener
	if err := netns.Do(n.Net(), func() (err error) {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	}); err != nil {
		t.Fatal(err)
	}
	server := &httptest.Server{Listener: listener, Config: &http.Server{Handler: guarded}}
	server.Start()
	t.Cleanup(server.Close)
	dir := filepath.Join(n.Dir, "certs.d", criRegistry)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	// It is the server as well, because the name criRegistry does not resolve.
	hosts := fmt.Sprintf("server = %q\n", "http://"+listener.Addr().String())
	if err := os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o644); err != nil {
		t.Fatal(err)
	}
}

// pull pulls an image and returns its ID.
func (c *criNode) pull(name string) string {
	c.t.Helper()
	r, err := c.images.PullImage(c.ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: name}})
	c.must(err)
	return r.GetImageRef()
}

func (c *criNode) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// fails checks that err has the code, and that its message is one short line with the words.
func fails(t testing.TB, err error, code codes.Code, words string) {
	t.Helper()
	message := status.Convert(err).Message()
	switch {
	case status.Code(err) != code:
		t.Errorf("got %v, want %v %q", err, code, words)
	case !strings.Contains(message, words):
		t.Errorf("message %q doesn't contain %q", message, words)
	case strings.ContainsAny(message, "\n\r") || len(message) > 1000:
		t.Errorf("the message is not one short line: %.1200q", message)
	}
}

// podConfig returns the config of a new pod.
func (c *criNode) podConfig(change ...func(*runtimeapi.PodSandboxConfig)) *runtimeapi.PodSandboxConfig {
	name := fmt.Sprintf("pod-%d", c.names.Add(1))
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: name, Namespace: "default", Uid: "uid-" + name},
		Hostname:     name,
		LogDirectory: filepath.Join(c.Dir, "logs", name),
		Labels:       map[string]string{"pod": name, "suite": "cri"},
		Annotations:  map[string]string{"note": "kept verbatim: \n é"},
		Linux: &runtimeapi.LinuxPodSandboxConfig{SecurityContext: &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER},
		}},
	}
	for _, fn := range change {
		fn(config)
	}
	return config
}

// pod runs a sandbox and returns its ID. end removes it.
func (c *criNode) pod(change ...func(*runtimeapi.PodSandboxConfig)) string {
	c.t.Helper()
	return c.runPod(c.podConfig(change...))
}

func (c *criNode) runPod(config *runtimeapi.PodSandboxConfig) string {
	c.t.Helper()
	r, err := c.RunPodSandbox(c.ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	c.must(err)
	return r.GetPodSandboxId()
}

// end removes all sandboxes, stops huskd, and checks that nothing is left on the node.
func (c *criNode) end() {
	c.t.Helper()
	r, err := c.ListPodSandbox(c.ctx, &runtimeapi.ListPodSandboxRequest{})
	c.must(err)
	for _, p := range r.GetItems() {
		_, err := c.RemovePodSandbox(c.ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: p.GetId()})
		c.must(err)
	}
	c.huskd.Stop()
	c.NothingLeft()
}

// containerConfig returns the config of a new container of webImage that runs a shell script.
func (c *criNode) containerConfig(script string, change ...func(*runtimeapi.ContainerConfig)) *runtimeapi.ContainerConfig {
	name := fmt.Sprintf("container-%d", c.names.Add(1))
	config := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: name},
		Image:       &runtimeapi.ImageSpec{Image: webImage},
		Command:     []string{"/bin/sh", "-c", script},
		LogPath:     name + ".log",
		Labels:      map[string]string{"container": name},
		Annotations: map[string]string{"hash": "0123"},
		Linux:       &runtimeapi.LinuxContainerConfig{},
	}
	for _, fn := range change {
		fn(config)
	}
	return config
}

// create creates a container and returns its ID.
func (c *criNode) create(pod string, config *runtimeapi.ContainerConfig) string {
	c.t.Helper()
	r, err := c.CreateContainer(c.ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod, Config: config})
	c.must(err)
	return r.GetContainerId()
}

// run creates and starts a container that runs a shell script, and returns its ID.
func (c *criNode) run(pod, script string, change ...func(*runtimeapi.ContainerConfig)) string {
	c.t.Helper()
	id := c.create(pod, c.containerConfig(script, change...))
	_, err := c.StartContainer(c.ctx, &runtimeapi.StartContainerRequest{ContainerId: id})
	c.must(err)
	return id
}

// forever is a script that runs until SIGTERM. Once it is ready, it exits at once on the signal.
const forever = "trap 'exit 0' TERM; touch /tmp/ready; while :; do sleep 3600 & wait; done"

// ready waits until the script of a container has created /tmp/ready, after setting its traps.
func (c *criNode) ready(id string) {
	c.t.Helper()
	node.Eventually(c.t, 20*time.Second, func() string {
		r, err := c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"test", "-e", "/tmp/ready"}})
		if err != nil || r.GetExitCode() != 0 {
			return fmt.Sprintf("the container's script is not ready: %v %v", r, err)
		}
		return ""
	})
}

// sh runs a shell script in a container and returns its output.
func (c *criNode) sh(id, script string) string {
	c.t.Helper()
	r, err := c.ExecSync(c.ctx, &runtimeapi.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 60})
	c.must(err)
	if r.GetExitCode() != 0 {
		c.t.Fatalf("%s: exit code %d: %s%s", script, r.GetExitCode(), r.GetStdout(), r.GetStderr())
	}
	return strings.TrimSpace(string(r.GetStdout()))
}

func (c *criNode) status(id string) *runtimeapi.ContainerStatus {
	c.t.Helper()
	r, err := c.ContainerStatus(c.ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id})
	c.must(err)
	return r.GetStatus()
}

// exited waits until a container has exited and returns its status.
func (c *criNode) exited(id string) (st *runtimeapi.ContainerStatus) {
	c.t.Helper()
	node.Eventually(c.t, time.Minute, func() string {
		if st = c.status(id); st.GetState() != runtimeapi.ContainerState_CONTAINER_EXITED {
			return fmt.Sprintf("container %s is in state %s", id, st.GetState())
		}
		return ""
	})
	return st
}
