package cli

import (
	"strings"
	"testing"
)

// TestPruneAsks: on a terminal, husk system prune says what it removes, and removes nothing unless
// the answer is yes.
func TestPruneAsks(t *testing.T) {
	t.Parallel()
	_, env := serve(t, strings.Replace(web("exit, '0'", false), "containers:", "restartPolicy: Never, containers:", 1))
	for _, c := range []struct{ answer, want string }{
		{"\n", "nothing was removed"}, {"no\n", "nothing was removed"}, {"\x04", "nothing was removed"}, {"y\n", "pod default/web removed"},
	} {
		p := newPTY(t, 80, 24)
		p.start(env, "husk", "system", "prune", "--volumes")
		p.expect("continue? [y/N] ")
		p.typeKeys(c.answer)
		code, out := p.end()
		if code != 0 || !strings.Contains(out, "volumes that no pod uses and nothing declares") || !strings.Contains(out, c.want) {
			t.Errorf("answer %q: exit code %d\n%s", c.answer, code, out)
		}
	}
}
