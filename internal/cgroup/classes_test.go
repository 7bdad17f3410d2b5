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

// TestClasses: a class weighs what its pods do, and goes with the last of them.
func TestClasses(t *testing.T) {
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
		spelt := fmt.Sprint(shares)
		switch {
		case shares == 0:
			spelt = ""
		case h.Mode.Unified():
			spelt = fmt.Sprint(weight(shares))
		}
		if got != spelt {
			t.Errorf("%s weighs %q, want %q", cgroup, got, spelt)
		}
	}
	c := NewClasses(tree)
	create := func(cgroup string, shares uint64) {
		t.Helper()
		if err := c.Create(tree.Root()+cgroup, Limits{CPUShares: shares}); err != nil {
			t.Fatal(err)
		}
	}
	remove := func(c *Classes, cgroup string) {
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
	create("/burstable/pod-a", 256) // it was resized
	want("/burstable", 1280)
	create("/burstable/pod-a", 0) // and something else of it
	want("/burstable", 1280)
	remove(c, "/burstable/pod-b")
	want("/burstable", 256)
	remove(c, "/besteffort/pod-c")
	want("/besteffort", 2)
	remove(c, "/besteffort/pod-d")
	want("/besteffort", 0)

	// Another process takes over.
	c = NewClasses(tree)
	c.Know(tree.Root()+"/burstable/pod-a", 256)
	c.Know(tree.Root()+"/pod-guaranteed", 2048)
	create("/burstable/pod-e", 1024)
	want("/burstable", 1280)
	// One that knows nothing takes nothing away, but what is empty.
	if err := tree.Create(tree.Root()+"/besteffort", Limits{}); err != nil {
		t.Fatal(err)
	}
	c = NewClasses(tree)
	c.Tidy("burstable", "besteffort", "none")
	want("/burstable/pod-e", 1024)
	want("/besteffort", 0)
	remove(c, "/burstable/pod-e")
	want("/burstable/pod-a", 256)
	remove(c, "/burstable/pod-a")
	want("/burstable", 0)
	remove(c, "/pod-guaranteed")
	if left, err := tree.List(); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	if err := c.Create("/elsewhere/pod", Limits{}); err == nil {
		t.Error("a cgroup that isn't ours was made")
	}
}
