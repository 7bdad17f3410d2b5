package netns

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

// ownRun runs the test again in a new mount namespace with its own /run, because it is about Dir
// itself, and reports whether this is that run.
func ownRun(t *testing.T) bool {
	t.Helper()
	hosttest.Root(t)
	if os.Getenv("NETNS_IN_MNT") == t.Name() {
		// The host's mounts there would be covered, and still in mountinfo.
		for _, point := range slices.Backward(mountsIn(t, Dir)) {
			must(t, unix.Unmount(point, unix.MNT_DETACH))
		}
		must(t, unix.Mount("tmpfs", "/run", "tmpfs", 0, ""))
		return true
	}
	cmd := exec.Command("unshare", "--mount", "--propagation", "private", os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "NETNS_IN_MNT="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return false
}

// ip runs `ip netns`.
func ip(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("ip", append([]string{"netns"}, args...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("ip netns %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// mountsIn returns the mount points in dir, also covered ones.
func mountsIn(t *testing.T, dir string) (points []string) {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(data)) {
		if point := strings.Fields(line)[4]; point == dir || strings.HasPrefix(point, dir+"/") {
			points = append(points, point)
		}
	}
	return points
}

// pinAsOthers pins a namespace as containerd does: in a directory that is no mount of its own.
func pinAsOthers(t *testing.T, path string) {
	t.Helper()
	must(t, os.MkdirAll(Dir, 0o755))
	must(t, touch(path))
	must(t, unix.Mount("/proc/self/ns/net", path, "", unix.MS_BIND, ""))
}

func unpinAsOthers(t *testing.T, path string) {
	t.Helper()
	must(t, unix.Unmount(path, unix.MNT_DETACH))
	must(t, os.Remove(path))
}

// TestIPNetns checks that `ip netns` lists our namespaces, and that we leave its namespaces alone.
func TestIPNetns(t *testing.T) {
	if !ownRun(t) {
		return
	}
	ours := Pins{Net: Dir + "/husk-0000-abc"}
	must(t, Create(ours))
	ip(t, "add", "theirs")
	if got := ip(t); !strings.Contains(got, "husk-0000-abc") || !strings.Contains(got, "theirs") {
		t.Errorf("ip netns: %q", got)
	}
	must(t, Remove(ours.Net))
	must(t, ReleaseDir())
	if got := ip(t); strings.TrimSpace(got) != "theirs" {
		t.Errorf("ip netns after Remove: %q", got)
	}
	ip(t, "del", "theirs")
	must(t, ReleaseDir())
	must(t, ReleaseDir())
	if left := mountsIn(t, Dir); len(left) > 0 {
		t.Errorf("mounts are left: %v", left)
	}
	if _, err := os.Stat(Dir); !os.IsNotExist(err) {
		t.Errorf("%s is still there: %v", Dir, err)
	}
}

// TestParallelCreate checks that pins which are the first, and made at the same time, don't cover
// each other.
func TestParallelCreate(t *testing.T) {
	if !ownRun(t) {
		return
	}
	for range 20 {
		var wg sync.WaitGroup
		for n := range 8 {
			wg.Go(func() { must(t, Create(Pins{Net: fmt.Sprint(Dir, "/husk-", n)})) })
		}
		wg.Wait()
		if points := mountsIn(t, Dir); len(points) != 1+8 {
			t.Fatalf("mounts: %v; want one of %s and one of each pin", points, Dir)
		}
		for n := range 8 {
			wg.Go(func() { must(t, Remove(fmt.Sprint(Dir, "/husk-", n))) })
		}
		wg.Wait()
		must(t, ReleaseDir())
		if left := mountsIn(t, Dir); len(left) > 0 {
			t.Fatalf("mounts are left: %v", left)
		}
	}
}

// TestMigrateFromContainerd checks that a program which pinned a namespace in Dir before it was a
// mount, as containerd does, can still remove it after our first pin, and that we can remove ours
// after another program made Dir a mount.
func TestMigrateFromContainerd(t *testing.T) {
	if !ownRun(t) {
		return
	}
	theirs := Dir + "/cni-theirs"
	pinAsOthers(t, theirs)
	before, after := Pins{Net: Dir + "/husk-before"}, Pins{Net: Dir + "/husk-after"}
	must(t, Create(before))
	unpinAsOthers(t, theirs)
	if !Pinned(before.Net) {
		t.Error("our pin disappeared with theirs")
	}
	ip(t, "add", "tool")
	must(t, Create(after))
	for _, path := range []string{before.Net, after.Net} {
		if !Pinned(path) {
			t.Errorf("%s is not pinned any more", path)
		}
		must(t, Remove(path))
	}
	ip(t, "del", "tool")
	must(t, ReleaseDir())
	if left := mountsIn(t, Dir); len(left) != 1 {
		t.Errorf("mounts are left: %v; want only that of ip netns", left)
	}
	if got, _ := List(Dir, ""); len(got) > 0 {
		t.Errorf("files are left: %v", got)
	}
}

// TestCoveredPins checks that pins can be removed whichever mounts cover them, and that nothing is
// left in any mount namespace.
func TestCoveredPins(t *testing.T) {
	if !ownRun(t) {
		return
	}
	bind := func(flags uintptr) func() error {
		return func() error { return unix.Mount(Dir, Dir, "", unix.MS_BIND|flags, "") }
	}
	for name, cover := range map[string][]func() error{
		"recursive":              {bind(unix.MS_REC)},
		"not recursive":          {bind(0)},
		"twice":                  {bind(unix.MS_REC), bind(unix.MS_REC)},
		"recursive and then not": {bind(unix.MS_REC), bind(0)},
		"shared": {bind(unix.MS_REC), func() error {
			return unix.Mount("", Dir, "", unix.MS_SHARED|unix.MS_REC, "")
		}},
		"parent shared": {func() error { return unix.Mount("", "/run", "", unix.MS_SHARED, "") }, bind(unix.MS_REC)},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := Dir + "/cni-theirs"
			pinAsOthers(t, theirs) // so that Create makes no mount
			path := Dir + "/husk-0000-abc"
			must(t, Create(Pins{Net: path}))
			for _, step := range cover {
				must(t, step())
			}
			other := exec.Command("unshare", "--mount", "--propagation", "private", "sh", "-c", "echo; exec cat")
			hold, err := other.StdinPipe()
			must(t, err)
			ready, err := other.StdoutPipe()
			must(t, err)
			must(t, other.Start())
			_, err = ready.Read(make([]byte, 1))
			must(t, err)
			must(t, Remove(path))
			for _, ns := range []int{os.Getpid(), other.Process.Pid} {
				data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", ns))
				must(t, err)
				if strings.Contains(string(data), path) {
					t.Errorf("a mount is left:\n%s", data)
				}
			}
			must(t, hold.Close())
			must(t, other.Wait())
			if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("the file is left: %v", err)
			}
			must(t, Remove(theirs))
			must(t, unmount(Dir))
			must(t, unix.Mount("", "/run", "", unix.MS_PRIVATE, ""))
		})
	}
}

// TestReleaseOwnDir checks that ReleaseDir only removes a mount that Create made.
func TestReleaseOwnDir(t *testing.T) {
	if !ownRun(t) {
		return
	}
	path := Dir + "/husk-0000-abc"
	use := func() {
		t.Helper()
		must(t, Create(Pins{Net: path}))
		must(t, Remove(path))
		must(t, ReleaseDir())
	}
	want := func(mounts int, why string) {
		t.Helper()
		if got := mountsIn(t, Dir); len(got) != mounts {
			t.Errorf("%s: mounts %v, want %d", why, got, mounts)
		}
	}
	use()
	want(0, "our own mount")
	must(t, os.MkdirAll(Dir, 0o755))
	must(t, unix.Mount("tmpfs", Dir, "tmpfs", 0, ""))
	use()
	want(1, "a file system of the administrator's")
	must(t, unmount(Dir))
	ip(t, "add", "tool")
	ip(t, "del", "tool")
	use()
	want(1, "the mount of ip netns")
	must(t, unmount(Dir))

	// The mark of a mount that is gone doesn't count for another one.
	must(t, Create(Pins{Net: path}))
	must(t, unmount(path))
	must(t, os.Remove(path))
	must(t, unmount(Dir))
	// In between, so that the kernel doesn't use the number again.
	must(t, os.Mkdir("/run/between", 0o755))
	must(t, unix.Mount("tmpfs", "/run/between", "tmpfs", 0, ""))
	must(t, unix.Mount(Dir, Dir, "", unix.MS_BIND, ""))
	use()
	want(1, "a later mount")
}
