package interop

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
)

// TestContainerdInNodeNetwork: containerd's pods are in the network of a huskd that is only that,
// with the configuration that this huskd writes.
func TestContainerdInNodeNetwork(t *testing.T) {
	need(t, "containerd", "ctr", "runc")
	h := newHost(t)
	only := node.Flags("--network-only")
	d := h.Huskd(only)
	var conf []byte
	node.Eventually(t, 30*time.Second, func() string {
		var err error
		if conf, err = os.ReadFile(filepath.Join(h.CNI, "10-husk.conflist")); err != nil {
			return err.Error()
		}
		return ""
	})
	client := h.containerd(string(conf))
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	config := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "web"},
		LogDirectory: filepath.Join(h.Dir, "logs"),
		PortMappings: []*runtimeapi.PortMapping{{Protocol: runtimeapi.Protocol_TCP, ContainerPort: 80, HostPort: 8080}},
		Linux:        &runtimeapi.LinuxPodSandboxConfig{CgroupParent: h.Instance().Cgroup()},
	}
	r, err := client.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{Config: config})
	must(t, err)
	answers := func() {
		t.Helper()
		node.Eventually(t, 20*time.Second, func() string {
			if answer, err := h.get(h.OtherNet(), node.Address4+":8080"); err != nil || !strings.HasPrefix(answer, "HTTP/1") {
				return fmt.Sprintf("the pod answers %q, %v", answer, err)
			}
			return ""
		})
	}
	answers()
	if got := h.MustHusk("net", "attachments"); !strings.Contains(got, "web") {
		t.Errorf("husk net attachments:\n%s", got)
	}

	d.Kill()
	answers()
	stop := func() error {
		_, err := client.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: r.PodSandboxId})
		return err
	}
	if err := stop(); err == nil || !strings.Contains(err.Error(), "huskd doesn't answer") {
		t.Errorf("stopped while huskd is away: %v", err)
	}
	d = h.Huskd(only)
	must(t, stop())
	must(t, stop())
	_, err = client.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
	must(t, err)
	d.Stop()
	h.removeCgroups()
}
