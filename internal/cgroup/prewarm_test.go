package cgroup

import (
	"os"
	"testing"
	"time"

	"github.com/huskd/husk/internal/host"
	"github.com/huskd/husk/internal/hosttest"
)

func TestOwnCgroup(t *testing.T) {
	t.Parallel()
	const table = "12:pids:/one\n4:cpu,cpuacct:/a:b/c\n3:freezer:/../other\n2:memory:/gone (deleted)\n1:name=systemd:/s\n0::/u\nnonsense\n"
	for controller, want := range map[string]string{
		"pids": "/one", "cpuacct": "/a:b/c", "": "/u", "freezer": "", "memory": "/gone (deleted)", "blkio": "", "cp": "",
	} {
		if got, ok := ownCgroup(table, controller); got != want || ok != (want != "") {
			t.Errorf("cgroup of controller %q is %q, %v; want %q", controller, got, ok, want)
		}
	}
}

// TestPrewarmer checks that this process stays in its cgroup, that the loop ends after the last
// stop or after warmLimit, and that it can be started again; also on a host without cgroups.
func TestPrewarmer(t *testing.T) {
	hosttest.Root(t)
	before := table(t)
	for _, c := range []host.Cgroup{host.Probe("/").Cgroup, {}} {
		p := NewPrewarmer(c)
		for range 3 {
			p.Start()
			p.Start()()
			running := func() bool { p.mu.Lock(); defer p.mu.Unlock(); return p.running }
			for end := time.Now().Add(10 * time.Second); running(); time.Sleep(time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("the loop still runs after 10 s")
				}
			}
		}
	}
	if after := table(t); after != before {
		t.Errorf("this process was moved from %s to %s", before, after)
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
