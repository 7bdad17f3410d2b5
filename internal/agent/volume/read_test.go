package volume

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestReadFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	volume := filepath.Join(dir, "v")
	for _, err := range []error{
		os.MkdirAll(filepath.Join(volume, "sub"), 0o755),
		os.WriteFile(filepath.Join(dir, "secret"), []byte("x"), 0o600),
		os.WriteFile(filepath.Join(volume, "sub", "env"), []byte("0123456789"), 0o600),
		os.Symlink("sub/env", filepath.Join(volume, "inside")),
		os.Symlink("../secret", filepath.Join(volume, "outside")),
		os.Symlink(filepath.Join(dir, "secret"), filepath.Join(volume, "absolute")),
		unix.Mkfifo(filepath.Join(volume, "fifo"), 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		"sub/env": "0123456789", "inside": "0123456789",
		"outside": "! leads out of the volume", "absolute": "! leads out of the volume",
		"fifo": "! is not a regular file", "sub": "! is not a regular file",
	} {
		content, err := ReadFile(volume, path, 10)
		if text, fails := strings.CutPrefix(want, "! "); fails && (err == nil || !strings.Contains(err.Error(), text)) || !fails && string(content) != want {
			t.Errorf("%s: %q, %v, want %s", path, content, err, want)
		}
	}
	if _, err := ReadFile(volume, "sub/env", 9); err == nil || !strings.Contains(err.Error(), "larger than 9 bytes") {
		t.Errorf("a large file: %v", err)
	}
	if _, err := ReadFile(volume, "none", 9); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}
