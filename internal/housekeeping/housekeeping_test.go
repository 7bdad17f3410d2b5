package housekeeping

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/agent/podlogs"
	"github.com/huskd/husk/internal/agent/volume"
	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestCandidates(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_000_000, 0)
	img := func(id string, inUse bool, names ...string) image.Image {
		return image.Image{ID: id, InUse: inUse, Tags: names}
	}
	d := Disk{MinAge: 2 * time.Minute, Pinned: []string{"reg.test/base/*", "localhost/keep:1"}}
	var known map[string]imageTimes
	look := func(after time.Duration, want string, images ...image.Image) {
		t.Helper()
		known = trackImages(known, images, start.Add(after))
		var got []string
		for _, img := range d.candidates(images, known, start.Add(after)) {
			got = append(got, img.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("candidates after %v: %v, want %s", after, got, want)
		}
	}
	base, keep := img("base", false, "reg.test/base/os:1"), img("keep", false, "localhost/keep:1")
	look(0, "", img("a", true), img("b", true), base, keep)
	look(time.Minute, "", img("a", true), img("b", false), img("c", false), base, keep)
	// c was never used. b was used until a minute ago. a is in use.
	look(3*time.Minute, "c b", img("a", true), img("b", false), img("c", false), base, keep)
	look(4*time.Minute, "c b a", img("a", false), img("b", false), img("c", false), base, keep)
	look(5*time.Minute, "c b", img("a", true), img("b", false), img("c", false))
	// An image that was removed and returns counts as new.
	look(6*time.Minute, "a", img("a", false))
	look(7*time.Minute, "a", img("a", false), img("c", false))
	look(9*time.Minute, "c a", img("a", false), img("c", false))
	if len(known) != 2 {
		t.Errorf("known images: %v", known)
	}
}

func TestThresholds(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		used, all uint64
		limit     int
		above     bool
	}{{84, 100, 85, false}, {85, 100, 85, true}, {0, 100, 0, true}, {1 << 62, 1 << 63, 51, false}, {1 << 62, 1 << 63, 50, true}} {
		if got := atLeastPercent(c.used, c.all, c.limit); got != c.above {
			t.Errorf("%+v: %t", c, got)
		}
	}
}

func TestOrphans(t *testing.T) {
	hosttest.Root(t)
	dir := t.TempDir()
	v := volume.Volumes{Root: filepath.Join(dir, "root"), State: filepath.Join(dir, "state")}
	logs := podlogs.Dirs{Root: filepath.Join(v.Root, "pods"), Pods: filepath.Join(dir, "logs"), Links: filepath.Join(dir, "links")}
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	exists := func(path string) bool {
		_, err := os.Lstat(path)
		return !errors.Is(err, fs.ErrNotExist)
	}
	behind := filepath.Join(dir, "behind", "f")
	write(behind)
	write(filepath.Join(v.Root, "pods/known/volumes/v/f"))
	write(filepath.Join(v.Root, "pods/gone/volumes/v/f"))
	write(filepath.Join(v.State, "pods/gone/volumes/m/f"))
	write(filepath.Join(v.Root, "pods/more/volumes/v/f"))
	write(filepath.Join(v.Root, "pods/more/else"))
	for _, uid := range []string{"known", "gone", "onlylogs"} {
		at, err := logs.Create(uid, filepath.Join(logs.Pods, "default_web_"+uid))
		if err != nil {
			t.Fatal(err)
		}
		write(filepath.Join(at, "c/0.log"))
		if err := logs.Link(filepath.Join(at, "c/0.log"), "id"+uid); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(logs.Pods, "default_web_theirs/c/0.log"))
	mounted := filepath.Join(v.Root, "pods/gone/volumes/v/mounted")
	if err := os.Mkdir(mounted, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(filepath.Dir(behind), mounted, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(mounted, unix.MNT_DETACH) })
	var reported []string
	for _, o := range Orphans(v, logs, []string{"known"}) {
		path := strings.TrimPrefix(o.Path, dir)
		if o.Err != nil {
			path += " stays: " + strings.ReplaceAll(o.Err.Error(), dir, "")
		}
		reported = append(reported, path)
	}
	if want := []string{
		"/root/pods/gone",
		"/root/pods/more stays: /root/pods/more contains more than volumes: check its files and remove it",
		"/root/pods/onlylogs",
	}; !slices.Equal(reported, want) {
		t.Errorf("reported %q", reported)
	}
	for path, there := range map[string]bool{
		"root/pods/known/volumes/v/f": true, "logs/default_web_known/c/0.log": true, "behind/f": true, "logs/default_web_theirs/c/0.log": true,
		"links/web_default_c-idknown.log": true, "links/web_default_c-idgone.log": false, "logs/default_web_onlylogs": false, "root/pods/more/else": true,
		"root/pods/gone": false, "state/pods/gone": false, "root/pods/more/volumes": false, "logs/default_web_gone": false,
	} {
		if exists(filepath.Join(dir, path)) != there {
			t.Errorf("%s exists: %t", path, !there)
		}
	}
}
