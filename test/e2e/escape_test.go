package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/huskd/husk/test/testimage"
)

// TestTerminalEscapes: nothing that a pod or an image says can change the terminal of the one who
// looks at it.
func TestTerminalEscapes(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	const evil = "\x1b[2J\x1b]52;c;cm0gLXJm\a\u009b31m\r\x7f"
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	image, err := testimage.Build(ctx, testimage.Spec{Config: ocispec.ImageConfig{
		Labels: map[string]string{"org.opencontainers.image.title": evil, evil: "x"}, Env: []string{"EVIL=" + evil, "PATH=/bin"}, WorkingDir: "/tmp/" + evil,
	}})
	if err != nil {
		t.Fatal(err)
	}
	var archive strings.Builder
	if err := testimage.WriteArchive(&archive, testimage.Named{Image: image, Names: []string{"localhost/evil:1"}}); err != nil {
		t.Fatal(err)
	}
	w.MustHusk("image", "load", write(t, w.Node, "evil.tar", archive.String()))
	script := `printf '\033[31mred\033[0m and %s\n' "$EVIL"; printf %s "$EVIL" >/dev/termination-log; test -e /v/again || { touch /v/again; exit 1; }; touch "/v/$EVIL"; exec sleep 1000`
	w.run(podOf("talks", "volumes: [{name: v, emptyDir: {}}], "+strings.Replace(only("volumeMounts: [{name: v, mountPath: /v}], readinessProbe: {exec: {command: [sh, -c, 'echo \"$EVIL\"; exit 1']}, periodSeconds: 1}, command: "+shell(script)), "localhost/web:1", "localhost/evil:1", 1)))
	w.run(fmt.Sprintf("apiVersion: v1\nkind: Pod\nmetadata: {name: fails, annotations: {a: %q}}\nspec: {%s}\n", "\x1b[2J", only(fmt.Sprintf("command: [%q]", "/\x1b[2J\u009b"))))
	w.eventually("talks", "restarted and probed", func(p listed) bool {
		return p.Containers[0].Restarts == 1 && p.Containers[0].Message != ""
	})
	w.eventually("fails", "refused", func(p listed) bool { return strings.Contains(p.Containers[0].Message+p.Message, "2J") })
	clean := func(what, text string) {
		t.Helper()
		if at := strings.IndexFunc(text, func(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }); at >= 0 {
			t.Errorf("%s prints %q", what, text[max(0, at-80):min(len(text), at+80)])
		}
	}
	for _, args := range []string{
		"ps -a", "ps -a -o wide", "ps -a -o json", "describe talks", "describe fails", "events", "events -o json", "inspect talks", "inspect fails", "inspect -o yaml talks",
		"generate talks", "generate fails", "top", "image ls", "image inspect localhost/evil:1", "image history localhost/evil:1", "wait --for=ready --timeout=100ms talks",
		"cp talks:/v " + w.Dir + "/copied", "logs talks\x1b[2J", "run /tmp/\x1b[2J", "doctor", "info",
	} {
		r := w.Husk(strings.Fields(args)...)
		clean("husk "+args, r.Stdout+r.Stderr)
	}
	// A log is shown without, and its bytes are kept for what reads them.
	if got := w.MustHusk("logs", "talks"); !strings.Contains(got, evil) {
		t.Errorf("husk logs in a pipe: %q", got)
	}
	got := w.Must("script", "-qec", w.Binary("husk")+" --socket unix://"+w.State+"/husk.sock logs talks", "/dev/null")
	if want := "\x1b[31mred\x1b[0m and " + `\x1b[2J\x1b]52;c;cm0gLXJm\a\u009b31m\r\x7f` + "\x1b[0m\r\n"; !strings.HasPrefix(got, want) {
		t.Errorf("husk logs on a terminal: %q, want %q", got, want)
	}
	w.remove("talks", "fails")
	w.MustHusk("image", "rm", "localhost/evil:1")
	w.end()
}
