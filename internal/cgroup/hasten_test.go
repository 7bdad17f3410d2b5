package cgroup

import (
	"os"
	"testing"
	"time"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
)

func TestOwn(t *testing.T) {
	t.Parallel()
	const table = "12:pids:/one\n4:cpu,cpuacct:/a:b/c\n3:freezer:/../other\n2:memory:/gone (deleted)\n1:name=systemd:/s\n0::/u\nnonsense\n"
	for controller, want := range map[string]string{
		"pids": "/one", "cpuacct": "/a:b/c", "": "/u", "freezer": "", "memory": "/gone (deleted)", "blkio": "", "cp": "",
	} {
		if got, ok := own(table, controller); got != want || ok != (want != "") {
			t.Errorf("%q is in %q, %v: want %q", controller, got, ok, want)
		}
	}
}

// TestHasten: the hastener leaves this process where it is. It stops when nobody
// waits any more, or when it was too long, and can be used again; also where
// there is nothing to do.
func TestHasten(t *testing.T) {
	hosttest.Root(t)
	before := table(t)
	for _, c := range []host.Cgroup{host.Probe("/").Cgroup, {}} {
		h := NewHastener(c)
		for range 3 {
			h.Begin()
			h.Begin()()
			runs := func() bool { h.mu.Lock(); defer h.mu.Unlock(); return h.busy }
			for end := time.Now().Add(10 * time.Second); runs(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("it doesn't end")
				}
			}
		}
	}
	if after := table(t); after != before {
		t.Errorf("this process is in %s, and was in %s", after, before)
	}
}

func table(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}
