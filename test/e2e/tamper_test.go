package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestRemovedByHand removes objects of a running pod from the kernel and the disk. huskd puts them
// back if the kernel announces it. Otherwise husk doctor says what is missing, and the next huskd
// repairs what can be repaired. Other pods keep working, the pod can be removed, and nothing is
// left of it.
func TestRemovedByHand(t *testing.T) {
	t.Parallel()
	answers := buildAnswer(t)
	for _, conf := range []netConfig{netConfigs[0], netConfigs[3]} {
		t.Run(conf.name, func(t *testing.T) {
			t.Parallel()
			w := newNetNode(t, conf, answers, nil)
			other := w.run("other", "")
			answer := func(name string, p podNetwork) {
				t.Helper()
				for _, s := range conf.families {
					w.reaches("node", w.Net(), "tcp"+s.suffix, s.of(p.IPs), 80, name+" "+nodeSource(t, w, s, p))
				}
			}
			for _, c := range []struct {
				what, script string
				finding      string // of doctor; empty if huskd puts it back at once
				repaired     bool
			}{
				{"pin", "umount NETNS", "network namespace NETNS: missing", true},
				{"pin and file", "umount NETNS; rm NETNS", "network namespace NETNS: missing", true},
				{"link", "ip link delete LINK", "", true},
				{"inner link", "nsenter --net=NETNS ip link delete eth0", "", true},
				{"link down", "ip link set LINK down", "", true},
				{"link renamed", "ip link set LINK down; ip link set LINK name foreign0; ip link set foreign0 up", "link LINK: missing", false},
				{"link moved", "ip link set LINK netns $(basename NETNS)", "link LINK: missing", false},
				{"table", "nft flush ruleset", "", true},
				{"files", "rm -rf /run/husk/sandboxes/ID/* 2>/dev/null || true", "", true},
			} {
				p := w.run("victim", ports8080)
				filled := strings.NewReplacer("NETNS", p.NetworkSettings.SandboxKey, "LINK", p.Sandbox.HostLink, "ID", p.NetworkSettings.SandboxID)
				w.Must("sh", "-ec", filled.Replace(c.script))
				want := "the network of pod default/victim was changed: "
				if c.finding != "" {
					if found := fmt.Sprint(w.doctor("network")); !strings.Contains(found, want) || !strings.Contains(found, filled.Replace(c.finding)) {
						t.Errorf("%s: doctor says %v", c.what, found)
					}
				} else {
					node.Eventually(t, 10*time.Second, func() string {
						if found := fmt.Sprint(w.doctor("network")); strings.Contains(found, want) {
							return c.what + ": doctor says " + found
						}
						return ""
					})
					answer("victim", p)
				}
				answer("other", other)
				if c.repaired {
					w.huskd.Stop()
					w.huskd = w.Huskd(w.flags)
					w.MustHusk("run", "--wait", w.manifest("victim", 80, ports8080, ""))
					answer("victim", w.inspect("victim"))
					if found := fmt.Sprint(w.doctor("network")); strings.Contains(found, want) {
						t.Errorf("%s: after the repair, doctor says %v", c.what, found)
					}
				}
				w.MustHusk("rm", "-f", "victim")
				answer("other", other)
			}
			w.end("other")
		})
	}
}
