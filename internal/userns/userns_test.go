package userns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func owner(t testing.TB, path string) uint32 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Sys().(*syscall.Stat_t).Uid
}

// open returns the path of a user namespace with the mapping.
func open(t testing.TB, m Mapping) string {
	t.Helper()
	ns, err := Open(m)
	must(t, err)
	t.Cleanup(func() { _ = ns.Close() })
	return fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
}

const first = 1 << 20

func TestHold(t *testing.T) {
	hosttest.Root(t)
	process := 0
	must(t, Hold(Whole(first, 1<<16), syscall.CLONE_NEWNET, func(pid int) error {
		process = pid
		dir := fmt.Sprintf("/proc/%d/", pid)
		for file, want := range map[string]string{"uid_map": "0 1048576 65536", "gid_map": "0 1048576 65536", "setgroups": "allow"} {
			got, err := os.ReadFile(dir + file)
			if text := strings.Join(strings.Fields(string(got)), " "); err != nil || text != want {
				t.Errorf("%s is %q, %v; want %q", file, text, err, want)
			}
		}
		if theirs, err := os.Readlink(dir + "ns/net"); err != nil || theirs == must2(os.Readlink("/proc/self/ns/net")) {
			t.Errorf("network namespace of the process is %s, %v; want a new one", theirs, err)
		}
		return nil
	}))
	if err := unix.Kill(process, 0); err != unix.ESRCH {
		t.Errorf("the process still exists: %v", err)
	}
	failed := fmt.Errorf("failed")
	if err := Hold(Whole(first, 1), 0, func(int) error { return failed }); err != failed {
		t.Errorf("Hold returned %v, want the error of fn", err)
	}
	if err := Hold(Whole(1<<32-2, 5), 0, func(int) error { return nil }); err == nil || !strings.Contains(err.Error(), "refuses its mappings") {
		t.Errorf("mapping to IDs that don't exist: %v", err)
	}
}

func must2(s string, _ error) string { return s }

func TestRoot(t *testing.T) {
	if uid, gid := Whole(7, 1).Root(); uid != 7 || gid != 7 {
		t.Errorf("root is %d, %d; want 7, 7", uid, gid)
	}
	if uid, gid := (Mapping{UIDs: []syscall.SysProcIDMap{{ContainerID: 1, HostID: 7, Size: 1}}}).Root(); uid != -1 || gid != -1 {
		t.Errorf("root is %d, %d; want -1, -1", uid, gid)
	}
}

func TestMount(t *testing.T) {
	hosttest.Root(t)
	ns := open(t, Whole(first, 1<<16))
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "target")
	below := filepath.Join(source, "below")
	must(t, os.MkdirAll(below, 0o755))
	must(t, os.Mkdir(target, 0o755))
	must(t, os.WriteFile(filepath.Join(source, "file"), nil, 0o644))
	must(t, os.Chown(filepath.Join(source, "file"), 33, 33))
	// Shared and with a mount below it, as directories of a host usually are.
	must(t, unix.Mount(source, source, "", unix.MS_BIND, ""))
	t.Cleanup(func() { must(t, unix.Unmount(source, unix.MNT_DETACH)) })
	must(t, unix.Mount("", source, "", unix.MS_SHARED, ""))
	must(t, unix.Mount("tmpfs", below, "tmpfs", 0, ""))
	must(t, os.WriteFile(filepath.Join(below, "deep"), nil, 0o644))

	must(t, Mount(source, target, ns))
	if got := owner(t, filepath.Join(target, "file")); got != first+33 {
		t.Errorf("the file is owned by %d, want %d", got, first+33)
	}
	if _, err := os.Stat(filepath.Join(target, "below", "deep")); err != nil {
		t.Errorf("the mount below source is not below target: %v", err)
	}
	// The namespace's root creates files that root owns in source, and has no rights on others'.
	out, err := exec.Command("setpriv", "--reuid", fmt.Sprint(first), "--regid", fmt.Sprint(first), "--clear-groups", "touch", filepath.Join(target, "file")).CombinedOutput()
	if err == nil {
		t.Errorf("could touch another user's file: %s", out)
	}
	must(t, os.Chmod(dir, 0o755))
	must(t, os.Chmod(filepath.Dir(dir), 0o755))
	out, err = exec.Command("setpriv", "--reuid", fmt.Sprint(first), "--regid", fmt.Sprint(first), "--clear-groups", "touch", filepath.Join(target, "new")).CombinedOutput()
	if err != nil || owner(t, filepath.Join(source, "new")) != 0 {
		t.Errorf("create a file as the namespace's root: %v: %s", err, out)
	}
	must(t, unix.Unmount(target, unix.MNT_DETACH))
	if _, err := os.Stat(filepath.Join(below, "deep")); err != nil {
		t.Errorf("the mount below source was unmounted with target: %v", err)
	}

	file := filepath.Join(dir, "file")
	must(t, os.WriteFile(file, nil, 0o644))
	must(t, Mount(filepath.Join(source, "file"), file, ns))
	if got := owner(t, file); got != first+33 {
		t.Errorf("the mounted file is owned by %d, want %d", got, first+33)
	}
	must(t, unix.Unmount(file, unix.MNT_DETACH))

	for words, err := range map[string]error{
		"no such":         Mount(filepath.Join(dir, "nothing"), target, ns),
		"can't be mapped": Mount("/proc/self", target, ns),
		"/no/such":        Mount(source, target, "/no/such"),
	} {
		if err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("error is %v, want one with %q", err, words)
		}
	}
}

// pass tries, as the user and group id, to pass through a directory and to list it.
func pass(t *testing.T, id int, dir string) (passes, lists bool) {
	t.Helper()
	as := func(args ...string) bool {
		args = append([]string{"--reuid", fmt.Sprint(id), "--regid", fmt.Sprint(id), "--clear-groups"}, args...)
		return exec.Command("setpriv", args...).Run() == nil
	}
	return as("test", "-e", filepath.Join(dir, "file")), as("ls", dir)
}

func TestMakeDir(t *testing.T) {
	hosttest.Root(t)
	parent := t.TempDir()
	must(t, os.Chmod(parent, 0o711))
	must(t, os.Chmod(filepath.Dir(parent), 0o711))
	loose := filepath.Join(parent, "loose")
	must(t, os.Mkdir(loose, 0o755))
	must(t, os.Chmod(loose, 0o777))
	closed, grouped, deep := filepath.Join(parent, "closed"), filepath.Join(parent, "grouped"), filepath.Join(parent, "a", "b")
	for dir, group := range map[string]int{closed: 0, loose: 0, grouped: first, deep: first} {
		must(t, MakeDir(dir, group))
		must(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o644))
		must(t, MakeDir(dir, group))
		for id, want := range map[int]bool{first: group == first, first + 1: false} {
			if passes, lists := pass(t, id, dir); passes != want || lists {
				t.Errorf("group %d passes through %s, made for group %d: %v, lists it: %v", id, dir, group, passes, lists)
			}
		}
	}
	must(t, os.Symlink(closed, filepath.Join(parent, "link")))
	for _, path := range []string{filepath.Join(closed, "file"), filepath.Join(parent, "link")} {
		if err := MakeDir(path, first); err == nil {
			t.Errorf("MakeDir accepts %s", path)
		}
	}
}
