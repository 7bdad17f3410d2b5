package e2e

import (
	"regexp"
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

// TestRegistryLogin logs the node in at a real registry, runs a pod of a private image without a
// secret, and tags, pushes, saves, loads and inspects the image.
func TestRegistryLogin(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	host, end := dockerRegistry(t, w.Node)
	private := host + "/team/web:1"
	husk := w.Binary("husk")
	login := func(password string) node.Result {
		return w.Run("sh", "-c", "echo '"+password+"' | "+husk+" login http://"+host+"/v2/ -u "+registryUser+" --password-stdin")
	}
	denied := `husk: image "` + regexp.QuoteMeta(private) + `": registry .* denied anonymous access, .*, as by husk login ` + regexp.QuoteMeta(host)
	w.fails("a pull before the login", w.Husk("image", "pull", private), 1, denied)
	w.fails("a wrong password", login("wrong"), 1, `husk: registry .* denied access with this login: .*`)
	w.fails("still no login", w.Husk("logout", host), 1, `husk: no login at registry .*: there is no login at all`)
	if r := login(registryPassword); r.Code != 0 || r.Stdout != "logged in at "+host+" as "+registryUser+"\n" {
		t.Fatal(r)
	}
	w.d.Stop()
	w.d = w.Huskd() // the login is kept
	w.run(podOf("private", "containers: [{name: c, image: '"+private+"', command: [sleep, '1000']}]"), "--wait")
	w.eventually("private", "ready", isReady)

	copied := host + "/team/copy:2"
	checkLines(t, "tag", w.MustHusk("image", "tag", private, copied), `tagged [0-9a-f]{12} as `+regexp.QuoteMeta(copied))
	checkLines(t, "push", w.MustHusk("image", "push", copied), `pushed `+regexp.QuoteMeta(copied)+` sha256:[0-9a-f]{64}`)
	w.MustHusk("image", "push", private, host+"/team/again:3")
	w.MustHusk("image", "rm", copied)
	w.MustHusk("image", "pull", copied)
	w.MustHusk("image", "pull", host+"/team/again:3")
	checkLines(t, "a tag that moves", w.MustHusk("image", "tag", "localhost/web:1", copied), `tagged [0-9a-f]{12} as .*, which was [0-9a-f]{12}`)
	w.fails("a name with a digest", w.Husk("image", "tag", private, host+"/a@sha256:"+strings.Repeat("0", 64)), 1, `husk: .* has a digest, which can't be given: name a tag`)

	w.MustHusk("image", "save", private, "localhost/web:1", "-o", "/root/both.tar")
	w.fails("an image that isn't there", w.Husk("image", "save", "absent", "-o", "/root/none.tar"), 1, `husk: image "absent" not found: .*`)
	w.MustHusk("stop", "private")
	w.MustHusk("rm", "private")
	w.MustHusk("image", "rm", private, host+"/team/again:3")
	w.MustHusk("image", "load", "/root/both.tar")
	if got := w.MustHusk("image", "inspect", private, "-o", "jsonpath={.Os} {.Layers[*].Size}"); !regexp.MustCompile(`^linux \d+ \d+\n?$`).MatchString(got) {
		t.Errorf("inspect prints %q", got)
	}
	if got := strings.Count(w.MustHusk("image", "history", private), "\n"); got != 3 {
		t.Errorf("the history of two layers has %d lines", got)
	}

	checkLines(t, "logout", w.MustHusk("logout", host), "logged out of "+regexp.QuoteMeta(host))
	w.fails("a push after the logout", w.Husk("image", "push", private), 1, denied)
	if strings.Contains(w.d.Log(), registryPassword) {
		t.Error("the log contains the password")
	}
	end()
	w.end()
}
