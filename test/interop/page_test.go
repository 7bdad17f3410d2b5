package interop

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/huskd/husk/test/node"
	"github.com/huskd/husk/test/page"
)

// stubs are programs that docs/husk-cni.md calls and the node doesn't have: the package manager,
// which only places the plugin, systemd, and crictl, whose work the test does.
var stubs = map[string]string{
	"apt":       `case $1 in install) mkdir -p /opt/cni/bin && cp "$HUSK_CNI" /opt/cni/bin/ ;; purge) rm /opt/cni/bin/husk-cni ;; esac`,
	"systemctl": `case $* in "enable --now huskd") huskd >$LOGS/huskd 2>&1 & for i in $(seq 300); do husk version >/dev/null 2>&1 && exit; sleep 0.1; done; cat $LOGS/huskd; exit 1 ;; esac`,
	"crictl":    `true`,
}

// TestHuskCNIPage runs the commands of docs/husk-cni.md on a node with Debian's containerd.
func TestHuskCNIPage(t *testing.T) {
	need(t, "containerd", "ctr", "runc")
	h := newHost(t)
	p := page.Read(t, "../../docs/husk-cni.md")
	bin := filepath.Join(h.Dir, "bin")
	must(t, os.Mkdir(bin, 0o755))
	build := exec.Command("go", "build", "-o", bin, "github.com/containernetworking/cni/cnitool")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build cnitool: %v\n%s", err, out)
	}
	for name, script := range stubs {
		must(t, os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(bin, "huskd"), []byte("#!/bin/sh\nexec "+h.Binary("huskd")+" --root "+h.Root+"\n"), 0o755))
	must(t, os.Symlink(h.Binary("husk"), filepath.Join(bin, "husk")))
	// The page's paths are the real ones.
	for _, dir := range []string{"/etc", "/opt", "/root", "/usr/lib/cni", "/var/lib"} {
		upper, work := h.Dir+"/upper"+dir, h.Dir+"/work"+dir
		h.Must("mkdir", "-p", upper, work)
		h.Must("mount", "-t", "overlay", "-o", "lowerdir="+dir+",upperdir="+upper+",workdir="+work, "overlay", dir)
	}
	t.Cleanup(func() { h.Quiet("umount", "/var/lib", "/usr/lib/cni", "/root", "/opt", "/etc") })
	h.Must("sh", "-c", "mkdir -p /etc/cni/net.d && rm -f /etc/cni/net.d/*")
	do := func(section string) {
		t.Helper()
		s := p.Section(section)
		for _, f := range s.Files {
			h.Must("sh", "-c", `mkdir -p "$(dirname "$0")" && printf %s "$1" >"$0"`, f.Path, f.Content)
		}
		for _, c := range s.Commands {
			c = strings.ReplaceAll(c, "ctr -n k8s.io run ", "ctr -n k8s.io run --cgroup '' ") // of which it would leave a parent
			began := time.Now()
			h.Must("env", "PATH="+bin+":/usr/sbin:/usr/bin:/sbin:/bin", "HUSK_CNI="+h.Binary("husk-cni"), "LOGS="+h.Dir, "sh", "-exc", c)
			t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), c)
		}
	}

	// Without huskd.
	do("Install")
	do("Addresses by hand")
	client := h.containerdWith("/usr/lib/cni", "/etc/cni/net.d")
	do("Try it")
	sandbox := h.runWeb(client, h.Instance().Cgroup())
	h.answers()
	address := h.addressOf(client, sandbox)
	if !strings.HasPrefix(address, "10.244.1.") {
		t.Errorf("the pod has the address %s", address)
	}
	h.removeWeb(client, sandbox)
	if tables := h.Must("nft", "list", "tables"); !strings.Contains(tables, "husk") {
		t.Errorf("after the last DEL there are the tables\n%s", tables)
	}
	do("Remove")
	if left := h.Must("sh", "-c", "nft list tables; ls /etc/cni/net.d; ls -d /opt/cni/bin/husk-cni /var/lib/husk/cni 2>/dev/null; ip route show proto 104"); strings.TrimSpace(left) != "" {
		t.Errorf("after the removal there are\n%s", left)
	}

	// From a bridge to huskd's network.
	do("Install")
	h.Must("ip", "link", "add", "cni0", "type", "bridge")
	h.Must("touch", "/etc/cni/net.d/10-flannel.conflist")
	do("From flannel, bridge or another network")
	do("Addresses by huskd")
	node.Eventually(t, time.Minute, func() string {
		if files := h.Must("ls", "/etc/cni/net.d"); files != "10-husk.conflist\n" {
			return fmt.Sprintf("/etc/cni/net.d has %q", files)
		}
		s, err := client.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			return err.Error()
		}
		for _, c := range s.Status.Conditions {
			if !c.Status {
				return fmt.Sprintf("%s: %s", c.Type, c.Message)
			}
		}
		return ""
	})
	sandbox = h.runWeb(client, h.Instance().Cgroup())
	h.answers()
	if got := h.MustHusk("net", "attachments"); !strings.Contains(got, "web") {
		t.Errorf("husk net attachments:\n%s", got)
	}
	h.removeWeb(client, sandbox)
	h.MustHusk("shutdown")
	node.Eventually(t, time.Minute, func() string {
		if h.Serves() {
			return "huskd serves"
		}
		return ""
	})
	h.containerdStop()
	h.removeCgroups()
}

// addressOf returns the address that the runtime knows of a pod.
func (h *host) addressOf(client runtimeapi.RuntimeServiceClient, sandbox string) string {
	h.t.Helper()
	s, err := client.PodSandboxStatus(h.t.Context(), &runtimeapi.PodSandboxStatusRequest{PodSandboxId: sandbox})
	must(h.t, err)
	return s.Status.Network.GetIp()
}
