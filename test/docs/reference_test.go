// Package docs tests the documentation: the reference matches the code, links have targets, and
// examples work.
package docs

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/huskd/husk/internal/api"
	"github.com/huskd/husk/internal/cli"
	"github.com/huskd/husk/internal/config"
	"github.com/huskd/husk/internal/kubeletconfig"
	"github.com/huskd/husk/internal/manifest/fields"
	"github.com/huskd/husk/internal/manifest/kinds"
	"github.com/huskd/husk/test/node"
)

var update = flag.Bool("update", false, "write what the code says into the documentation")

func TestMain(m *testing.M) {
	flag.Parse()
	node.Main(m)
}

// top is the repository's top directory.
const top = "../.."

func TestReferenceIsCurrent(t *testing.T) {
	for file, want := range map[string]string{
		"cli.md":            cli.Reference(),
		"coming-from.md":    cli.ComingFrom(),
		"config.md":         config.Reference(),
		"kubelet-config.md": kubeletconfig.Reference(),
		"inspect.md":        api.InspectReference(),
		"manifest.md":       fields.Reference() + kinds.Reference(),
		"lifecycle.md":      lifecycles(t),
	} {
		current(t, filepath.Join("docs/reference", file), func(string) string { return want })
	}
}

// TestReferencePicture checks the README's picture of the life of a pod.
func TestReferencePicture(t *testing.T) {
	const begin, end = "<!-- make generate: the life of a pod -->\n", "<!-- end -->\n"
	current(t, "README.md", func(text string) string {
		before, rest, found := strings.Cut(text, begin)
		_, after, ended := strings.Cut(rest, end)
		if !found || !ended {
			t.Fatalf("README.md has no place for the picture: %s", begin)
		}
		return before + begin + "```mermaid\n" + picture(t) + "```\n" + end + after
	})
}

// current checks that a file has the generated content, or writes it with -update.
func current(t *testing.T, file string, generate func(text string) string) {
	t.Helper()
	path := filepath.Join(top, file)
	data, err := os.ReadFile(path)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := generate(string(data))
	switch {
	case want == string(data):
	case *update:
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	default:
		t.Errorf("%s is not what the code says: run make generate", file)
	}
}
