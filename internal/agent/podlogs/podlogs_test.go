package podlogs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func newDirs(t *testing.T) Dirs {
	t.Helper()
	dir := t.TempDir()
	return Dirs{Root: filepath.Join(dir, "root"), Pods: filepath.Join(dir, "log", "pods"), Links: filepath.Join(dir, "log", "containers")}
}

// newLog creates a log below a pod's directory.
func newLog(t *testing.T, dir, container string) string {
	t.Helper()
	path := filepath.Join(dir, container, "0.log")
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("x"), 0o600)); err != nil {
		t.Fatal(err)
	}
	return path
}

func names(t *testing.T, dir string) (out []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestLife(t *testing.T) {
	d := newDirs(t)
	dir, err := d.Create("uid", filepath.Join(d.Pods, "default_web_uid"))
	if err != nil || dir != filepath.Join(d.Pods, "default_web_uid") {
		t.Fatal(dir, err)
	}
	if again, err := d.Create("uid", "/elsewhere"); err != nil || again != dir {
		t.Errorf("after a change of the configuration: %s, %v", again, err)
	}
	log := newLog(t, dir, "c")
	for range 2 {
		if err := d.Link(log, "1234"); err != nil {
			t.Fatal(err)
		}
	}
	if target, err := os.Readlink(filepath.Join(d.Links, "web_default_c-1234.log")); err != nil || target != log {
		t.Errorf("%s, %v", target, err)
	}
	if err := errors.Join(d.Link(newLog(t, dir, "other"), "5678"), d.Unlink(log, "1234"), d.Unlink(log, "1234")); err != nil {
		t.Fatal(err)
	}
	// Another runtime's pod stays as it is.
	theirs := newLog(t, filepath.Join(d.Pods, "default_web_theirs"), "c")
	if err := d.Link(theirs, "9"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Remove("uid"); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, d.Links); !slices.Equal(got, []string{"web_default_c-9.log"}) {
		t.Errorf("%v", got)
	}
	if got := names(t, d.Pods); !slices.Equal(got, []string{"default_web_theirs"}) {
		t.Errorf("%v", got)
	}
	if got := names(t, d.Root); len(got) > 0 {
		t.Errorf("%v", got)
	}
}

// TestSweep: only links into directories of pods that are gone are removed. During a rotation a
// link to a log that is there dangles too.
func TestSweep(t *testing.T) {
	d := newDirs(t)
	if err := d.Sweep(); err != nil {
		t.Fatal(err)
	}
	rotating := filepath.Join(d.Pods, "default_web_uid", "c", "1.log")
	newLog(t, filepath.Join(d.Pods, "default_web_uid"), "c")
	if err := errors.Join(d.Link(rotating, "1"), d.Link(filepath.Join(d.Pods, "default_gone_gone", "c", "0.log"), "2"), d.Link("/other/default_gone_gone/c/0.log", "3"),
		os.WriteFile(filepath.Join(d.Links, "file.log"), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := d.Sweep(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, d.Links); !slices.Equal(got, []string{"file.log", "gone_default_c-3.log", "web_default_c-1.log"}) {
		t.Errorf("%v", got)
	}
}

// TestAdopt: directories without a record are recorded if the pod is known, and removed otherwise.
func TestAdopt(t *testing.T) {
	d := newDirs(t)
	old := filepath.Join(filepath.Dir(d.Pods), "old")
	if err := d.Adopt(old, nil); err != nil {
		t.Errorf("a missing directory: %v", err)
	}
	for _, name := range []string{"default_web_known", "default_web_gone", "containers", "a_b_c_d"} {
		newLog(t, filepath.Join(old, name), "c")
	}
	if err := os.WriteFile(filepath.Join(old, "a_file_gone"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Adopt(old, []string{"known", "other"}); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, old); !slices.Equal(got, []string{"a_b_c_d", "a_file_gone", "containers", "default_web_known"}) {
		t.Errorf("%v", got)
	}
	if err := errors.Join(d.Remove("known"), d.Remove("other")); err != nil {
		t.Fatal(err)
	}
	if got := names(t, old); slices.Contains(got, "default_web_known") || len(names(t, d.Root)) > 0 {
		t.Errorf("after the pod's removal: %v, %v", got, names(t, d.Root))
	}
}

func TestBadNames(t *testing.T) {
	d := newDirs(t)
	for _, uid := range []string{"", ".", "..", "a/b", "a\x00"} {
		if _, err := d.Create(uid, "/x"); err == nil {
			t.Errorf("%q is accepted", uid)
		}
		if err := d.Remove(uid); err == nil {
			t.Errorf("%q is accepted", uid)
		}
	}
	long := filepath.Join(d.Pods, "default_"+strings.Repeat("n", 240)+"_uid", "c", "0.log")
	if err := d.Link(long, strings.Repeat("i", 64)); err != nil {
		t.Fatal(err)
	}
	if got := names(t, d.Links); len(got) != 1 || len(got[0]) != 255 || !strings.HasSuffix(got[0], ".log") {
		t.Errorf("%v", got)
	}
}
