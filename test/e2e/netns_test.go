package e2e

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/pod"
)

// TestOthersInRunNetns runs pods while other programs use /run/netns in either order: they have
// pinned a namespace there without making it a mount, as containerd does, or bind it to itself
// after Husk's pods have been pinned, as the first "ip netns add" does.
func TestOthersInRunNetns(t *testing.T) {
	t.Parallel()
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		t.Fatal(err)
	}
	for name, shared := range map[string]bool{"/run is private": false, "/run is shared, as under systemd": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, d := start(t)
			d.Stop()
			if shared {
				n.Must("mount", "--make-shared", "/run")
			}
			n.Must("sh", "-c", "mkdir -p /run/netns && touch /run/netns/cni-theirs && unshare --net mount --bind /proc/self/ns/net /run/netns/cni-theirs")
			d = startHuskd(t, n)
			n.MustHusk("run", "--wait", filepath.Join(examples, "hostport.yaml"))
			// The first "ip netns add" covers all pins with copies.
			n.Must("ip", "netns", "add", "tool")
			n.MustHusk("exec", "hostport", "--", "true")
			// A huskd that starts now, pods that are made now, and one of before.
			d.Stop()
			d = startHuskd(t, n)
			n.MustHusk("run", "--wait", filepath.Join(examples, "web.yaml"))
			n.MustHusk("exec", "web", "-c", "server", "--", "true")
			n.MustHusk("rm", "-f", "web", "hostport")
			if left := n.Must("ls", "/run/netns"); strings.Join(strings.Fields(left), " ") != "cni-theirs tool" {
				t.Errorf("in /run/netns are %q", left)
			}
			if out := n.MustHusk("net", "debts"); strings.Contains(out, string(pod.InstanceOf(n.Root))) {
				t.Errorf("debts: %s", out)
			}
			n.Must("ip", "netns", "del", "tool")
			n.Must("sh", "-c", "while umount -q /run/netns/cni-theirs || umount -q /run/netns; do :; done; rm /run/netns/cni-theirs")
			n.MustHusk("shutdown")
			if !d.Wait(time.Minute) {
				t.Error("huskd is still running after husk shutdown")
			}
		})
	}
}
