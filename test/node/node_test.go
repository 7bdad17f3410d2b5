package node

import (
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/netns"
)

func TestMain(m *testing.M) { Main(m) }

func TestNodeIsAMachine(t *testing.T) {
	n := New(t)
	if got := n.Must("hostname"); got != "node\n" {
		t.Errorf("hostname %q", got)
	}
	n.Must("ping", "-c1", "-W2", Other4)
	n.Must("ping", "-c1", "-W2", Other6)
	if r := n.RunOther("ping", "-c1", "-W2", Address4); r.Code != 0 {
		t.Errorf("from the other host: %s%s", r.Stdout, r.Stderr)
	}
	boot := n.Must("cat", "/proc/sys/kernel/random/boot_id")
	n.Must("touch", "/run/gone")
	n.Reboot()
	if again := n.Must("cat", "/proc/sys/kernel/random/boot_id"); again == boot {
		t.Error("the boot ID is the same after a reboot")
	}
	if r := n.Run("ls", "/run/gone"); r.Code == 0 {
		t.Error("/run outlived a reboot")
	}
}

// TestInventoryCountsEachKind proves that a leak of each kind would be seen.
func TestInventoryCountsEachKind(t *testing.T) {
	n := New(t)
	n.Must("ip", "link", "add", "stray0", "type", "veth", "peer", "name", "stray1")
	n.Must("mkdir", "-p", netns.Dir, n.State+"/left")
	n.Must("touch", netns.Dir+"/husk-stray")
	n.Must("mount", "-t", "tmpfs", "stray", "/mnt")
	was, now := "0", "1" // a new namespace has what the host has
	if strings.TrimSpace(n.Must("sysctl", "-n", "net.ipv4.ip_forward")) == now {
		was, now = now, was
	}
	n.Must("sysctl", "-qw", "net.ipv4.ip_forward="+now)
	n.Must("nft", "add", "table", "inet", "stray")
	n.Must("ip", "route", "add", "203.0.113.0/24", "via", Other4)
	n.Must("mkdir", "/sys/fs/cgroup/pids"+n.Instance().Cgroup())
	n.Must("sh", "-c", "sleep 100 >/dev/null 2>&1 &")
	left := strings.Join(n.Left(), "\n")
	for _, want := range []string{"link stray0", "network namespace husk-stray", "mount /mnt", "sysctl net/ipv4/ip_forward=" + now, "nft table stray", "route ", "cgroup /sys/fs/cgroup/pids/husk-", "process sleep 100", "file left"} {
		if !strings.Contains(left, want) {
			t.Errorf("not seen: %s", want)
		}
	}
	n.Must("pkill", "-x", "sleep")
	n.Must("ip", "link", "del", "stray0")
	n.Must("umount", "/mnt")
	n.Must("rm", "-r", netns.Dir, n.State)
	n.Must("sysctl", "-qw", "net.ipv4.ip_forward="+was)
	n.Must("nft", "delete", "table", "inet", "stray")
	n.Must("ip", "route", "del", "203.0.113.0/24")
	n.Must("rmdir", "/sys/fs/cgroup/pids"+n.Instance().Cgroup())
	n.NothingLeft()
	if left := n.Left(); slices.Contains(left, "") {
		t.Error(left)
	}
}
