package registry

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// FuzzHosts checks that any hosts.toml is accepted, or refused with one line that names
// the file.
func FuzzHosts(f *testing.F) {
	for _, seed := range []string{
		"", "server = \"https://registry.example\"\n[host.\"https://mirror.example\"]\n  capabilities = [\"pull\", \"resolve\"]\n  skip_verify = true\n",
		"server = 1\n", "[host.\"a\"]\ncapabilities = [\"fly\"]\n", "[[host]]\n", "host = [", "\x00", "[host.\"x\".header]\na = [\"b\"]\n",
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "hosts.toml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		err := checkHosts(path)
		if err == nil {
			return
		}
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q", err)
		}
	})
}
