package loginfile

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "logins.json")
	f := At(path)
	if had, err := f.Remove("none"); had || err != nil {
		t.Errorf("removed what isn't there: %t, %v", had, err)
	}
	must(t, f.Set("registry.local:5000", Login{"me", "a:b"}))
	must(t, f.Set("docker.io", Login{"you", ""}))
	again := At(path) // as after a restart
	if l, ok, err := again.Get("registry.local:5000"); !ok || err != nil || l != (Login{"me", "a:b"}) {
		t.Errorf("got %v, %t, %v", l, ok, err)
	}
	if _, ok, err := again.Get("registry.local"); ok || err != nil {
		t.Errorf("another port has a login: %v", err)
	}
	if hosts, err := again.Hosts(); err != nil || !slices.Equal(hosts, []string{"docker.io", "registry.local:5000"}) {
		t.Errorf("hosts %q, %v", hosts, err)
	}
	if had, err := again.Remove("docker.io"); !had || err != nil {
		t.Errorf("removed: %t, %v", had, err)
	}
	raw, err := os.ReadFile(path)
	must(t, err)
	if !strings.Contains(string(raw), `"auth": "bWU6YTpi"`) || strings.Contains(string(raw), "docker.io") {
		t.Errorf("the file is %s", raw)
	}
	info, err := os.Stat(path)
	must(t, err)
	if info.Mode() != 0o600 {
		t.Errorf("the file has mode %v", info.Mode())
	}
	if left, _ := filepath.Glob(path + ".*"); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// TestDamage checks that a damaged file isn't replaced.
func TestDamage(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"{", `{"auths": {"x": {"auth": "%"}}}`, `{"auths": 1}`} {
		path := filepath.Join(t.TempDir(), "logins.json")
		must(t, os.WriteFile(path, []byte(text), 0o600))
		if err := At(path).Set("x", Login{}); err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "log in again") {
			t.Errorf("%s: %v", text, err)
		}
		if raw, _ := os.ReadFile(path); string(raw) != text {
			t.Errorf("%s became %s", text, raw)
		}
	}
}
