package volume

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

// tree lists what users of a volume see of it, and the modes.
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
		real, err := filepath.EvalSymlinks(filepath.Join(root, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		_ = filepath.WalkDir(real, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			info, _ := os.Stat(path)
			data, _ := os.ReadFile(path)
			out = append(out, fmt.Sprintf("%s%s=%s %o", e.Name(), strings.TrimPrefix(path, real), data, info.Mode().Perm()))
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
		{[]File{{"a", []byte("1"), 0o644}, {"dir/sub/b", []byte("2"), 0o400}}, "a=1 644, dir/sub/b=2 400"},
		{[]File{{"a", []byte("1"), 0o644}, {"dir/sub/b", []byte("2"), 0o400}}, "a=1 644, dir/sub/b=2 400"},
		{[]File{{"a", []byte("3"), 0o600}}, "a=3 600"},
		{[]File{{"a/b", []byte("4"), 0o600}, {"c", nil, 0}}, "a/b=4 600, c= 0"},
		{nil, ""},
	} {
		if got := put(c.files...); got != c.want {
			t.Errorf("it has %q, want %q", got, c.want)
		}
	}
	// What didn't change isn't written again.
	put(File{"a", []byte("1"), 0o644})
	link := filepath.Join(v.State, "pods/uid/volumes/v/..data")
	before, _ := os.Readlink(link)
	put(File{"a", []byte("1"), 0o644})
	if after, _ := os.Readlink(link); after != before {
		t.Errorf("it was written anew: %s, then %s", before, after)
	}
	// What a Write that was interrupted has left is no hindrance, and goes.
	root := filepath.Dir(link)
	if err := errors.Join(os.Mkdir(filepath.Join(root, "..files_old"), 0o700), os.Symlink("nowhere", filepath.Join(root, "..data_tmp"))); err != nil {
		t.Fatal(err)
	}
	put(File{"a", []byte("2"), 0o644})
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
	payload, err := v.Write("uid", "v", []File{{"dir/a", nil, 0o400}}, group)
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
		payload: 0o2775, filepath.Join(payload, "dir"): 0o2775, filepath.Join(payload, "dir/a"): 0o440, disk: 0o2777, memory: 0o2777,
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

// A reader that keeps to one directory never sees files of two writes.
func TestWriteIsAtomic(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	files := func(i int) []File {
		data := []byte(fmt.Sprint(i))
		return []File{{"a", data, 0o644}, {"b", data, 0o644}}
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
					continue // it was replaced between two steps of the kernel
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

func TestSubPath(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	disk, err := v.SetUp("uid", emptyDir("disk", "", ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := errors.Join(
		os.Mkdir(filepath.Join(disk, "dir"), 0o700), os.WriteFile(filepath.Join(disk, "dir/file"), []byte("x"), 0o600),
		os.Symlink("dir", filepath.Join(disk, "within")), os.Symlink("../../..", filepath.Join(disk, "above")),
		os.Symlink(outside, filepath.Join(disk, "away")), os.Symlink("/proc/self/root", filepath.Join(disk, "magic")),
		os.Symlink("loop", filepath.Join(disk, "loop")), os.Symlink("nowhere", filepath.Join(disk, "dangling")),
	); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct{ part, want string }{
		{"dir", ""}, {"dir/file", ""}, {"within/file", ""}, {"./dir/", ""}, {"new/one", ""}, {"dir/new", ""}, {"within/newer", ""},
		{"above", "leads out"}, {"away", "leads out"}, {"away/new", "leads out"}, {"magic/etc", "leads out"}, {"loop", "too many levels"},
		{"dir/file/more", "not a directory"}, {"dangling", "no such file"}, {"dangling/new", "no such file"},
	} {
		path, err := v.SubPath("uid", disk, c.part, fmt.Sprintf("c.%d", i))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.part, err, c.want)
			continue
		}
		if err != nil {
			continue
		}
		var inside, mounted unix.Stat_t
		if err := errors.Join(unix.Stat(filepath.Join(disk, c.part), &inside), unix.Stat(path, &mounted)); err != nil || inside.Ino != mounted.Ino {
			t.Errorf("%s is not what is mounted: %v", c.part, err)
		}
		if inside.Mode&unix.S_IFDIR != 0 && slices.Contains([]string{"new/one", "dir/new"}, c.part) && inside.Mode&0o777 != 0o777 {
			t.Errorf("%s was made with the mode %o", c.part, inside.Mode)
		}
	}
	// Once more, as for the next run of the container: another part at the same place.
	path, err := v.SubPath("uid", disk, "dir/file", "c.0")
	if data, _ := os.ReadFile(path); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("outside there is %v", entries)
	}
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(v.State, "pods/uid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// A pod that swaps a directory for a link to the node's files, again and again,
// never gets more than an error.
func TestSubPathRace(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	v := Volumes{Root: t.TempDir(), State: t.TempDir()}
	disk, err := v.SetUp("uid", emptyDir("disk", "", ""), nil)
	if err != nil {
		t.Fatal(err)
	}
	outside := t.TempDir()
	if err := os.WriteFile(filepath.Join(outside, "secret"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	dir, link := filepath.Join(disk, "x"), filepath.Join(disk, "y")
	if err := errors.Join(os.Mkdir(dir, 0o777), os.Symlink(outside, link)); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var swapper sync.WaitGroup
	swapper.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				_ = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, link, unix.RENAME_EXCHANGE)
			}
		}
	})
	good, refused := 0, 0
	for range 500 {
		path, err := v.SubPath("uid", disk, "x/new", "c.0")
		if err != nil {
			refused++
			continue
		}
		good++
		if _, err := os.Stat(filepath.Join(path, "../secret")); err == nil {
			t.Fatal("it leads outside")
		}
	}
	close(done)
	swapper.Wait()
	if entries, _ := os.ReadDir(outside); len(entries) != 1 || good == 0 {
		t.Errorf("outside there is %v; %d mounted, %d refused", entries, good, refused)
	}
	t.Logf("%d mounted, %d refused", good, refused)
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
}
