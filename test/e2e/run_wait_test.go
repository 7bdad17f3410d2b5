package e2e

import (
	"bufio"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestRunWaitEndsAtOnce checks that husk run --wait doesn't wait for what can't happen: it names
// the reason, and the end of the log of a program that failed.
func TestRunWaitEndsAtOnce(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	for _, c := range []struct{ name, spec, stdout, stderr string }{
		{"noprogram", only("command: [/bin/absent]"), "/bin/absent: no such file or directory", ""},
		{"nohandler", "runtimeClassName: nothing, " + only(""), "nothing", ""},
		{"noobject", only("env: [{name: A, valueFrom: {configMapKeyRef: {name: none, key: a}}}]"), "CreateContainerConfigError", ""},
		{"toolarge", only("resources: {requests: {cpu: 1000}}"), "OutOfcpu: the pod requests 1k of cpu, but the node has only ", ""},
		{"fails", "restartPolicy: Never, " + only("command: [sh, -c, 'echo one; echo why >&2; exit 3']"), "container c ended with exit code 3", "the last lines of container c of pod default/fails:\n  one\n  why\n"},
	} {
		file := write(t, w.Node, c.name+".yaml", podOf(c.name, c.spec))
		r := w.Husk("run", "--wait", "--timeout", "60s", file)
		if r.Code != 1 || !strings.Contains(r.Stdout, "pod default/"+c.name+" failed in ") || !strings.Contains(r.Stdout, c.stdout) ||
			!strings.Contains(r.Stderr, c.stderr) || strings.Contains(r.Stderr, "within 60s") {
			t.Errorf("%s: %v", c.name, node.Result{Stdout: r.Stdout, Stderr: r.Stderr, Code: r.Code})
		}
		w.MustHusk("rm", "-f", c.name)
	}
	// A program that is restarted may yet succeed, so the wait goes on. But it says why it waits.
	file := write(t, w.Node, "crashes.yaml", podOf("crashes", only("command: [sh, -c, 'echo no database; exit 3']")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wait := w.Command(ctx, w.Binary("husk"), "--socket", "unix://"+w.State+"/husk.sock", "run", "--wait", file)
	stderr, err := wait.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := wait.Start(); err != nil {
		t.Fatal(err)
	}
	said := ""
	for lines := bufio.NewScanner(stderr); !strings.HasSuffix(said, "\n  no database\n") && lines.Scan(); {
		said += lines.Text() + "\n"
	}
	if !strings.HasSuffix(said, "the last lines of container c of pod default/crashes:\n  no database\n") || !strings.Contains(said, "restarting failed container c (exit code 3)\n") {
		t.Errorf("the wait for a program that fails says only\n%s", said)
	}
	w.MustHusk("rm", "-f", "crashes")
	if err := wait.Wait(); err == nil {
		t.Error("the wait for a pod that was removed succeeds")
	}
	w.end()
}
