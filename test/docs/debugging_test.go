package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// debugging is a page whose commands show what is wrong, and mostly fail.
const debugging = "docs/debugging.md"

// block returns the code block of a document that begins with a line.
func block(t *testing.T, file, first string) string {
	t.Helper()
	_, rest, ok := strings.Cut(read(t, file), "\n```toml\n"+first+"\n")
	text, _, ended := strings.Cut(rest, "\n```\n")
	if !ok || !ended {
		t.Fatalf("%s has no block that begins with %s", file, first)
	}
	return text + "\n"
}

// TestDebugging runs the commands of the page on the first of the two nodes of docs/nodes.md. The
// second one isn't there. Unlike those of TestConsole they may fail, and are
// repeated until their output is that of the page: pods take their time to fail.
func TestDebugging(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	dir := workplace(t, n)
	config, nodes := filepath.Join(n.Dir, "huskd.toml"), filepath.Join(n.Dir, "nodes.toml")
	settings := strings.ReplaceAll(block(t, "docs/nodes.md", "# /etc/husk/huskd.toml"), "/etc/husk/nodes.toml", nodes)
	addresses := strings.NewReplacer("192.0.2.1", node.Address4, "192.0.2.2", "198.51.100.7")
	for path, content := range map[string]string{
		config:                               settings,
		nodes:                                addresses.Replace(block(t, "docs/nodes.md", "# /etc/husk/nodes.toml, the same on each node")),
		filepath.Join(dir, "bin/systemctl"):  "#!/bin/sh\n[ \"$*\" = 'reload huskd' ] && kill -HUP $(pidof huskd)\n",
		filepath.Join(dir, "bin/journalctl"): "#!/bin/sh\ncat /proc/$(pidof huskd)/fd/2\n",
	} {
		if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	d := n.Huskd(node.Flags("--config", config, "--metrics-listen", "127.0.0.1:9477"))
	n.MustHusk("image", "load", filepath.Join(dir, "web.tar"))
	for _, s := range steps(read(t, debugging)) {
		if strings.HasPrefix(s.run, "systemctl reload") {
			if err := os.WriteFile(config, []byte(settings+block(t, debugging, "# /etc/husk/huskd.toml")), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		node.Eventually(t, time.Minute, func() string {
			out := n.Run("sh", "-c", fmt.Sprintf("cd %s && PATH=$PWD/bin:$PATH && { %s\n} 2>&1", dir, s.run)).Stdout
			if !matches(s.prints, strings.Split(strings.TrimRight(out, "\n"), "\n")) {
				return fmt.Sprintf("%s:%d: %s prints\n%s\nand not\n%s", debugging, s.line, s.run, out, strings.Join(s.prints, "\n"))
			}
			return ""
		})
		t.Logf("%v: %s", time.Since(began).Round(time.Millisecond), s.run)
	}
	n.MustHusk("rm", "-f", filepath.Join(dir, "examples/broken/pods.yaml"), filepath.Join(dir, "examples/web.yaml"))
	d.Stop()
	n.NothingLeft()
}
