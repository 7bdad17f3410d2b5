package netns

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/userns"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pins(t testing.TB) Pins {
	dir := t.TempDir()
	p := Pins{Net: dir + "/net", IPC: dir + "/ipc", UTS: dir + "/uts", Hostname: "web"}
	t.Cleanup(func() { must(t, Remove(p.paths()...)) })
	return p
}

func TestCreate(t *testing.T) {
	hosttest.Root(t)
	p := pins(t)
	p.Sysctls = map[string]string{"net.ipv4.ip_unprivileged_port_start": "80", "kernel/shm_rmid_forced": "1"}
	must(t, Create(p))
	for _, path := range []string{p.Net, p.IPC, p.UTS} {
		if !Pinned(path) {
			t.Errorf("nothing is pinned at %s", path)
		}
	}
	must(t, Do(p.Net, func() error {
		if ifs, err := net.Interfaces(); err != nil || len(ifs) == 0 || ifs[0].Name != "lo" || ifs[0].Flags&net.FlagUp == 0 {
			t.Errorf("links in the namespace: %v, %v", ifs, err)
		}
		got, err := os.ReadFile("/proc/thread-self/../../../../proc/sys/net/ipv4/ip_unprivileged_port_start")
		if err != nil || strings.TrimSpace(string(got)) != "80" {
			t.Errorf("ip_unprivileged_port_start is %q, %v", got, err)
		}
		return nil
	}))
	out, err := exec.Command("nsenter", "--uts="+p.UTS, "--ipc="+p.IPC, "sh", "-c", "hostname; cat /proc/sys/kernel/shm_rmid_forced").CombinedOutput()
	if string(out) != "web\n1\n" {
		t.Errorf("in the namespaces: %q, %v", out, err)
	}
	must(t, Remove(p.paths()...))
	for _, path := range p.paths() {
		if _, err := os.Lstat(path); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", path, err)
		}
	}
	must(t, Remove(p.paths()...))
}

// TestGoexit: a callback that ends its goroutine, as t.Fatal does, ends that of the caller.
func TestGoexit(t *testing.T) {
	t.Parallel()
	ended, went := make(chan struct{}), false
	go func() {
		defer close(ended)
		_ = OnThread(func() error {
			runtime.Goexit()
			return nil
		})
		went = true
	}()
	select {
	case <-ended:
	case <-time.After(10 * time.Second):
		t.Fatal("the caller hangs")
	}
	if went {
		t.Error("the caller went on")
	}
}

func TestCreateInAUserNamespace(t *testing.T) {
	hosttest.Root(t)
	p := pins(t)
	p.User, p.Owner = filepath.Join(t.TempDir(), "user"), userns.Whole(1<<20, 1<<16)
	t.Cleanup(func() { must(t, Remove(p.User)) })
	p.Sysctls = map[string]string{
		"net.ipv4.ip_unprivileged_port_start": "80", "net.core.somaxconn": "77",
		"kernel.shm_rmid_forced": "1", "fs.mqueue.msg_max": "33", "kernel.sem": "250 32000 100 99",
	}
	must(t, Create(p))
	owner, err := os.Stat(p.User)
	must(t, err)
	for _, path := range []string{p.Net, p.IPC, p.UTS} {
		f, err := os.Open(path)
		must(t, err)
		fd, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		must(t, err)
		got := os.NewFile(uintptr(fd), path)
		if info, err := got.Stat(); err != nil || !os.SameFile(info, owner) {
			t.Errorf("%s is owned by another user namespace: %v", path, err)
		}
		_ = got.Close()
		_ = f.Close()
	}
	// The root of the user namespace may change the network, and sees the settings.
	out, err := exec.Command("nsenter", "--user="+p.User, "--net="+p.Net, "--uts="+p.UTS, "--ipc="+p.IPC, "--setuid=0", "--setgid=0", "sh", "-c", `
		hostname; cat /proc/self/uid_map; ip addr add 127.0.0.9/8 dev lo; ip link show lo | grep -c UP
		cat /proc/sys/net/ipv4/ip_unprivileged_port_start /proc/sys/net/core/somaxconn /proc/sys/kernel/shm_rmid_forced /proc/sys/fs/mqueue/msg_max
		cat /proc/self/setgroups`).CombinedOutput()
	want := []string{"web", "0", "1048576", "65536", "1", "80", "77", "1", "33", "allow"}
	if got := strings.Fields(string(out)); !slices.Equal(got, want) {
		t.Errorf("in the namespaces: %q, %v", got, err)
	}
	if status, err := os.ReadFile("/proc/self/status"); err != nil || !strings.Contains(string(status), "Uid:\t0\t0\t0\t0") {
		t.Errorf("the process has another user now: %v\n%s", err, status)
	}
	if dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || dumpable != 1 {
		t.Errorf("dumpable: %d, %v", dumpable, err)
	}

	p.Owner.UIDs = append(p.Owner.UIDs, p.Owner.UIDs[0])
	if err := Create(p); err == nil || !strings.Contains(err.Error(), "do they overlap") || Pinned(p.User) || Pinned(p.Net) {
		t.Errorf("mappings that overlap: %v", err)
	}
}

func TestCreateReplacesLeftovers(t *testing.T) {
	hosttest.Root(t)
	p := pins(t)
	must(t, Create(p))
	// A second mount on top, as left by a bind mount of the directory.
	must(t, unix.Mount(p.Net, p.Net, "", unix.MS_BIND, ""))
	inode := func() uint64 {
		var st unix.Stat_t
		must(t, unix.Stat(p.Net, &st))
		return st.Ino
	}
	before := inode()
	must(t, Create(p))
	if inode() == before {
		t.Error("the old namespace is still pinned")
	}
}

func TestCreateLeavesNothingOnError(t *testing.T) {
	hosttest.Root(t)
	for _, bad := range []struct {
		name, want string
		change     func(*Pins)
	}{
		{"sysctl unknown", "sysctl net.no.such", func(p *Pins) { p.Sysctls = map[string]string{"net.no.such": "1"} }},
		{"sysctl value", "sysctl net.ipv4.ip_forward=maybe", func(p *Pins) { p.Sysctls = map[string]string{"net.ipv4.ip_forward": "maybe"} }},
		{"sysctl path", "not a name", func(p *Pins) { p.Sysctls = map[string]string{"../../etc/passwd": "1"} }},
		{"hostname", "set hostname", func(p *Pins) { p.Hostname = strings.Repeat("h", 65) }},
		{"directory", "not a directory", func(p *Pins) { p.UTS = "/proc/self/exe/uts" }},
	} {
		t.Run(bad.name, func(t *testing.T) {
			p := pins(t)
			dir := filepath.Dir(p.Net)
			bad.change(&p)
			err := Create(p)
			if err == nil || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("got %v, want …%s…", err, bad.want)
			}
			if left, _ := List(dir, ""); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

func TestThreadsAreNotReused(t *testing.T) {
	hosttest.Root(t)
	p := Pins{Net: t.TempDir() + "/net"}
	t.Cleanup(func() { must(t, Remove(p.Net)) })
	must(t, Create(p))
	var host unix.Stat_t
	must(t, unix.Stat("/proc/self/ns/net", &host))
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() { must(t, Do(p.Net, func() error { return nil })) })
		wg.Go(func() {
			var here unix.Stat_t
			must(t, unix.Stat("/proc/thread-self/ns/net", &here))
			if here.Ino != host.Ino {
				t.Error("a goroutine runs on a thread in another namespace")
			}
		})
	}
	wg.Wait()
	threads, err := filepath.Glob("/proc/self/task/*/ns/net")
	must(t, err)
	for _, path := range threads {
		var st unix.Stat_t
		if unix.Stat(path, &st) == nil && st.Ino != host.Ino {
			// It may be ending right now; wait until it is gone.
			var again unix.Stat_t
			for unix.Stat(path, &again) == nil && again.Ino != host.Ino {
				unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
			}
		}
	}
}

func TestDoWithoutNamespace(t *testing.T) {
	err := Do("/nowhere/net", func() error { return nil })
	if err == nil || !strings.Contains(err.Error(), "/nowhere/net: no such file") {
		t.Errorf("got %v", err)
	}
}

func TestSysctlPath(t *testing.T) {
	for name, want := range map[string]string{
		"net.ipv4.ip_forward":               "/proc/sys/net/ipv4/ip_forward",
		"net/ipv4/ip_forward":               "/proc/sys/net/ipv4/ip_forward",
		"net.ipv4.conf.eth0/100.forwarding": "/proc/sys/net/ipv4/conf/eth0.100/forwarding",
		"net/ipv4/conf/eth0.100/forwarding": "/proc/sys/net/ipv4/conf/eth0.100/forwarding",
		"":                                  "",
		".":                                 "",
		"..":                                "",
		"/etc/passwd":                       "",
		"net/../../etc":                     "",
	} {
		got, err := sysctlPath(name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", name, got, err, want)
		}
	}
}

func BenchmarkCreateRemove(b *testing.B) {
	hosttest.Root(b)
	dir := b.TempDir()
	for i := 0; b.Loop(); i++ {
		p := Pins{Net: fmt.Sprint(dir, "/net", i), IPC: fmt.Sprint(dir, "/ipc", i), UTS: fmt.Sprint(dir, "/uts", i), Hostname: "web"}
		must(b, Create(p))
		must(b, Remove(p.paths()...))
	}
}

// TestKeep checks that a kept namespace survives the removal of its first pin.
func TestKeep(t *testing.T) {
	hosttest.Root(t)
	dir := t.TempDir()
	first, second := filepath.Join(dir, "first"), filepath.Join(dir, "deep", "second")
	if err := Create(Pins{Net: first}); err != nil {
		t.Fatal(err)
	}
	same, err := os.Stat(first)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := Keep(first, second); err != nil {
			t.Fatal(err)
		}
	}
	if err := Remove(first); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.Stat(second); err != nil || !Pinned(second) || !os.SameFile(same, kept) {
		t.Errorf("the namespace isn't kept: %v", err)
	}
	if err := Keep(first, filepath.Join(dir, "third")); err == nil {
		t.Error("keeping a missing namespace succeeds")
	}
	if _, err := os.Stat(filepath.Join(dir, "third")); err == nil {
		t.Error("a file is left")
	}
	if err := Remove(second); err != nil {
		t.Fatal(err)
	}
}
