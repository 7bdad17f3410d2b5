package layer

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/huskd/husk/internal/hosttest"
	"github.com/huskd/husk/internal/image/rootfs"
	"github.com/huskd/husk/test/testimage"
)

func entry(typ byte, name, link string, mode int64) testimage.Entry {
	return testimage.Entry{Header: tar.Header{Typeflag: typ, Name: name, Linkname: link, Mode: mode}}
}

// extract extracts an archive of entries into a new directory.
func extract(t testing.TB, below []string, entries ...testimage.Entry) (string, error) {
	t.Helper()
	l, err := testimage.NewLayer(testimage.Gzip, entries...)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "fs")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	implied, err := Extract(t.Context(), bytes.NewReader(l.Blob), l.DiffID, dir)
	if err != nil {
		return dir, err
	}
	return dir, implied.Inherit(dir, below)
}

func mustExtract(t testing.TB, below []string, entries ...testimage.Entry) string {
	t.Helper()
	dir, err := extract(t, below, entries...)
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestExtract checks layers as a container sees them, mounted.
func TestExtract(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	owned := testimage.File("home/alice/mine", 0o640, []byte("x"))
	owned.Uid, owned.Gid = 1000, 1001
	device := entry(tar.TypeChar, "dev/null", "", 0o666)
	device.Devmajor, device.Devminor = 1, 3
	capable := testimage.File("bin/ping", 0o755, []byte("x"))
	capable.PAXRecords = map[string]string{"SCHILY.xattr.user.colour": "blue"}
	alice := testimage.Dir("home/alice", 0o700)
	alice.Uid = 1000
	lower := mustExtract(t, nil,
		testimage.Dir("bin", 0o755), capable,
		testimage.File("bin/su", 0o4755, []byte("x")),
		entry(tar.TypeLink, "bin/su2", "bin/su", 0o4755),
		testimage.Symlink("var/run", "/run"),
		alice, owned, device,
		entry(tar.TypeFifo, "run/pipe", "", 0o600),
		testimage.File("etc/gone", 0o644, []byte("x")),
		testimage.File("etc/stays", 0o644, []byte("x")),
		testimage.File("opaque/old", 0o644, []byte("x")),
		testimage.File("/absolute", 0o644, []byte("x")),
		testimage.File("./dotted/"+strings.Repeat("long", 50), 0o644, []byte("x")),
	)
	upper := mustExtract(t, []string{lower},
		entry(tar.TypeReg, "etc/.wh.gone", "", 0),
		testimage.Dir("opaque", 0o755),
		entry(tar.TypeReg, "opaque/.wh..wh..opq", "", 0),
		testimage.File("opaque/new", 0o644, []byte("x")),
		testimage.File("home/alice/more", 0o600, nil), // without an entry for its directory
		testimage.File("var/run/x", 0o644, nil),       // a directory in this layer, a link below
	)
	dir := t.TempDir()
	root, err := rootfs.Mount(rootfs.Spec{Dir: dir, Lower: []string{upper, lower}})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := rootfs.Unmount(dir); err != nil {
			t.Error(err)
		}
	}()
	for name, want := range map[string]string{
		"bin/su": "urwxr-xr-x", "bin/su2": "urwxr-xr-x", "dev/null": "Dcrw-rw-rw-", "run/pipe": "prw-------",
		"home/alice": "drwx------", "home/alice/mine": "-rw-r-----", "home/alice/more": "-rw-------",
		"etc/gone": "", "etc/stays": "-rw-r--r--", "opaque/old": "", "opaque/new": "-rw-r--r--", "absolute": "-rw-r--r--",
		"dotted": "drwxr-xr-x", "var/run": "drwxr-xr-x",
	} {
		info, err := os.Lstat(filepath.Join(root, name))
		switch {
		case want == "" && !errors.Is(err, os.ErrNotExist):
			t.Errorf("%s exists: %v", name, err)
		case want != "" && err != nil:
			t.Error(err)
		case want != "" && info.Mode().String() != want:
			t.Errorf("%s is %s, want %s", name, info.Mode(), want)
		}
	}
	stat := func(name string) *syscall.Stat_t {
		info, err := os.Lstat(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		return info.Sys().(*syscall.Stat_t)
	}
	if s := stat("home/alice/mine"); s.Uid != 1000 || s.Gid != 1001 {
		t.Errorf("owner %d:%d", s.Uid, s.Gid)
	}
	if s := stat("home/alice"); s.Uid != 1000 {
		t.Errorf("a directory that the layer only implies has owner %d, want that of the layer below", s.Uid)
	}
	if stat("bin/su").Ino != stat("bin/su2").Ino {
		t.Error("a hard link is a copy")
	}
	value := make([]byte, 10)
	if n, err := unix.Lgetxattr(filepath.Join(root, "bin/ping"), "user.colour", value); err != nil || string(value[:n]) != "blue" {
		t.Errorf("attribute %q %v", value[:n], err)
	}
}

func TestEscapes(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	file := testimage.File("x", 0o644, []byte("x"))
	named := func(name string) testimage.Entry { e := file; e.Name = name; return e }
	for name, bad := range map[string][]testimage.Entry{
		"dots":               {named("../x")},
		"only dots":          {named("..")},
		"dots inside":        {named("a/b/../../../x")},
		"absolute link":      {testimage.Symlink("l", "/etc"), named("l/x")},
		"climbing link":      {testimage.Symlink("a/l", "../.."), named("a/l/x")},
		"link, then deep":    {testimage.Symlink("l", "/"), named("l/a/b/c/x")},
		"link by odd name":   {testimage.Symlink("./a//l", "/etc"), named("a/./l/x")},
		"hard link":          {entry(tar.TypeLink, "h", "../../etc/shadow", 0)},
		"directory out":      {testimage.Dir("../d", 0o755)},
		"symbolic link out":  {testimage.Symlink("../l", "x")},
		"device out":         {entry(tar.TypeFifo, "../p", "", 0o644)},
		"whiteout of parent": {entry(tar.TypeReg, "a/.wh..", "", 0)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir, err := extract(t, nil, bad...)
			if err == nil {
				t.Fatal("extracted, want an error")
			}
			t.Log(err)
			around, _ := os.ReadDir(filepath.Dir(dir))
			if len(around) != 1 {
				t.Errorf("files outside of the directory: %v", around)
			}
		})
	}
	for name, good := range map[string][]testimage.Entry{
		"link within":          {testimage.Dir("usr/lib", 0o755), testimage.Symlink("lib", "usr/lib"), named("lib/x")},
		"climbs within":        {testimage.Dir("usr/lib", 0o755), testimage.Symlink("usr/l", "../usr/lib"), named("usr/l/x")},
		"absolute link alone":  {testimage.Symlink("var/run", "/run")},
		"replaced by a dir":    {testimage.Symlink("l", "/etc"), testimage.Dir("l", 0o755), named("l/x")},
		"dots that stay":       {testimage.Dir("a", 0o755), named("a/../x")},
		"names with two dots":  {named("..x"), named("a/..b")},
		"absolute dots":        {named("/../x")},
		"absolute name":        {named("/x")},
		"link to itself":       {testimage.Symlink("l", "l")},
		"root":                 {testimage.Dir(".", 0o755), testimage.Dir("/", 0o755)},
		"hard link to a file":  {file, entry(tar.TypeLink, "y", "/x", 0)},
		"whiteout of nothing":  {entry(tar.TypeReg, ".wh.nothing", "", 0)},
		"the same entry twice": {file, file},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			mustExtract(t, nil, good...)
		})
	}
}

// TestReplacedEntries checks that a later entry of an archive replaces an earlier one, and what the
// directories are that it only implies.
func TestReplacedEntries(t *testing.T) {
	hosttest.Root(t)
	t.Parallel()
	lower := testimage.Dir("d", 0o700)
	lower.Uid = 7
	below := mustExtract(t, nil, lower, testimage.Dir("gone", 0o711), testimage.Dir("late", 0o711), testimage.Dir("usr/lib", 0o700))
	dir := mustExtract(t, []string{below},
		testimage.File("d/sub/file", 0o644, []byte("old")),
		testimage.File("d/sub/file", 0o600, []byte("new")),
		testimage.File("gone/x", 0o644, nil), testimage.File("gone", 0o640, []byte("file")), // a file instead of a directory with files
		testimage.Symlink("link", "gone"), testimage.Dir("link", 0o755), testimage.File("link/x", 0o644, nil),
		testimage.File("late/x", 0o644, nil), testimage.Dir("late", 0o750), testimage.File("late/y", 0o644, nil), // an entry for a directory that was implied
		testimage.Symlink("lib", "usr/lib"), testimage.File("lib/x", 0o644, nil), // the link leads to a directory that isn't there
		testimage.File("tree/a/b", 0o644, nil), testimage.Symlink("tree/a", "../other"), testimage.File("tree/a/c", 0o644, nil),
		testimage.Dir("old", 0o700), testimage.File("old/x", 0o644, nil), testimage.File("old", 0o644, nil),
	)
	for name, want := range map[string]string{
		"d": "drwx------", "d/sub": "drwxr-xr-x", "d/sub/file": "-rw-------", "gone": "-rw-r-----", "link/x": "-rw-r--r--",
		"late": "drwxr-x---", "late/x": "-rw-r--r--", "late/y": "-rw-r--r--", "lib": "Lrwxrwxrwx", "usr/lib": "drwx------", "usr/lib/x": "-rw-r--r--",
		"tree/a": "Lrwxrwxrwx", "other/c": "-rw-r--r--", "old": "-rw-r--r--",
	} {
		info, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Error(err)
		} else if info.Mode().String() != want {
			t.Errorf("%s is %s, want %s", name, info.Mode(), want)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "late")); err != nil || info.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("%v %v", info, err)
	}
	if info, err := os.Stat(filepath.Join(dir, "d")); err != nil || info.Sys().(*syscall.Stat_t).Uid != 7 {
		t.Errorf("%v %v", info, err)
	}
	if content, err := os.ReadFile(filepath.Join(dir, "d/sub/file")); string(content) != "new" {
		t.Errorf("%q %v", content, err)
	}
}

func TestDecompress(t *testing.T) {
	t.Parallel()
	for _, plain := range []string{"", "x", "\x1f", "xyz", strings.Repeat("text ", 100_000)} {
		for _, c := range []testimage.Compression{testimage.Gzip, testimage.Zstd, testimage.Uncompressed} {
			l, err := testimage.PackLayer(c, []byte(plain))
			if err != nil {
				t.Fatal(err)
			}
			r, err := Decompress(bytes.NewReader(l.Blob))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if _, err := got.ReadFrom(r); err != nil || got.String() != plain {
				t.Errorf("%s of %.10q: %.10q %v", c, plain, got.String(), err)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// TestBombs checks that archives that need much memory to unpack are refused.
func TestBombs(t *testing.T) {
	t.Parallel()
	bomb := func(typ byte, key, name string) error {
		e := entries{links: map[string]string{}}
		for i := range maxHeld>>20 + 1 {
			records := map[string]string{key: strings.Repeat("x", 1<<20)}
			if err := e.check(&tar.Header{Typeflag: typ, Name: name + strconv.Itoa(i), PAXRecords: records}); err != nil {
				return err
			}
		}
		return nil
	}
	if err := bomb(tar.TypeDir, "SCHILY.xattr.user.x", "d"); !errors.Is(err, errTooMany) {
		t.Errorf("attributes of directories: %v", err)
	}
	if err := bomb(tar.TypeReg, "x", strings.Repeat("x", 1<<20)); !errors.Is(err, errTooMany) {
		t.Errorf("names: %v", err)
	}
	if err := errors.Join(bomb(tar.TypeReg, "SCHILY.xattr.user.x", "f"), bomb(tar.TypeDir, "HUSK.x", "d")); err != nil {
		t.Errorf("attributes that aren't kept: %v", err)
	}
	// A frame without content, see RFC 8878. The window is 2^(10+exponent) bytes.
	for exponent, ok := range map[byte]bool{17: true, 18: false, 31: false} {
		r, err := Decompress(bytes.NewReader([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, exponent << 3, 1, 0, 0}))
		if err == nil {
			_, err = io.ReadAll(r)
		}
		if (err == nil) != ok {
			t.Errorf("a window of 2^%d bytes: %v", 10+exponent, err)
		}
	}
}

// FuzzExtract checks that no archive writes outside of its directory.
func FuzzExtract(f *testing.F) {
	for _, entries := range [][]testimage.Entry{
		{testimage.File("a/b", 0o644, []byte("x")), testimage.Symlink("l", "../.."), testimage.File("l/x", 0o644, nil)},
		{entry(tar.TypeLink, "a", "../b", 0), entry(tar.TypeReg, ".wh..wh..opq", "", 0)},
	} {
		l, err := testimage.NewLayer(testimage.Uncompressed, entries...)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(l.Blob)
	}
	hosttest.Root(f)
	f.Fuzz(func(t *testing.T, archive []byte) {
		base := t.TempDir()
		dir := filepath.Join(base, "1/2/3/fs")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		_, err := Extract(t.Context(), bytes.NewReader(archive), digest.FromBytes(archive), dir)
		if err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %q", err)
		}
		for up := filepath.Dir(dir); len(up) >= len(base); up = filepath.Dir(up) {
			if entries, _ := os.ReadDir(up); len(entries) != 1 {
				t.Errorf("in %s: %v", up, entries)
			}
		}
	})
}
