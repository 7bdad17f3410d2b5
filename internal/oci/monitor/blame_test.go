package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
)

// TestBlame counts in directories that stand for cgroups v2, which a real
// systemd removes at a time of its own.
func TestBlame(t *testing.T) {
	mount := t.TempDir()
	driver := func() *Driver {
		return New(Config{StateDir: filepath.Join(mount, "state"), Host: host.Facts{
			BootID: "boot", Cgroup: host.Cgroup{Mode: host.CgroupV2, Mounts: map[string]string{"": mount}},
		}}, Handlers{})
	}
	d := driver()
	count := func(cgroup string, kills int) {
		t.Helper()
		dir := filepath.Join(mount, "pods.slice", cgroup)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "memory.events"), fmt.Appendf(nil, "oom 9\noom_kill %d\n", kills), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	scope := func(id string) string { return "cri-husk-" + id + ".scope" }
	made := func(id string) {
		t.Helper()
		c := d.newContainer(id)
		c.Cgroup, c.Systemd, c.Init = "/pods.slice/"+scope(id), true, oci.Process{PID: 1}
		if err := os.MkdirAll(c.dir, 0o700); err != nil {
			t.Fatal(err)
		}
		count(scope(id), 0)
		if err := c.saveCreated(); err != nil {
			t.Fatal(err)
		}
	}
	gone := func(id string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(mount, "pods.slice", scope(id))); err != nil {
			t.Fatal(err)
		}
	}
	blamed := func(id string, known, want bool) {
		t.Helper()
		c, err := d.find(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.attributeOOM(known); got != want {
			t.Errorf("%s: %v, want %v", id, got, want)
		}
		if _, err := os.Stat(c.path(oomFile)); (err == nil) != want && !known {
			t.Errorf("%s: the mark: %v", id, err)
		}
	}
	count("", 2) // of containers that were there before
	made("quiet")
	made("eater")
	made("forker")
	blamed("quiet", false, false)
	// The kernel counts in the slice first. The scope may be there, or not.
	count("", 3)
	count(scope("eater"), 1)
	blamed("quiet", false, false)
	blamed("eater", false, true)
	gone("eater")
	d = driver() // another huskd
	blamed("quiet", false, false)
	// One that goes on keeps its own count.
	count("", 5)
	count(scope("forker"), 2)
	blamed("quiet", false, false)
	gone("forker")
	blamed("forker", true, true)
	made("late")
	for _, id := range []string{"quiet", "late"} {
		gone(id)
		blamed(id, false, false)
	}
	// Others' units may come to be killed, and go, at any time.
	count("other.service", 0)
	made("between")
	count("", 9)
	gone("between")
	blamed("between", false, false)
}
