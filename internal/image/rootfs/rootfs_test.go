package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/hosttest"
	"golang.org/x/sys/unix"
)

// layers creates n layer directories. Each has a file of its own and a file "top" with
// the layer's number.
func layers(t testing.TB, n int) []string {
	t.Helper()
	base := t.TempDir()
	var lower []string
	for i := range n {
		dir := filepath.Join(base, fmt.Sprint(n-i), "fs")
		write(t, filepath.Join(dir, fmt.Sprint("file", n-i)), "x")
		write(t, filepath.Join(dir, "top"), fmt.Sprint(n-i))
		lower = append(lower, dir)
	}
	return lower
}

func write(t testing.TB, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func mustMount(t testing.TB, spec Spec) string {
	t.Helper()
	path, err := Mount(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Unmount(spec.Dir); err != nil {
			t.Error(err)
		}
	})
	return path
}

func mustUnmount(t testing.TB, dir string) {
	t.Helper()
	if err := Unmount(dir); err != nil {
		t.Fatal(err)
	}
}

// mountsBelow returns the number of mounts below dir.
func mountsBelow(t testing.TB, dir string) int {
	t.Helper()
	return strings.Count(read(t, "/proc/self/mountinfo"), strings.NewReplacer(" ", `\040`).Replace(dir)+"/"+mountPoint+" ")
}

// TestUnmountStray checks that files in the mount point, beside the root filesystem, don't keep it
// from being removed, and that files of another mount are never deleted.
func TestUnmountStray(t *testing.T) {
	hosttest.Root(t)
	dir := t.TempDir()
	root := mustMount(t, Spec{Dir: dir, Lower: layers(t, 1)})
	tree, err := unix.OpenTree(unix.AT_FDCWD, dir, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(tree)
	below := fmt.Sprintf("/proc/self/fd/%d/%s", tree, mountPoint) // as a shim sees it that doesn't see the mount
	write(t, filepath.Join(below, "proc/deep/file"), "x")
	mustUnmount(t, dir)
	if _, err := os.Lstat(root); !os.IsNotExist(err) {
		t.Errorf("%s is left: %v", root, err)
	}

	host := t.TempDir()
	write(t, filepath.Join(host, "kept"), "x")
	inside := filepath.Join(root, "inside")
	write(t, filepath.Join(inside, "stray"), "x")
	if err := unix.Mount(host, inside, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	if err := Unmount(dir); err == nil {
		t.Error("a mount point with another mount in it was removed")
	}
	if got := read(t, filepath.Join(host, "kept")); got != "x" {
		t.Errorf("the other mount's file is %q", got)
	}
	if err := unix.Unmount(inside, 0); err != nil {
		t.Fatal(err)
	}
	mustUnmount(t, dir)
}

func TestMountLayersAndWrite(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, n := range []int{1, 2, 5} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "container")
			lower := layers(t, n)
			path := mustMount(t, Spec{Dir: dir, Lower: lower})
			if got := read(t, path+"/top"); got != fmt.Sprint(n) {
				t.Errorf("top layer is %s, want %d", got, n)
			}
			for i := range n {
				read(t, fmt.Sprintf("%s/file%d", path, i+1))
			}
			write(t, path+"/new", "mine")
			write(t, path+"/top", "changed")
			if got := read(t, lower[0]+"/top"); got != fmt.Sprint(n) {
				t.Errorf("a write reached the image's layer: %s", got)
			}
			info, err := os.Stat(path)
			if err != nil || info.Mode().Perm() != 0o755 {
				t.Errorf("mode of /: %v %v, want 0755", info.Mode(), err)
			}
			mustUnmount(t, dir)
			if left, _ := os.ReadDir(dir); len(left) != 0 {
				t.Errorf("left in %s: %v", dir, left)
			}
			if mountsBelow(t, dir) != 0 {
				t.Error("still mounted")
			}
			mustUnmount(t, dir) // a second Unmount does nothing
		})
	}
}

func TestReadOnly(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, n := range []int{1, 3} {
		dir := t.TempDir()
		path := mustMount(t, Spec{Dir: dir, Lower: layers(t, n), ReadOnly: true})
		if got := read(t, path+"/top"); got != fmt.Sprint(n) {
			t.Errorf("top layer is %s, want %d", got, n)
		}
		if err := os.WriteFile(path+"/new", nil, 0o644); err == nil {
			t.Error("writing to a read-only root filesystem succeeded")
		}
		if _, err := os.Stat(filepath.Join(dir, upperDir)); err == nil {
			t.Error("a read-only root filesystem has a writable layer")
		}
	}
}

func TestManyLayers(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	dir := t.TempDir()
	lower := layers(t, 150)
	if size := len(strings.Join(lower, ":")); size < os.Getpagesize() {
		t.Fatalf("%d bytes of options fit into a page: the test proves nothing", size)
	}
	path := mustMount(t, Spec{Dir: dir, Lower: lower})
	read(t, path+"/file1")
	if got := read(t, path+"/top"); got != "150" {
		t.Errorf("top layer is %s, want 150", got)
	}
	tooMany := layers(t, 480)
	if _, err := Mount(Spec{Dir: t.TempDir(), Lower: tooMany}); err == nil || !strings.Contains(err.Error(), "480 layers") {
		t.Errorf("480 layers: %v, want an error with the number", err)
	}
	fds, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range fds {
		if target, _ := os.Readlink(fd); slices.Contains(lower, target) || slices.Contains(tooMany, target) {
			t.Errorf("%s is still open", target)
		}
	}
}

func TestMountAdoptsExistingMount(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	spec := Spec{Dir: t.TempDir(), Lower: layers(t, 2)}
	path := mustMount(t, spec)
	write(t, path+"/mine", "kept")
	mustMount(t, spec)
	if got := read(t, path+"/mine"); got != "kept" {
		t.Errorf("after the second Mount: %q", got)
	}
	if n := mountsBelow(t, spec.Dir); n != 1 {
		t.Errorf("mounted %d times", n)
	}
}

// TestAfterReboot mounts over the remains of a reboot: a writable layer without its
// mount. The kernel refuses to mount a volatile layer again.
func TestAfterReboot(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	spec := Spec{Dir: t.TempDir(), Lower: layers(t, 2)}
	path := mustMount(t, spec)
	write(t, path+"/mine", "lost")
	if err := unix.Unmount(path, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(spec.Dir, workDir, "work/incompat/volatile")); err != nil {
		t.Fatalf("the kernel left no marker of a volatile mount: %v", err)
	}
	mustMount(t, spec)
	if _, err := os.Stat(path + "/mine"); err == nil {
		t.Error("the writable layer of an earlier boot was reused")
	}
}

func TestAfterInterruptedMount(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	lower := layers(t, 1)
	for _, left := range [][]string{{}, {mountPoint}, {mountPoint, upperDir}, {upperDir, workDir}, {workDir}, {emptyDir, mountPoint}} {
		dir := t.TempDir()
		for _, name := range left {
			write(t, filepath.Join(dir, name, "stray"), "x")
			if name == mountPoint {
				_ = os.Remove(filepath.Join(dir, name, "stray"))
			}
		}
		path := mustMount(t, Spec{Dir: dir, Lower: lower})
		if _, err := os.Stat(path + "/stray"); err == nil {
			t.Errorf("with %v left: a stray file is in the root filesystem", left)
		}
		mustUnmount(t, dir)
		for _, name := range left {
			if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		mustUnmount(t, dir)
		if rest, _ := os.ReadDir(dir); len(rest) != 0 {
			t.Errorf("with %v left: Unmount leaves %v", left, rest)
		}
	}
}

func TestUnmountInUse(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	spec := Spec{Dir: t.TempDir(), Lower: layers(t, 1)}
	path := mustMount(t, spec)
	f, err := os.Open(path + "/top")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := unix.Mount("tmpfs", path, "tmpfs", 0, "size=64k"); err != nil { // a mount on top of it
		t.Fatal(err)
	}
	mustUnmount(t, spec.Dir)
	if n := mountsBelow(t, spec.Dir); n != 0 {
		t.Errorf("%d mounts left", n)
	}
}

func TestAwkwardPaths(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	for _, name := range []string{"with space", "comma,comma", "colon:colon", `back\slash`, "ünï"} {
		base := filepath.Join(t.TempDir(), name)
		for _, lower := range [][]string{{"one"}, {"one", "two"}} {
			var dirs []string
			for _, l := range lower {
				dirs = append(dirs, filepath.Join(base, l))
				write(t, filepath.Join(base, l, l), l)
			}
			path := mustMount(t, Spec{Dir: filepath.Join(base, fmt.Sprint("c", len(lower))), Lower: dirs})
			for _, l := range lower {
				if got := read(t, filepath.Join(path, l)); got != l {
					t.Errorf("%s: %s reads %q", name, l, got)
				}
			}
		}
	}
}

func TestErrorsAreOneClearLine(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	lower := layers(t, 1)
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "x")
	onOverlay := mustMount(t, Spec{Dir: t.TempDir(), Lower: lower})
	for _, test := range []struct {
		name string
		spec Spec
		want string
	}{
		{"layer is gone", Spec{Dir: t.TempDir(), Lower: []string{lower[0], "/nonexistent/layer"}}, "/nonexistent/layer: no such file or directory: remove the image"},
		{"layer is a file", Spec{Dir: t.TempDir(), Lower: []string{file}}, "invalid argument"},
		{"no layers", Spec{Dir: t.TempDir()}, "0 layers"},
		{"dir is a file", Spec{Dir: file, Lower: lower}, "not a directory"},
		{"on overlay", Spec{Dir: onOverlay + "/c", Lower: lower}, "put the state on a disk"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Mount(test.spec)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("got %v, want one line with %q", err, test.want)
			}
			t.Log(err)
			for _, name := range []string{upperDir, workDir, emptyDir} {
				if _, err := os.Stat(filepath.Join(test.spec.Dir, name)); err == nil {
					t.Errorf("left %s", name)
				}
			}
		})
	}
}

func BenchmarkMountUnmount(b *testing.B) {
	hosttest.Root(b)
	for _, n := range []int{1, 3, 20} {
		b.Run(fmt.Sprintf("layers=%d", n), func(b *testing.B) {
			dir, lower := b.TempDir(), layers(b, n)
			for b.Loop() {
				if _, err := Mount(Spec{Dir: dir, Lower: lower}); err != nil {
					b.Fatal(err)
				}
				if err := Unmount(dir); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
