package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

func TestInstall(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "husk-cni")
	if err := os.WriteFile(path, []byte("older"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := install(dir); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(path)
	info, statErr := os.Stat(path)
	if err != nil || statErr != nil || !bytes.Equal(got, want) || info.Mode() != 0o755 {
		t.Errorf("%d bytes of %d, mode %v; %v, %v", len(got), len(want), info.Mode(), err, statErr)
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
	if install(filepath.Join(dir, "missing")) == nil {
		t.Error("installed into a directory that doesn't exist")
	}
}
