package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestTooManyReplicas checks that a Deployment that is too large for the node runs as far as the
// node's maximum, and says so in one line, and that other pods run.
func TestTooManyReplicas(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t, node.Flags("--max-pods", "6"))
	began := time.Now()
	if r := w.run(deployment("web", 150, "1")); r.Code != 0 {
		t.Fatal(r)
	}
	node.Eventually(t, 120*time.Second, func() string {
		got := w.MustHusk("rollout", "status", "deployment/web")
		if !strings.Contains(got, "5 of 150 ") || !strings.Contains(got, "the node runs at most 6 pods, see max-pods in the configuration") {
			return "husk rollout status shows\n" + got
		}
		return ""
	})
	t.Logf("settled after %v:\n%s", time.Since(began), w.MustHusk("rollout", "status", "deployment/web"))
	if r := w.Husk("doctor"); !strings.Contains(r.Stdout, " pods wait, as the node runs at most 6") {
		t.Errorf("husk doctor doesn't say that pods wait:\n%s", r.Stdout)
	}
	w.eventually("other", "ready", isReady)
	w.MustHusk("scale", "deployment/web", "0")
	w.mustRun(podOf("later", "restartPolicy: Never, "+only("command: ['true']")))
	w.MustHusk("rm", "deployment/web")
	w.remove("later")
	w.end()
}
