package filecopy

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/oci"
	"github.com/huskd/husk/internal/pidfd"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// treeOf returns the tree of a directory.
func treeOf(t testing.TB, dir string) *Tree {
	t.Helper()
	root, err := os.Open(dir)
	must(t, err)
	tree := &Tree{root: root}
	t.Cleanup(func() { _ = tree.Close() })
	return tree
}

// makeFiles makes files: "name/" is a directory, "name -> to" a symbolic link, "name = content" a
// file.
func makeFiles(t testing.TB, dir string, files ...string) {
	t.Helper()
	for _, f := range files {
		path := filepath.Join(dir, f)
		if name, to, ok := strings.Cut(f, " -> "); ok {
			must(t, os.Symlink(to, filepath.Join(dir, name)))
		} else if name, content, ok := strings.Cut(f, " = "); ok {
			must(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o640))
		} else {
			must(t, os.MkdirAll(path, 0o750))
		}
	}
}

// list describes the files below dir in the notation of makeFiles.
func list(t testing.TB, dir string) (out []string) {
	t.Helper()
	must(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		must(t, err)
		name, _ := filepath.Rel(dir, path)
		switch {
		case d.IsDir():
			name += "/"
		case d.Type() == fs.ModeSymlink:
			to, _ := os.Readlink(path)
			name += " -> " + to
		default:
			content, _ := os.ReadFile(path)
			name += " = " + string(content)
		}
		if path != dir {
			out = append(out, name)
		}
		return nil
	}))
	return out
}

// TestCopy copies as cp -r does.
func TestCopy(t *testing.T) {
	t.Parallel()
	source := []string{"file = 1", "dir/", "dir/file = 2", "dir/sub/", "dir/sub/link -> ../file", "link -> dir", "absolute -> /dir/file"}
	for _, c := range []struct {
		from, to string
		existing []string
		want     string // the files in the end, or the error
	}{
		{"/file", "/new", nil, "new = 1"},
		{"/file", "/dir", []string{"dir/"}, "dir/, dir/file = 1"},
		{"/file", "/dir/", []string{"dir/"}, "dir/, dir/file = 1"},
		{"/file", "/old", []string{"old = 0"}, "old = 1"},
		{"/file", "/old", []string{"old -> nowhere"}, "old = 1"},
		{"/file", "/none/", nil, "the directory /none/ doesn't exist"},
		{"/file", "/none/new", nil, "the directory /none doesn't exist"},
		{"/file", "/old/new", []string{"old = 0"}, "not a directory"},
		{"/file", "/to", []string{"to/", "to/file/"}, "is a directory"},
		{"/dir", "/new", nil, "new/, new/file = 2, new/sub/, new/sub/link -> ../file"},
		{"/dir", "/to", []string{"to/"}, "to/, to/dir/, to/dir/file = 2, to/dir/sub/, to/dir/sub/link -> ../file"},
		{"/dir/.", "/to", []string{"to/", "to/kept = 0", "to/file = 0"}, "to/, to/file = 2, to/kept = 0, to/sub/, to/sub/link -> ../file"},
		{"/dir", "/old", []string{"old = 0"}, "is a file"},
		{"/dir/.", "/to", []string{"to/", "to/sub = 0"}, "sub is a file or symbolic link"},
		{"/dir/.", "/to", []string{"to/", "to/sub -> /other", "other/"}, "sub is a file or symbolic link"},
		{"/dir/.", "/link", []string{"to/", "link -> to"}, "link -> to, to/, to/file = 2, to/sub/, to/sub/link -> ../file"},
		{"/link", "/new", nil, "new -> dir"},
		{"/link/", "/new", nil, "new/, new/file = 2, new/sub/, new/sub/link -> ../file"},
		{"/link/file", "/new", nil, "new = 2"},
		{"/dir/../../../file", "/../../new", nil, "new = 1"},
		{"/absolute", "/new", nil, "new -> /dir/file"},
		{"/none", "/new", nil, "no such file or directory"},
	} {
		from, to := t.TempDir(), t.TempDir()
		makeFiles(t, from, source...)
		makeFiles(t, to, c.existing...)
		var stream bytes.Buffer
		_, err := treeOf(t, from).Read(t.Context(), c.from, &stream)
		if err == nil {
			err = treeOf(t, to).Write(&stream, c.to, SourceOf(c.from))
		}
		got := strings.Join(list(t, to), ", ")
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want)) {
			t.Errorf("%s to %s: %s, want %s", c.from, c.to, got, c.want)
		}
	}
}

// TestModes checks that modes and times are kept, and the set-user-ID bit isn't.
func TestModes(t *testing.T) {
	t.Parallel()
	from, to, at := t.TempDir(), t.TempDir(), time.Unix(1_700_000_000, 0)
	makeFiles(t, from, "dir/", "dir/file = 1")
	must(t, os.Chmod(filepath.Join(from, "dir/file"), 0o751|fs.ModeSetuid))
	must(t, os.Chmod(filepath.Join(from, "dir"), 0o500))
	must(t, os.Chtimes(filepath.Join(from, "dir/file"), at, at))
	must(t, os.Chtimes(filepath.Join(from, "dir"), at, at))
	var stream bytes.Buffer
	_, err := treeOf(t, from).Read(t.Context(), "/dir", &stream)
	must(t, err)
	must(t, treeOf(t, to).Write(&stream, "/", SourceOf("/dir")))
	for name, mode := range map[string]fs.FileMode{"dir": 0o500 | fs.ModeDir, "dir/file": 0o751} {
		info, err := os.Lstat(filepath.Join(to, name))
		must(t, err)
		if info.Mode() != mode || !info.ModTime().Equal(at) {
			t.Errorf("%s has mode %v of %v, want %v of %v", name, info.Mode(), info.ModTime(), mode, at)
		}
	}
}

// TestSpecialFiles checks that they are skipped, or refused if nothing else is asked for.
func TestSpecialFiles(t *testing.T) {
	t.Parallel()
	from := t.TempDir()
	makeFiles(t, from, "dir/", "dir/file = 1")
	must(t, syscall.Mkfifo(filepath.Join(from, "dir/pipe"), 0o600))
	var stream bytes.Buffer
	skipped, err := treeOf(t, from).Read(t.Context(), "/dir", &stream)
	if err != nil || len(skipped) != 1 || skipped[0] != "pipe is a named pipe" {
		t.Errorf("skipped %q, %v", skipped, err)
	}
	if _, err := treeOf(t, from).Read(t.Context(), "/dir/pipe", &stream); err == nil || !strings.Contains(err.Error(), "is a named pipe") {
		t.Errorf("a pipe alone: %v", err)
	}
}

// streamOf returns a tar stream of headers.
func streamOf(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, h := range headers {
		h.Mode = 0o644
		must(t, w.WriteHeader(&h))
	}
	must(t, w.Close())
	return &out
}

// TestHostileStreams checks that a stream makes nothing outside of the directory.
func TestHostileStreams(t *testing.T) {
	t.Parallel()
	for name, headers := range map[string][]tar.Header{
		"outside":    {{Name: "../evil"}},
		"absolute":   {{Name: "/evil"}},
		"link":       {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: "/"}, {Name: "l/evil"}},
		"link up":    {{Name: "l", Typeflag: tar.TypeSymlink, Linkname: ".."}, {Name: "l/evil"}},
		"hard link":  {{Name: "evil", Typeflag: tar.TypeLink, Linkname: "../outside"}},
		"device":     {{Name: "evil", Typeflag: tar.TypeBlock, Devmajor: 8}},
		"no name":    {{Name: ".", Typeflag: tar.TypeDir}, {Name: "..", Typeflag: tar.TypeDir}},
		"empty":      {},
		"two levels": {{Name: "a/../../evil"}},
	} {
		dir := t.TempDir()
		makeFiles(t, dir, "outside = 1", "in/")
		err := treeOf(t, dir).Write(streamOf(t, headers...), "/in", Source{Contents: true})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		for _, f := range list(t, dir) {
			if strings.Contains(f, "evil") {
				t.Errorf("%s: made %s", name, f)
			}
		}
	}
	if err := treeOf(t, t.TempDir()).Write(strings.NewReader(strings.Repeat("no tar ", 1000)), "/", Source{}); err == nil {
		t.Error("no error about a stream that is no tar")
	}
}

// TestSwap exchanges a directory and a symbolic link to the outside while files are written below
// it, as a hostile container would.
func TestSwap(t *testing.T) {
	t.Parallel()
	outside, dir := t.TempDir(), t.TempDir()
	makeFiles(t, dir, "d/", "link -> "+outside)
	tree := treeOf(t, dir)
	var stop atomic.Bool
	swapped := make(chan struct{})
	go func() {
		defer close(swapped)
		for !stop.Load() {
			_ = os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "x"))
			_ = os.Rename(filepath.Join(dir, "link"), filepath.Join(dir, "d"))
			_ = os.Rename(filepath.Join(dir, "d"), filepath.Join(dir, "link"))
			_ = os.Rename(filepath.Join(dir, "x"), filepath.Join(dir, "d"))
		}
	}()
	for range 2000 {
		_ = tree.Write(streamOf(t, tar.Header{Name: ".", Typeflag: tar.TypeDir}, tar.Header{Name: "evil"}), "/d", Source{Base: "b", Contents: true})
		_ = tree.Write(streamOf(t, tar.Header{Name: "d/evil"}), "/", Source{})
	}
	stop.Store(true)
	<-swapped
	if left := list(t, outside); len(left) > 0 {
		t.Errorf("written outside: %q", left)
	}
}

// TestContainer reads and writes the files of a process with a root of its own and, in a user
// namespace, with another owner.
func TestContainer(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	root, err := os.MkdirTemp("", "filecopy-") // t.TempDir is in a directory that others can't enter
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(root) })
	must(t, os.Chmod(root, 0o755))
	makeFiles(t, root, "etc/", "etc/name = inside", "abs -> /etc/name")
	for _, first := range []int{0, 200_000} {
		t.Run(fmt.Sprint(first), func(t *testing.T) {
			sleep := exec.Command("/proc/self/exe", "-test.run=TestSleep")
			sleep.Env = append(os.Environ(), "FILECOPY_SLEEP="+root)
			sleep.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
			if first > 0 {
				sleep.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
				ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: first, Size: 65536}}
				sleep.SysProcAttr.UidMappings, sleep.SysProcAttr.GidMappings = ids, ids
				sleep.SysProcAttr.Credential = &syscall.Credential{} // root there
			}
			out, err := sleep.StdoutPipe()
			must(t, err)
			must(t, sleep.Start())
			defer func() {
				_ = sleep.Process.Kill()
				_ = sleep.Wait()
			}()
			_, err = out.Read(make([]byte, 1)) // it has changed its root
			must(t, err)
			p, err := pidfd.Identify(sleep.Process.Pid)
			must(t, err)
			tree, err := Container(p)
			must(t, err)
			defer tree.Close()
			var stream bytes.Buffer
			_, err = tree.Read(context.Background(), "/etc/name", &stream)
			must(t, err)
			name := fmt.Sprintf("new-%d", first)
			must(t, tree.Write(&stream, "/etc/"+name, SourceOf("/etc/name")))
			info, err := os.Stat(filepath.Join(root, "etc", name))
			must(t, err)
			if st := info.Sys().(*syscall.Stat_t); int(st.Uid) != first || int(st.Gid) != first {
				t.Errorf("the new file belongs to %d:%d, want %d", st.Uid, st.Gid, first)
			}
		})
	}
	if _, err := Container(oci.Process{PID: os.Getpid(), Start: 1}); err == nil {
		t.Error("no error about a process that is gone")
	}
}

// TestSleep is the process of TestContainer.
func TestSleep(t *testing.T) {
	root := os.Getenv("FILECOPY_SLEEP")
	if root == "" {
		return
	}
	must(t, syscall.Chroot(root))
	fmt.Print("x")
	time.Sleep(time.Hour)
}
