package monitor

import (
	"os"
	"path/filepath"
	"testing"
)

func TestSupportsSpec(t *testing.T) {
	t.Parallel()
	program := func(name, script string) Runtime {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
			t.Fatal(err)
		}
		return Runtime{Name: name, Path: path}
	}
	for _, c := range []struct {
		script string
		want   map[string]bool
	}{
		{`echo '{"ociVersionMax": "1.0.2-dev"}'`, map[string]bool{"1.0.0": true, "1.1.0": false, "1.3.0": false}},
		{`echo '{"ociVersionMax": "1.2.1"}'`, map[string]bool{"1.1.0": true, "1.2.0": true, "1.3.0": false}},
		{`echo '{"ociVersionMax": "2.0.0"}'`, map[string]bool{"1.3.0": true}},
		{`echo 'no such command' >&2; exit 1`, map[string]bool{"1.0.0": true, "1.1.0": false}},
		{`echo '{'`, map[string]bool{"1.1.0": false}},
	} {
		h := Only(program("runtime", c.script), nil)
		for version, want := range c.want {
			if got := h.SupportsSpec(t.Context(), "", version); got != want {
				t.Errorf("a runtime of %s supports %s: %v, want %v", c.script, version, got, want)
			}
		}
		if h.SupportsSpec(t.Context(), "other", "1.0.0") {
			t.Error("an unknown handler supports a version")
		}
	}
}
