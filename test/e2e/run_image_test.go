package e2e

import (
	"strings"
	"testing"

	"github.com/huskd/husk/test/node"
)

// TestRunImage runs images as docker and podman users do: in the foreground, detached, with ports
// and volumes, and checks manifests without starting them.
func TestRunImage(t *testing.T) {
	t.Parallel()
	n := node.New(t)
	w := testEnvOn(t, n)
	const image = "localhost/web:1"
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{[]string{"--rm", image, "sh", "-c", "echo out; echo err >&2; exit 3"}, 3, "out\n"},
		{[]string{"--rm", "-e", "A=b $(c)", "--entrypoint", "sh", "--user", "1000:2000", "--workdir", "/www", image, "-c", "echo $A; id -u; id -g; pwd"}, 0, "b $(c)\n1000\n2000\n/www\n"},
		{[]string{"--rm", "--hostname", "front", "-v", write(t, n, "note", "from the node") + ":/note:ro", image, "sh", "-c", "hostname; cat /note"}, 0, "front\nfrom the node\n"},
		{[]string{"--rm", "-v", "kept:/data", image, "sh", "-c", "echo kept >/data/file"}, 0, ""},
		{[]string{"--rm", "-v", "kept:/data", image, "cat", "/data/file"}, 0, "kept\n"},
	} {
		if r := w.Husk(append([]string{"run"}, c.args...)...); r.Code != c.code || r.Stdout != c.stdout {
			t.Errorf("husk run %s: %v", strings.Join(c.args, " "), r)
		}
	}
	if r := w.Husk("ps", "-a"); strings.Contains(r.Stdout, "\nweb") {
		t.Errorf("--rm leaves a pod:\n%s", r.Stdout)
	}
	w.MustHusk("run", "-d", "--restart", "always", "-p", "8080:80", image, "/bin/httpd", "-f", "-p", "80", "-h", "/www")
	w.eventually("web", "ready", isReady)
	mustGet(t, n.Net(), inspect(t, n, "web").IPs[0]+":80")

	manifest := w.Husk("run", "--dry-run", "-o", "yaml", "--name", "dry", image, "true")
	file := write(t, n, "dry.yaml", manifest.Stdout+"---\n"+podOf("waits", "volumes: [{name: s, secret: {secretName: none}}], "+only("")))
	r := w.Husk("run", "--dry-run=server", file)
	if r.Code != 0 || !strings.Contains(r.Stdout, "pod default/dry would be started\n") || !strings.Contains(r.Stderr, "pod default/waits refers to secret none, which nothing declares\n") {
		t.Errorf("a dry run of huskd: %v", r)
	}
	if got := w.MustHusk("ps", "-a"); strings.Contains(got, "dry") {
		t.Errorf("a dry run starts pods:\n%s", got)
	}
	w.MustHusk("apply", "-f", write(t, n, "one.yaml", manifest.Stdout))
	if got := w.MustHusk("delete", "-f", n.Dir+"/one.yaml"); got != "pod default/dry removed\n" {
		t.Errorf("husk delete -f prints %q", got)
	}
	w.MustHusk("delete", "pod", "web")
	w.MustHusk("volume", "rm", "kept")
	w.end()
}
