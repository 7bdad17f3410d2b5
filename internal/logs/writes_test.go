package logs

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestWrites(t *testing.T) {
	t.Parallel()
	w, err := OpenWrites()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	path := filepath.Join(t.TempDir(), "0.log")
	if err := w.Ask(path); !os.IsNotExist(err) {
		t.Errorf("a missing file: %v", err)
	}
	write(t, path, "unwatched")
	ask := func() {
		t.Helper()
		if err := w.Ask(path); err != nil {
			t.Fatal(err)
		}
	}
	reported := func(what string) {
		t.Helper()
		select {
		case got := <-w.C:
			if got != path {
				t.Errorf("%s: %s, want %s", what, got, path)
			}
		case <-time.After(10 * time.Second):
			t.Fatalf("%s is not reported", what)
		}
	}
	// Each question has one answer, however often the file is written to.
	for range 3 {
		ask()
		ask()
		for range 100 {
			write(t, path, "line\n")
		}
		reported("a write")
	}
	ask()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	reported("a removal")
	select {
	case got := <-w.C:
		t.Errorf("%s is reported again", got)
	default:
	}
	write(t, path, "new")
	ask()
	write(t, path, "more") // an answer that nobody takes doesn't keep Close from its end
}
