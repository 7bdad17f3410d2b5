package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/userns"
)

func owns(t testing.TB, path string) int {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return int(info.Sys().(*syscall.Stat_t).Uid)
}

func TestOwner(t *testing.T) {
	hosttest.Root(t)
	const first = 1 << 20
	ns, err := userns.Open(userns.Whole(first, 1<<16))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	path := fmt.Sprintf("/proc/self/fd/%d", ns.Fd())
	lower := layers(t, 3)
	theirs := filepath.Join(lower[1], "theirs")
	write(t, theirs, "x")
	if err := os.Chown(theirs, 33, 33); err != nil {
		t.Fatal(err)
	}
	for name, readOnly := range map[string]bool{"writable": false, "read-only": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			root := mustMount(t, Spec{Dir: dir, Lower: lower, ReadOnly: readOnly, Owner: &Owner{Namespace: path, UID: first, GID: first}})
			for file, want := range map[string]int{"top": first, "file1": first, "theirs": first + 33} {
				if got := owns(t, filepath.Join(root, file)); got != want {
					t.Errorf("%s is owned by %d, want %d", file, got, want)
				}
			}
			if _, err := os.Lstat(filepath.Join(dir, mappedDir)); !os.IsNotExist(err) {
				t.Errorf("the ID-mapped mount of the layers is left: %v", err)
			}
			if readOnly {
				return
			}
			if got := owns(t, root); got != first {
				t.Errorf("/ is owned by %d", got)
			}
			// A file that is copied up keeps its owner, on disk too.
			write(t, filepath.Join(root, "theirs"), "changed")
			for _, path := range []string{filepath.Join(root, "theirs"), filepath.Join(dir, upperDir, "theirs")} {
				if got := owns(t, path); got != first+33 {
					t.Errorf("after a change %s is owned by %d", path, got)
				}
			}
			if got := owns(t, theirs); got != 33 || read(t, theirs) != "x" {
				t.Errorf("the image's file has changed: owner %d", got)
			}
		})
	}
	t.Run("after a crash", func(t *testing.T) {
		dir := t.TempDir()
		spec := Spec{Dir: dir, Lower: lower, Owner: &Owner{Namespace: path, UID: first, GID: first}}
		if _, err := spec.mapLower(); err != nil {
			t.Fatal(err)
		}
		root := mustMount(t, spec)
		if got := owns(t, filepath.Join(root, "top")); got != first {
			t.Errorf("owned by %d", got)
		}
	})
	t.Run("no such namespace", func(t *testing.T) {
		dir := t.TempDir()
		if _, err := Mount(Spec{Dir: dir, Lower: lower, Owner: &Owner{Namespace: "/no/such"}}); err == nil || !strings.Contains(err.Error(), "/no/such") {
			t.Error(err)
		}
		if err := Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	t.Run("owners that can't be mapped", func(t *testing.T) {
		tree, err := unix.OpenTree(unix.AT_FDCWD, "/proc", unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(tree)
		if err := userns.Map(tree, ns); err == nil || !strings.Contains(err.Error(), "can't be mapped") {
			t.Error(err)
		}
	})
}
