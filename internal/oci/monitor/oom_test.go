package monitor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/oci"
)

// TestAttributeOOM uses plain directories in place of v2 cgroups, because systemd doesn't remove
// its scopes at a predictable time.
func TestAttributeOOM(t *testing.T) {
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
	create := func(id string) {
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
	remove := func(id string) {
		t.Helper()
		if err := os.RemoveAll(filepath.Join(mount, "pods.slice", scope(id))); err != nil {
			t.Fatal(err)
		}
	}
	check := func(id string, known, want bool) {
		t.Helper()
		c, err := d.find(id)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.attributeOOM(known); got != want {
			t.Errorf("OOM killed of %s is %v, want %v", id, got, want)
		}
		if _, err := os.Stat(c.path(oomFile)); (err == nil) != want && !known {
			t.Errorf("the OOM file of %s: %v, want it to exist: %v", id, err, want)
		}
	}
	count("", 2) // of earlier containers
	create("quiet")
	create("eater")
	create("forker")
	check("quiet", false, false)
	// The kernel counts in the slice first. The scope may still exist.
	count("", 3)
	count(scope("eater"), 1)
	check("quiet", false, false)
	check("eater", false, true)
	remove("eater")
	d = driver() // a restarted huskd
	check("quiet", false, false)
	// A container that still runs keeps its own count.
	count("", 5)
	count(scope("forker"), 2)
	check("quiet", false, false)
	remove("forker")
	check("forker", true, true)
	create("late")
	for _, id := range []string{"quiet", "late"} {
		remove(id)
		check(id, false, false)
	}
	// Units that aren't Husk's may be killed and removed at any time.
	count("other.service", 0)
	create("between")
	count("", 9)
	remove("between")
	check("between", false, false)
}
