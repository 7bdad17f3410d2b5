package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestKubeletConfig starts huskd with the configuration of a kubelet and a drop-in, and looks at
// what they have become: the directory of pods, the limits, the seccomp profile, the resolvers.
func TestKubeletConfig(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"
	for _, dir := range []string{"static", "drop-ins"} {
		if err := os.Mkdir(filepath.Join(n.Dir, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, n, "resolv.conf", "nameserver 192.0.2.53\nsearch kubelet.example\n")
	drop := write(t, n, "drop-ins/10.conf", head+"maxPods: 1\npodPidsLimit: 77\n")
	base := head + "staticPodPath: static\nresolvConf: resolv.conf\nmaxPods: 50\nseccompDefault: false\ncpuManagerPolicy: static\ncgroupDriver: systemd\nshutdownGracePeriod: 0s\n"
	config := write(t, n, "config.yaml", base)
	own := write(t, n, "huskd.toml", fmt.Sprintf("kubelet-config = %q\nkubelet-config-dir = %q\nmax-pods = 3\n", config, filepath.Dir(drop)))
	w := testEnvOn(t, n, node.Flags("--config", own))
	write(t, n, "static/one.yaml", podOf("one", only("command: [sleep, '1000']")))
	w.eventually("one", "ready", isReady)

	var info struct{ KubeletConfig []string }
	if err := json.Unmarshal([]byte(w.MustHusk("info", "-o", "json")), &info); err != nil || len(info.KubeletConfig) != 2 || info.KubeletConfig[1] != drop {
		t.Errorf("info: %+v, %v", info, err)
	}
	for _, want := range []string{"the configuration of the kubelet is used", "overridden=max-pods", "field=cpuManagerPolicy"} {
		if !strings.Contains(w.d.Log(), want) {
			t.Errorf("huskd's log has no %q:\n%s", want, w.d.Log())
		}
	}
	out := w.MustHusk("exec", "one", "--", "sh", "-c", "cat /etc/resolv.conf; grep ^Seccomp: /proc/self/status")
	if !strings.Contains(out, "kubelet.example") || !strings.Contains(out, "Seccomp:\t0\n") {
		t.Errorf("the container has\n%s", out)
	}
	if limit := w.cgroupFile("one", "", "pids.max"); limit != "77" {
		t.Errorf("the pod may have %s processes", limit)
	}
	// huskd's own file says three pods, with that of the test environment.
	w.run(podOf("two", only("command: [sleep, '1000']")), "--wait")
	w.run(podOf("three", only("command: [sleep, '1000']")))
	w.eventually("three", "waiting", func(p listed) bool { return p.Reason == "OutOfpods" })

	// A reload reads the files again, and refuses what a start would refuse.
	for _, step := range []struct{ content, logged string }{
		{strings.Replace(base, "seccompDefault: false", "seccompDefault: true", 1), "keys=seccomp-default"},
		{base + "maxpods: 1\n", "did you mean maxPods?"},
	} {
		write(t, n, "config.yaml", step.content)
		w.d.Signal(syscall.SIGHUP)
		node.Eventually(t, 30*time.Second, func() string {
			if !strings.Contains(w.d.Log(), step.logged) {
				return "huskd's log has no " + step.logged
			}
			return ""
		})
	}
	if err := os.Remove(filepath.Join(n.Dir, "static/one.yaml")); err != nil {
		t.Fatal(err)
	}
	w.MustHusk("rm", "-f", "two", "three")
	w.end()
}
