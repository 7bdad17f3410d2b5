package filewatch

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestWatch: a change is noticed in a directory that is there, was missing, and was replaced.
func TestWatch(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a", "b")
	w, err := New(10 * time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "file")
	for _, change := range []func(){
		func() { must(os.MkdirAll(dir, 0o755)) },
		func() { must(os.WriteFile(file, nil, 0o600)) },
		func() { must(os.WriteFile(file, []byte("x"), 0o600)) },
		func() {
			must(os.Rename(filepath.Join(root, "a"), filepath.Join(root, "old")))
			must(os.MkdirAll(dir, 0o755))
		},
		func() { must(os.WriteFile(file, nil, 0o600)) },
		func() { must(os.RemoveAll(filepath.Join(root, "a"))) },
	} {
		_ = w.Add(dir) // it may be missing
		change()
		began := time.Now()
		w.Wait(t.Context(), time.Hour, nil)
		t.Log(time.Since(began))
	}
}

// TestBusy: a directory that keeps changing doesn't delay for long.
func TestBusy(t *testing.T) {
	dir := t.TempDir()
	w, err := New(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	w.Wait(t.Context(), time.Hour, nil)
}

// TestOthers: what isn't in the directory doesn't matter, and the other reasons end Wait.
func TestOthers(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "a")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	w, err := New(0)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if err := w.Add(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "other"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const limit = 100 * time.Millisecond
	if began := time.Now(); true {
		w.Wait(t.Context(), limit, nil)
		if since := time.Since(began); since < limit {
			t.Errorf("another file ended Wait after %v", since)
		}
	}
	wake := make(chan struct{}, 1)
	wake <- struct{}{}
	w.Wait(t.Context(), time.Hour, wake)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.Wait(ctx, time.Hour, nil)
}
