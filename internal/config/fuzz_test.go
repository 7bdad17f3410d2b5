package config

import (
	"io"
	"os"
	"path/filepath"
	"testing"
)

// FuzzFile checks that any configuration file is either valid or refused with an error.
func FuzzFile(f *testing.F) {
	for _, seed := range []string{
		"", "root = \"/var/lib/husk\"\nlog-level = \"debug\"\n", "pod-subnets = [\"10.1.0.0/16\", \"fd00::/64\"]\n", "network = \"bridge\"\nmasquerade = false\n",
		"[runtimes.kata]\ntype = \"shim\"\npath = \"/bin/sh\"\n", "root = 7\n", "no-such-key = true\n", "root = ", "[[root]]\n", "\xff",
	} {
		f.Add([]byte(seed))
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte) {
		path := filepath.Join(dir, "config.toml")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		cfg, err := Parse([]string{"--config", path}, io.Discard)
		if err != nil {
			if err.Error() == "" {
				t.Error("an empty error")
			}
			return
		}
		if cfg.Root == "" || cfg.State == "" {
			t.Errorf("accepted without directories: %+v", cfg)
		}
		if _, err := cfg.Prefixes(); err != nil {
			t.Errorf("accepted with invalid subnets: %v", err)
		}
	})
}
