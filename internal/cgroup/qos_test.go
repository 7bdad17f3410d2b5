package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
)

// TestQoSTree checks that a class has the weight of its pods and is removed with the last one.
func TestQoSTree(t *testing.T) {
	hosttest.Root(t)
	h := host.Probe("/").Cgroup
	tree := newTree(t, h)
	weightOf := func(cgroup string) string {
		file := filepath.Join(h.Mounts["cpu"], cgroup, "cpu.shares")
		if h.Mode.Unified() {
			file = filepath.Join(h.Mounts[""], cgroup, "cpu.weight")
		}
		raw, _ := os.ReadFile(file)
		return strings.TrimSpace(string(raw))
	}
	want := func(cgroup string, shares uint64) {
		t.Helper()
		got := weightOf(tree.Root() + cgroup)
		wanted := fmt.Sprint(shares)
		switch {
		case shares == 0:
			wanted = ""
		case h.Mode.Unified():
			wanted = fmt.Sprint(weight(shares))
		}
		if got != wanted {
			t.Errorf("weight of %s is %q, want %q", cgroup, got, wanted)
		}
	}
	c := NewQoSTree(tree)
	create := func(cgroup string, shares uint64) {
		t.Helper()
		if err := c.Create(tree.Root()+cgroup, Limits{CPUShares: shares}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(c *QoSTree, cgroup string) {
		t.Helper()
		if err := c.Remove(t.Context(), tree.Root()+cgroup); err != nil {
			t.Fatal(err)
		}
	}
	create("/pod-guaranteed", 2048)
	create("/burstable/pod-a", 512)
	create("/burstable/pod-b", 1024)
	create("/besteffort/pod-c", 2)
	create("/besteffort/pod-d", 2)
	want("/pod-guaranteed", 2048)
	want("/burstable", 1536)
	want("/burstable/pod-a", 512)
	want("/besteffort", 2)
	create("/burstable/pod-a", 256) // resized
	want("/burstable", 1280)
	create("/burstable/pod-a", 0) // a change of other limits only
	want("/burstable", 1280)
	remove(c, "/burstable/pod-b")
	want("/burstable", 256)
	remove(c, "/besteffort/pod-c")
	want("/besteffort", 2)
	remove(c, "/besteffort/pod-d")
	want("/besteffort", 0)

	// After a restart the pods are adopted.
	c = NewQoSTree(tree)
	c.Adopt(tree.Root()+"/burstable/pod-a", 256)
	c.Adopt(tree.Root()+"/pod-guaranteed", 2048)
	create("/burstable/pod-e", 1024)
	want("/burstable", 1280)
	// Without adopted pods, only empty classes are removed.
	if err := tree.Create(tree.Root()+"/besteffort", Limits{}); err != nil {
		t.Fatal(err)
	}
	c = NewQoSTree(tree)
	c.RemoveEmpty("burstable", "besteffort", "none")
	want("/burstable/pod-e", 1024)
	want("/besteffort", 0)
	remove(c, "/burstable/pod-e")
	want("/burstable/pod-a", 256)
	remove(c, "/burstable/pod-a")
	want("/burstable", 0)
	remove(c, "/pod-guaranteed")
	if left, err := tree.List(); err != nil || len(left) > 0 {
		t.Errorf("cgroups left: %v, %v", left, err)
	}
	if err := c.Create("/elsewhere/pod", Limits{}); err == nil {
		t.Error("created a cgroup outside of the tree")
	}
}
