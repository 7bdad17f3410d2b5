package page

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "page.md")
	text := "# Setup\n\n```toml\n# /etc/husk/huskd.toml\nkey = 1\n```\n\n```sh\nhusk info\nhusk ps\n```\n\n```sh\nhusk version\n```\n\n" +
		"## Network\n\nThis is `/etc/cni/net.d/10-husk.conflist`:\n\n```json\n{}\n```\n\nAnd this is printed:\n\n```text\nnothing\n```\n\n```text\n```\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	p := Read(t, path)
	want := map[string]Section{
		"Setup":   {Files: []File{{"/etc/husk/huskd.toml", "key = 1\n"}}, Commands: []string{"husk info\nhusk ps", "husk version"}},
		"Network": {Files: []File{{"/etc/cni/net.d/10-husk.conflist", "{}\n"}}},
	}
	for heading, section := range want {
		if got := p.Section(heading); !reflect.DeepEqual(got, section) {
			t.Errorf("below %s there is %+v, want %+v", heading, got, section)
		}
	}
}
