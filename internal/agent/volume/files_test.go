package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

// tree lists the files that users of a volume see, with their modes.
func tree(t *testing.T, root string) string {
	t.Helper()
	var out []string
	entries, err := os.ReadDir(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		target, err := filepath.EvalSymlinks(filepath.Join(root, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		_ = filepath.WalkDir(target, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, _ := os.Stat(path)
			data, _ := os.ReadFile(path)
			out = append(out, fmt.Sprintf("%s%s=%s %o", e.Name(), strings.TrimPrefix(path, target), data, info.Mode().Perm()))
			return nil
		})
	}
	return strings.Join(out, ", ")
}

func TestWrite(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	put := func(files ...File) string {
		t.Helper()
		path, err := v.Write("uid", "v", files, nil)
		if err != nil {
			t.Fatal(err)
		}
		return tree(t, path)
	}
	for _, c := range []struct {
		files []File
		want  string
	}{
		{nil, ""},
		{[]File{{Path: "a", Data: []byte("1"), Mode: 0o644}, {Path: "dir/sub/b", Data: []byte("2"), Mode: 0o400}}, "a=1 644, dir/sub/b=2 400"},
		{[]File{{Path: "a", Data: []byte("1"), Mode: 0o644}, {Path: "dir/sub/b", Data: []byte("2"), Mode: 0o400}}, "a=1 644, dir/sub/b=2 400"},
		{[]File{{Path: "a", Data: []byte("3"), Mode: 0o600}}, "a=3 600"},
		{[]File{{Path: "a/b", Data: []byte("4"), Mode: 0o600}, {Path: "c", Mode: 0}}, "a/b=4 600, c= 0"},
		{nil, ""},
	} {
		if got := put(c.files...); got != c.want {
			t.Errorf("files %q, want %q", got, c.want)
		}
	}
	// Unchanged files aren't written again.
	put(File{Path: "a", Data: []byte("1"), Mode: 0o644})
	link := filepath.Join(v.State, "pods/uid/volumes/v/..data")
	before, _ := os.Readlink(link)
	put(File{Path: "a", Data: []byte("1"), Mode: 0o644})
	if after, _ := os.Readlink(link); after != before {
		t.Errorf("it was written again: %s, then %s", before, after)
	}
	// What an interrupted Write has left is removed.
	root := filepath.Dir(link)
	if err := errors.Join(os.Mkdir(filepath.Join(root, "..files_old"), 0o700), os.Symlink("nowhere", filepath.Join(root, "..data_tmp"))); err != nil {
		t.Fatal(err)
	}
	put(File{Path: "a", Data: []byte("2"), Mode: 0o644})
	if entries, _ := os.ReadDir(root); len(entries) != 3 {
		t.Errorf("left: %v", entries)
	}
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
}

func TestGroup(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	group := new(int64(4711))
	payload, err := v.Write("uid", "v", []File{{Path: "dir/a", Mode: 0o400}}, group)
	if err != nil {
		t.Fatal(err)
	}
	disk, err := v.SetUp("uid", emptyDir("disk", "", ""), group)
	if err != nil {
		t.Fatal(err)
	}
	memory, err := v.SetUp("uid", emptyDir("memory", "Memory", ""), group)
	if err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]uint32{
		payload: 0o2775, filepath.Join(payload, "dir"): 0o2775, filepath.Join(payload, "dir/a"): 0o440, disk: 0o2777, memory: 0o3777,
	} {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || st.Gid != 4711 || st.Mode&0o7777 != mode {
			t.Errorf("%s: group %d, mode %o, %v", path, st.Gid, st.Mode&0o7777, err)
		}
	}
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
}

// TestOwner checks that a file gets the owner and mode that are wanted, also a file that an older
// version has written.
func TestOwner(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	user := new(int64(1234))
	for _, c := range []struct {
		file  File
		group *int64
		want  string
	}{
		{File{Path: "token", Data: []byte("t"), Mode: 0o644}, nil, "0:0 644"},
		{File{Path: "token", Data: []byte("t"), Mode: 0o600, User: user}, nil, "1234:0 600"},
		{File{Path: "token", Data: []byte("t"), Mode: 0o600, User: user}, new(int64(4711)), "1234:4711 640"},
		{File{Path: "token", Data: []byte("t"), Mode: 0o600}, new(int64(4711)), "0:4711 640"},
	} {
		root, err := v.Write("uid", "v", []File{c.file}, c.group)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		err = unix.Stat(filepath.Join(root, "token"), &st)
		if got := fmt.Sprintf("%d:%d %o", st.Uid, st.Gid, st.Mode&0o7777); err != nil || got != c.want {
			t.Errorf("the token is %s, %v; want %s", got, err, c.want)
		}
		first, err := os.Readlink(filepath.Join(root, dataLink))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Write("uid", "v", []File{c.file}, c.group); err != nil {
			t.Fatal(err)
		}
		if again, err := os.Readlink(filepath.Join(root, dataLink)); err != nil || again != first {
			t.Errorf("the same file was written again: %s, %s, %v", first, again, err)
		}
	}
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
}

// TestWriteIsAtomic checks that a reader of one directory never sees files of two writes.
func TestWriteIsAtomic(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	files := func(i int) []File {
		data := []byte(fmt.Sprint(i))
		return []File{{Path: "a", Data: data, Mode: 0o644}, {Path: "b", Data: data, Mode: 0o644}}
	}
	root, err := v.Write("uid", "v", files(0), nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				dir, err := os.OpenRoot(filepath.Join(root, dataLink))
				if err != nil {
					continue // it was replaced during the lookup
				}
				a, errA := dir.ReadFile("a")
				b, errB := dir.ReadFile("b")
				_ = dir.Close()
				if errA == nil && errB == nil && string(a) != string(b) {
					t.Errorf("a is %s, b is %s", a, b)
				}
			}
		})
	}
	for i := range 300 {
		if _, err := v.Write("uid", "v", files(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	close(done)
	readers.Wait()
}
