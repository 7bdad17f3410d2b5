package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestFromContainerd moves a node from containerd to huskd and back, as docs/from-containerd.md
// describes it. There is no registry, so the image is moved, too.
func TestFromContainerd(t *testing.T) {
	need(t, "containerd", "ctr", "runc", "conmon")
	h := newHost(t)
	list := h.list("1.0.0", "pods", dual())
	containerd := h.containerd(string(list.Bytes))
	began := h.runWeb(containerd, h.Instance().Cgroup())
	h.answers()

	// Images are moved while both run.
	huskd := h.Huskd()
	husk := h.Binary("husk") + " --socket unix://" + h.State + "/husk.sock"
	h.Must("sh", "-c", "ctr --address "+containerdSocket+" --namespace k8s.io images export - "+webImage+" | "+husk+" image load")
	h.answers()

	// The node is drained and switched.
	h.removeWeb(containerd, began)
	h.containerdStop()
	conn, err := grpc.NewClient("unix://"+h.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	images, err := runtimeapi.NewImageServiceClient(conn).ListImages(t.Context(), &runtimeapi.ListImagesRequest{})
	must(t, err)
	if len(images.Images) != 1 || strings.Join(images.Images[0].RepoTags, " ") != webImage {
		t.Errorf("the images of CRI are %v, want %s", images.Images, webImage)
	}
	client := runtimeapi.NewRuntimeServiceClient(conn)
	began = h.runWeb(client, "")
	h.answers()

	// And back, with the images that containerd has kept.
	h.removeWeb(client, began)
	h.MustHusk("shutdown")
	if !huskd.Wait(time.Minute) {
		t.Fatal("huskd doesn't end")
	}
	containerd = h.containerdStart()
	began = h.runWeb(containerd, h.Instance().Cgroup())
	h.answers()
	h.removeWeb(containerd, began)
	h.gone(h.list("1.1.0", "pods", dual()))
	h.containerdStop()
	h.removeCgroups()
}

// runWeb runs a pod whose container serves HTTP on port 8080 of the node.
func (h *host) runWeb(client runtimeapi.RuntimeServiceClient, cgroup string) (sandbox string) {
	h.t.Helper()
	logs := filepath.Join(h.Dir, "logs")
	must(h.t, os.MkdirAll(logs, 0o755))
	pod := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: fmt.Sprint("uid-", time.Now().UnixNano())},
		LogDirectory: logs,
		PortMappings: []*runtimeapi.PortMapping{{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 8000, HostPort: 8080}},
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: cgroup},
	}
	r, err := client.RunPodSandbox(h.t.Context(), &runtimeapi.RunPodSandboxRequest{Config: pod})
	must(h.t, err)
	c, err := client.CreateContainer(h.t.Context(), &runtimeapi.CreateContainerRequest{
		PodSandboxId: r.PodSandboxId, SandboxConfig: pod, Config: &runtimeapi.ContainerConfig{
			Metadata: &runtimeapi.ContainerMetadata{Name: "web"}, Image: &runtimeapi.ImageSpec{Image: webImage}, LogPath: "web.log",
			Command: []string{"/bin/httpd", "-f", "-p", "8000", "-h", "/www"}, // containerd's sandbox listens on port 80
			Linux:   &runtimeapi.LinuxContainerConfig{},
		},
	})
	must(h.t, err)
	_, err = client.StartContainer(h.t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.ContainerId})
	must(h.t, err)
	return r.PodSandboxId
}

// answers waits until the pod of runWeb answers another host.
func (h *host) answers() {
	h.t.Helper()
	at := node.Address4 + ":8080"
	node.Eventually(h.t, time.Minute, func() string {
		if answer, err := h.get(h.OtherNet(), at); err != nil || !strings.HasPrefix(answer, "HTTP/1") {
			return fmt.Sprintf("%s answers %q, %v", at, answer, err)
		}
		return ""
	})
}

func (h *host) removeWeb(client runtimeapi.RuntimeServiceClient, sandbox string) {
	h.t.Helper()
	_, err := client.StopPodSandbox(h.t.Context(), &runtimeapi.StopPodSandboxRequest{PodSandboxId: sandbox})
	must(h.t, err)
	_, err = client.RemovePodSandbox(h.t.Context(), &runtimeapi.RemovePodSandboxRequest{PodSandboxId: sandbox})
	must(h.t, err)
}
