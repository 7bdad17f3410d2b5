package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/testimage"
)

// containerdConfig makes containerd use directories of the node. Unlike on a real node, the test
// may not be able to lower oom_score_adj.
const containerdConfig = `version = 2
root = %[1]q
state = "/run/containerd"
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.opt", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "/run/containerd/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = %[2]q
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_tcp_service = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[3]q
    conf_dir = %[4]q
`

const containerdSocket = "/run/containerd/containerd.sock"

const webImage = "localhost/web:1"

// containerd is Debian's, on a node, with an image whose program serves HTTP. The image is used as
// the sandbox image, so that a sandbox suffices.
func (h *host) containerd(conf string) runtimeapi.RuntimeServiceClient {
	h.t.Helper()
	dir := filepath.Join(h.Dir, "containerd")
	confDir := filepath.Join(dir, "net.d")
	must(h.t, os.MkdirAll(confDir, 0o755))
	must(h.t, os.WriteFile(filepath.Join(confDir, "10-pods.conflist"), []byte(conf), 0o644))
	bin := filepath.Join(dir, "bin") // containerd wants all plugins in one directory
	must(h.t, os.Mkdir(bin, 0o755))
	must(h.t, os.Symlink(filepath.Join(h.bin, "husk-cni"), filepath.Join(bin, "husk-cni")))
	must(h.t, os.Symlink(filepath.Join(debian, "loopback"), filepath.Join(bin, "loopback")))
	return h.containerdWith(bin, confDir)
}

// containerdWith starts containerd with directories of plugins and networks.
func (h *host) containerdWith(bin, confDir string) runtimeapi.RuntimeServiceClient {
	h.t.Helper()
	dir := filepath.Join(h.Dir, "containerd")
	must(h.t, os.MkdirAll(dir, 0o755))
	must(h.t, os.WriteFile(filepath.Join(dir, "config.toml"), fmt.Appendf(nil, containerdConfig, filepath.Join(dir, "root"), webImage, bin, confDir), 0o644))
	h.t.Cleanup(func() {
		h.Quiet("umount", "-R", dir)
		h.Quiet("umount", "-R", "/run/containerd")
	})
	client := h.containerdStart()
	h.ctr("images", "import", h.webArchive())
	return client
}

// ctr runs ctr in the namespace of CRI's images.
func (h *host) ctr(args ...string) string {
	h.t.Helper()
	return h.Must("ctr", append([]string{"--address", containerdSocket, "--namespace", "k8s.io"}, args...)...)
}

// containerdStart starts containerd and waits until it serves CRI. It is stopped by containerdStop,
// or at the end of the test.
func (h *host) containerdStart() runtimeapi.RuntimeServiceClient {
	h.t.Helper()
	var log bytes.Buffer
	cmd := h.Command(context.Background(), "containerd", "--config", filepath.Join(h.Dir, "containerd/config.toml"))
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(h.t, cmd.Start())
	h.t.Cleanup(func() {
		if h.t.Failed() {
			h.t.Logf("containerd's log:\n%s", log.String())
		}
	})
	h.containerdStop = sync.OnceFunc(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) // nsenter and containerd
		_ = cmd.Wait()
	})
	h.t.Cleanup(h.containerdStop)
	conn, err := grpc.NewClient("unix://"+h.Path(containerdSocket), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(h.t, err)
	h.t.Cleanup(func() { _ = conn.Close() })
	client := runtimeapi.NewRuntimeServiceClient(conn)
	node.Eventually(h.t, time.Minute, func() string {
		st, err := client.Status(h.t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		for _, c := range st.Status.Conditions {
			if !c.Status {
				return fmt.Sprintf("%s: %s", c.Type, c.Message)
			}
		}
		return ""
	})
	return client
}

// webArchive returns an archive of an image whose program serves HTTP.
func (h *host) webArchive() string {
	h.t.Helper()
	image, err := testimage.Build(h.t.Context(), testimage.Spec{Flavour: testimage.Web})
	must(h.t, err)
	path := filepath.Join(h.Dir, "web.tar")
	f, err := os.Create(path)
	must(h.t, err)
	must(h.t, testimage.WriteArchive(f, testimage.Named{Image: image, Names: []string{webImage}}))
	must(h.t, f.Close())
	return path
}

// removeCgroups removes the parent cgroups that runtimes were given.
func (h *host) removeCgroups() {
	h.t.Helper()
	parents, err := filepath.Glob("/sys/fs/cgroup/*" + h.Instance().Cgroup())
	must(h.t, err)
	for _, p := range parents {
		must(h.t, os.Remove(p))
	}
}

// Quiet runs a program on the node and ignores its result.
func (h *host) Quiet(name string, args ...string) {
	_ = h.Command(context.Background(), name, args...).Run()
}

// TestContainerd: Debian's containerd attaches and detaches pods with husk-cni as with any plugin.
func TestContainerd(t *testing.T) {
	need(t, "containerd", "ctr", "runc")
	h := newHost(t)
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "husk-cni", "dataDir": %q,
		"ranges": [[{"subnet": "10.244.0.0/16"}], [{"subnet": "fd44::/64"}]],
		"capabilities": {"portMappings": true, "bandwidth": true}}]}`, h.data)
	client := h.containerd(conf)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var ids []string
	for i := range 3 {
		r, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: &runtimeapi.PodSandboxConfig{
			Metadata:     &runtimeapi.PodSandboxMetadata{Name: fmt.Sprint("web", i), Namespace: "shop", Uid: fmt.Sprint("uid", i)},
			LogDirectory: filepath.Join(h.Dir, "logs"),
			PortMappings: []*runtimeapi.PortMapping{{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 80, HostPort: int32(8080 + i)}},
			Annotations:  map[string]string{"kubernetes.io/ingress-bandwidth": "8M", "kubernetes.io/egress-bandwidth": "8M"},
			Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: h.Instance().Cgroup()},
		}})
		must(t, err)
		ids = append(ids, r.PodSandboxId)
		st, err := client.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: r.PodSandboxId})
		must(t, err)
		if st.Status.Network.GetIp() == "" || len(st.Status.Network.AdditionalIps) != 1 {
			t.Fatalf("network %v", st.Status.Network)
		}
		for _, at := range []string{fmt.Sprint(node.Address4, ":", 8080+i), fmt.Sprintf("[%s]:%d", node.Address6, 8080+i)} {
			node.Eventually(t, 20*time.Second, func() string {
				if answer, err := h.get(h.OtherNet(), at); err != nil || !strings.HasPrefix(answer, "HTTP/1") {
					return fmt.Sprintf("%s answers %q, %v", at, answer, err)
				}
				return ""
			})
		}
	}
	if u := h.usage("pods"); u.Leases != 3 {
		t.Errorf("usage %+v", u)
	}
	for range 2 { // both can be repeated
		for _, id := range ids {
			_, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: id})
			must(t, err)
		}
	}
	if u := h.usage("pods"); u.Leases != 0 || u.Quarantined != 6 {
		t.Errorf("usage %+v", u)
	}
	for _, id := range ids {
		_, err := client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: id})
		must(t, err)
	}
	h.gone(h.list("1.1.0", "pods", dual()))
	h.removeCgroups()
}
