package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestPodman: Debian's podman, which still supports CNI, runs its containers on husk-cni.
func TestPodman(t *testing.T) {
	if _, err := exec.LookPath("podman"); err != nil {
		t.Skip("podman isn't installed: make test doesn't install it, because it brings a CNI configuration that huskd would use")
	}
	need(t, "runc", "conmon")
	h := newHost(t)
	dir := filepath.Join(h.Dir, "podman")
	nets := filepath.Join(dir, "net.d")
	must(t, os.MkdirAll(nets, 0o755))
	must(t, os.WriteFile(filepath.Join(nets, "pods.conflist"), fmt.Appendf(nil, `{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "husk-cni", "dataDir": %q,
		"ranges": [[{"subnet": "10.244.0.0/16"}], [{"subnet": "fd44::/64"}]], "capabilities": {"portMappings": true, "ips": true, "mac": true}}]}`, h.data), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "containers.conf"), fmt.Appendf(nil, `[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
[engine]
cgroup_manager = "cgroupfs"
runtime = "runc"
events_logger = "none"
`, h.bin, nets), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "policy.json"), []byte(`{"default": [{"type": "insecureAcceptAnything"}]}`), 0o644))
	podman := func(args ...string) string {
		t.Helper()
		full := append([]string{"CONTAINERS_CONF=" + filepath.Join(dir, "containers.conf"), "podman",
			"--root", filepath.Join(dir, "storage"), "--runroot", "/run/podman", "--tmpdir", "/run/podman-tmp", "--storage-driver", "vfs"}, args...)
		return strings.TrimSpace(h.Must("env", full...))
	}
	t.Cleanup(func() {
		for _, path := range []string{dir, "/run/podman", "/run/podman-tmp", "/dev/shm"} {
			h.Quiet("umount", "-R", "-l", path)
		}
	})
	podman("load", "--signature-policy", filepath.Join(dir, "policy.json"), "-i", h.webArchive())
	id := podman("run", "-d", "--network", "pods:ip=10.244.9.9,mac=02:00:00:00:09:09", "-p", "8080:80", "--log-driver", "none",
		"--cgroup-parent", h.Instance().Cgroup(), "--cgroups", "no-conmon", webImage)
	for _, at := range []string{node.Address4 + ":8080", "[" + node.Address6 + "]:8080"} {
		node.Eventually(t, 20*time.Second, func() string {
			if answer, err := h.get(h.OtherNet(), at); err != nil || !strings.HasPrefix(answer, "HTTP/1") {
				return fmt.Sprintf("%s answers %q, %v", at, answer, err)
			}
			return ""
		})
	}
	if got := podman("inspect", "-f", "{{(index .NetworkSettings.Networks \"pods\").IPAddress}} {{(index .NetworkSettings.Networks \"pods\").MacAddress}}", id); got != "10.244.9.9 02:00:00:00:09:09" {
		t.Errorf("inspect: %s", got)
	}
	podman("rm", "-f", "-t", "1", id)
	if u := h.usage("pods"); u.Leases != 0 || u.Quarantined != 2 {
		t.Errorf("usage %+v", u)
	}
	h.gone(h.list("1.1.0", "pods", dual()))
	h.removeCgroups()
}
