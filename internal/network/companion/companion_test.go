package companion_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/internal/network/companion"
)

// asCompanion makes the test binary a companion.
const asCompanion = "HUSK_TEST_COMPANION"

func TestMain(m *testing.M) {
	if os.Getenv(asCompanion) != "" {
		companion.Main("companion FILE", func(args []string, ready func()) error {
			if _, err := os.Stat(args[0]); err != nil {
				return errors.New("no file")
			}
			ready()
			for { // until the test removes the file
				if _, err := os.Stat(args[0]); err != nil {
					return nil
				}
				time.Sleep(10 * time.Millisecond)
			}
		})
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestStart(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(asCompanion, "1")
	file := filepath.Join(t.TempDir(), "file")
	if err := companion.Start(nil, self, file); err == nil || !strings.HasSuffix(err.Error(), ": no file") {
		t.Errorf("one that fails: %v", err)
	}
	if err := companion.Start(nil, self); err == nil || !strings.Contains(err.Error(), "it ended") {
		t.Errorf("without arguments: %v", err)
	}
	if err := companion.Start(nil, filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("one that isn't there: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := companion.Start(nil, self, file); err != nil {
		t.Errorf("one that is ready: %v", err)
	}
}

func TestFind(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, err := companion.Find("husk-nothing"); err == nil || err.Error() != "husk-nothing is neither beside huskd nor in PATH: install it" {
		t.Errorf("one that isn't installed: %v", err)
	}
	path := filepath.Join(dir, "husk-nothing")
	if err := os.WriteFile(path, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	if got, err := companion.Find("husk-nothing"); err != nil || got != path {
		t.Errorf("got %s, %v, want %s", got, err, path)
	}
}
