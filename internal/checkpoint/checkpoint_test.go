package checkpoint

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image/rootfs"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
}

// mount mounts a container's root file system over lower, the files of an image.
func mount(t *testing.T, lower string) (root, upper string) {
	t.Helper()
	dir := t.TempDir()
	root, err := rootfs.Mount(rootfs.Spec{Dir: dir, Lower: []string{lower}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := rootfs.Unmount(dir); err != nil {
			t.Error(err)
		}
	})
	return root, rootfs.Upper(dir)
}

// TestFilesAreRestored changes files in every possible way, and restores them over the same image.
func TestFilesAreRestored(t *testing.T) {
	hosttest.Root(t)
	lower := t.TempDir()
	for _, name := range []string{"kept", "changed", "removed", "dir/old", "gone/x", "anew/old"} {
		write(t, filepath.Join(lower, name), "image's "+name)
	}
	root, upper := mount(t, lower)
	write(t, filepath.Join(root, "changed"), "mine")
	write(t, filepath.Join(root, "dir/new"), "mine")
	for _, err := range []error{
		os.Remove(filepath.Join(root, "removed")),
		os.RemoveAll(filepath.Join(root, "gone")),
		os.RemoveAll(filepath.Join(root, "anew")),
		os.Mkdir(filepath.Join(root, "anew"), 0o711), // hides the image's directory
		os.Symlink("/etc/passwd", filepath.Join(root, "link")),
		os.Chown(filepath.Join(root, "dir/new"), 1234, 5678),
		unix.Mkfifo(filepath.Join(root, "fifo"), 0o600),
		unix.Setxattr(filepath.Join(root, "dir/new"), "user.note", []byte("x"), 0),
	} {
		if err != nil && !errors.Is(err, unix.ENOTSUP) {
			t.Fatal(err)
		}
	}
	archive := filepath.Join(t.TempDir(), "c.tar")
	if err := Write(t.Context(), request(upper), archive); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "unpacked")
	if err := Unpack(t.Context(), archive, dir); err != nil {
		t.Fatal(err)
	}
	info, err := Dir(dir).Info()
	if err != nil || info.Name != "web" || info.At.IsZero() || !slices.Equal(info.Names(), []string{"sha256:1", "web:1"}) {
		t.Errorf("%+v: %v", info, err)
	}
	again, _ := mount(t, lower)
	if err := Dir(dir).Restore(t.Context(), again); err != nil {
		t.Fatal(err)
	}
	if was, is := listing(t, root), listing(t, again); !slices.Equal(was, is) {
		t.Errorf("the files were\n%s\nand are\n%s", strings.Join(was, "\n"), strings.Join(is, "\n"))
	}
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(again, "dir/new"), &st); err != nil || st.Uid != 1234 || st.Gid != 5678 {
		t.Errorf("owned by %d:%d: %v", st.Uid, st.Gid, err)
	}
}

func request(upper string) Request {
	return Request{
		Info: Info{ID: "c1", Name: "web", ImageRef: "sha256:1", ImageName: "web:1"}, Spec: []byte("{}"), Upper: upper,
		Dump: func(_ context.Context, into string, whileStopped func() error) error {
			return errors.Join(os.WriteFile(filepath.Join(into, "inventory.img"), []byte("x"), 0o600), whileStopped())
		},
	}
}

// listing returns the files below root with their modes and contents.
func listing(t *testing.T, root string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		rel, _ := filepath.Rel(root, path)
		line := rel + " " + info.Mode().String()
		if info.Mode().IsRegular() {
			content, _ := os.ReadFile(path)
			line += " " + string(content)
		}
		list = append(list, line)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestFailureLeavesNothing: neither an archive nor temporary files.
func TestFailureLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	r := request(t.TempDir())
	r.Dump = func(context.Context, string, func() error) error { return errors.New("no memory") }
	if err := Write(t.Context(), r, filepath.Join(dir, "c.tar")); err == nil || err.Error() != "no memory" {
		t.Error(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left %v: %v", left, err)
	}
	write(t, filepath.Join(dir, "file"), "")
	for _, path := range []string{
		"/", dir, "/dev/null", filepath.Join(dir, "none", "c.tar"), filepath.Join(dir, "file", "c.tar"), "/tmp/\x00", "/tmp/" + strings.Repeat("x", 5000),
	} {
		if err := Write(t.Context(), r, path); !errdefs.IsInvalidArgument(err) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.80q: %v", path, err)
		}
	}
}

func TestBadArchives(t *testing.T) {
	dir := t.TempDir()
	pack := func(name string, files map[string]string) string {
		path := filepath.Join(dir, name)
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w := tar.NewWriter(f)
		for name, content := range files {
			if err := w.WriteHeader(&tar.Header{Name: name, Size: int64(len(content)), Mode: 0o600}); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(w, content); err != nil {
				t.Fatal(err)
			}
		}
		if err := errors.Join(w.Close(), f.Close()); err != nil {
			t.Fatal(err)
		}
		return path
	}
	write(t, filepath.Join(dir, "garbage"), strings.Repeat("no archive ", 1000))
	if err := unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, is := range map[string]func(error) bool{
		filepath.Join(dir, "none"):    errdefs.IsNotFound,
		dir:                           errdefs.IsInvalidArgument,
		filepath.Join(dir, "fifo"):    errdefs.IsInvalidArgument,
		filepath.Join(dir, "garbage"): errdefs.IsInvalidArgument,
		pack("empty", nil):            errdefs.IsInvalidArgument,
		pack("no processes", map[string]string{about: "{}"}):    errdefs.IsInvalidArgument,
		pack("outside", map[string]string{"../../escaped": ""}): errdefs.IsInvalidArgument,
	} {
		if err := Unpack(t.Context(), path, filepath.Join(t.TempDir(), "x")); !is(err) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for name, content := range map[string]string{
		"not JSON": "{", "no image": `{"name":"web"}`, "too long": strings.Repeat(" ", maxInfo+1),
	} {
		d := Dir(filepath.Join(dir, name))
		write(t, filepath.Join(string(d), about), content)
		if _, err := d.Info(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestDeletedFiles removes the files on a list such as Podman's. No path may lead outside of the
// root.
func TestDeletedFiles(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "root")
	write(t, filepath.Join(root, "a/b"), "")
	write(t, filepath.Join(root, "kept"), "")
	write(t, filepath.Join(base, "outside/secret"), "")
	if err := os.Symlink("../outside", filepath.Join(root, "link")); err != nil {
		t.Fatal(err)
	}
	d := Dir(filepath.Join(base, "checkpoint"))
	write(t, filepath.Join(string(d), deleted), `["/a/b", "../outside/secret", "link/secret", "/", "none/x"]`)
	if err := d.Restore(t.Context(), root); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(root, "a/b")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a/b still exists")
	}
	for _, path := range []string{filepath.Join(root, "kept"), filepath.Join(base, "outside/secret")} {
		if _, err := os.Stat(path); err != nil {
			t.Error(err)
		}
	}
}
