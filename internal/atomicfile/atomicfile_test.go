package atomicfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	// An older file that all may read says nothing about the new one.
	if err := os.WriteFile(path, []byte("old"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		content string
		mode    os.FileMode
	}{{"new", 0o600}, {"", 0o755}, {strings.Repeat("x", 1<<20), 0o644}} {
		if err := Write(path, []byte(c.content), c.mode); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		info, statErr := os.Stat(path)
		if err != nil || statErr != nil || string(got) != c.content || info.Mode() != c.mode {
			t.Errorf("%d bytes, mode %v: got %d bytes, %v, %v, %v", len(c.content), c.mode, len(got), info.Mode(), err, statErr)
		}
	}
	onlyEntry(t, dir, "key")
}

// What can't be replaced stays as it is, and nothing is left beside it.
func TestWriteFails(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "key")
	if err := os.MkdirAll(filepath.Join(path, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("new"), 0o600); err == nil {
		t.Error("a directory was replaced by a file")
	}
	onlyEntry(t, dir, "key")
	if err := Write(filepath.Join(dir, "absent", "key"), nil, 0o600); !os.IsNotExist(err) {
		t.Errorf("in a directory that doesn't exist: %v", err)
	}
}

func onlyEntry(t *testing.T, dir, name string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != name {
		t.Errorf("the directory has %v, %v; want only %s", entries, err, name)
	}
}
