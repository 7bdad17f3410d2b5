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
	"time"

	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
)

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
			t.Errorf("%s is not the directory that is mounted: %v", c.part, err)
		}
		if inside.Mode&unix.S_IFDIR != 0 && slices.Contains([]string{"new/one", "dir/new"}, c.part) && inside.Mode&0o777 != 0o777 {
			t.Errorf("%s was created with mode %o", c.part, inside.Mode)
		}
	}
	// Again for the next run of the container: another part for the same mount.
	path, err := v.SubPath("uid", disk, "dir/file", "c.0")
	if data, _ := os.ReadFile(path); err != nil || string(data) != "x" {
		t.Errorf("%q, %v", data, err)
	}
	if entries, _ := os.ReadDir(outside); len(entries) > 0 {
		t.Errorf("files outside of the volume: %v", entries)
	}
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(v.State, "pods/uid")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// TestSubPathRace mounts a part of a volume while a pod keeps swapping it with a link to the node's
// files, until SubPath has met both often enough.
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
	for deadline := time.Now().Add(time.Minute); good+refused < 500 || good < 20 || refused < 20; {
		if time.Now().After(deadline) {
			t.Errorf("%d mounted and %d refused within a minute, want 20 of each", good, refused)
			break
		}
		path, err := v.SubPath("uid", disk, "x/new", "c.0")
		if err != nil {
			refused++
			continue
		}
		good++
		if _, err := os.Stat(filepath.Join(path, "../secret")); err == nil {
			t.Fatal("the mount leads out of the volume")
		}
	}
	close(done)
	swapper.Wait()
	if entries, _ := os.ReadDir(outside); len(entries) != 1 {
		t.Errorf("files outside of the volume: %v", entries)
	}
	t.Logf("%d mounted, %d refused", good, refused)
	if err := v.TearDown("uid"); err != nil {
		t.Fatal(err)
	}
}

// TestSubPathReplaced checks that a directory that a pod puts in the place of the one that SubPath
// makes keeps its owner and mode.
func TestSubPathReplaced(t *testing.T) {
	t.Parallel()
	hosttest.Root(t)
	disk := t.TempDir()
	fresh, filled, others := filepath.Join(disk, "fresh"), filepath.Join(disk, "filled"), filepath.Join(disk, "others")
	if err := errors.Join(os.Mkdir(fresh, 0o700), os.MkdirAll(filepath.Join(filled, "secret"), 0o700), os.Mkdir(others, 0o700), os.Chown(others, 33, 33)); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(disk)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	for path, refused := range map[string]bool{fresh: false, filled: true, others: true} {
		err := makeLike(int(in.Fd()), filepath.Base(path), &unix.Stat_t{Uid: 1234, Gid: 1234, Mode: 0o777})
		if refused != (err != nil) {
			t.Errorf("%s: %v", path, err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil || refused == (st.Uid == 1234) || refused != (st.Mode&0o777 == 0o700) {
			t.Errorf("%s belongs to %d and has the mode %o, %v", path, st.Uid, st.Mode&0o777, err)
		}
	}
}
