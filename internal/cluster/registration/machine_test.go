package registration

import (
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/util/version"
)

func TestFitVersion(t *testing.T) {
	t.Parallel()
	for server, want := range map[string]string{
		"v1.36.3": "1.36.3", "v1.36.3+k3s1": "1.36.3", "v1.36.0-alpha.1": "1.36.0", "v1.37.9": "1.37.2", "v1.99.0": "1.37.2", "": "1.37.2", "rubbish": "1.37.2",
	} {
		got, err := version.ParseSemantic(fitVersion(server))
		if err != nil {
			t.Errorf("%q: %s isn't semantic: %v", server, fitVersion(server), err)
			continue
		}
		if got.WithBuildMetadata("").String() != want || got.BuildMetadata() != "husk-unknown" {
			t.Errorf("with server %q: %s, want %s", server, got, want)
		}
	}
}

func TestSystemUUID(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	write := func(path, content string) {
		t.Helper()
		path = filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ path, content, want string }{
		{"unused", "", ""},
		{"etc/machine-id", "installation\n", "installation"},
		{"proc/device-tree/vm,uuid", "tree\x00", "tree"},
		{"sys/class/dmi/id/product_uuid", "", "tree"},
		{"sys/class/dmi/id/product_uuid", "firmware\n", "firmware"},
	} {
		write(c.path, c.content)
		if got := systemUUID(root); got != c.want {
			t.Errorf("after writing %s: %q, want %q", c.path, got, c.want)
		}
	}
}

// TestLabelOfHusk checks that pods can be kept from nodes of Husk in a cluster that has others.
func TestLabelOfHusk(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{"": "true", "mine": "mine"} {
		m := Machine{Name: "a", Labels: map[string]string{}}
		if given != "" {
			m.Labels["husk.dev/node"] = given
		}
		if got := m.Object().Labels["husk.dev/node"]; got != want {
			t.Errorf("with %q: the label is %q, want %q", given, got, want)
		}
	}
}
