package conflist

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestFile checks that the file is written when it is time, restored, and removed.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		var ready atomic.Bool
		f := File{
			Path: filepath.Join(dir, "net.d", Name), Content: []byte("{}\n"), Log: slog.New(slog.DiscardHandler),
			Ready: func(context.Context) error {
				if !ready.Load() {
					return errors.New("no block")
				}
				return nil
			},
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() { ended <- f.Keep(ctx) }()
		has := func(want string) {
			t.Helper()
			if got, _ := os.ReadFile(f.Path); string(got) != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		synctest.Wait()
		has("")
		ready.Store(true)
		pass(soon)
		has("{}\n")
		if err := os.WriteFile(f.Path, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
		pass(later)
		has("{}\n")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		has("{}\n")
		for range 2 {
			if err := f.Remove(); err != nil {
				t.Error(err)
			}
		}
		if left, err := os.ReadDir(filepath.Dir(f.Path)); len(left) > 0 || err != nil {
			t.Errorf("left %v, %v", left, err)
		}
	})
}

// pass lets some time pass.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}
