package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/huskd/husk/test/node"
)

// TestStartRestartKill starts pods again that were stopped or have ended, restarts one that runs,
// and sends signals.
func TestStartRestartKill(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	program := shell("trap 'echo reloaded' HUP; trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.1; done")
	w.run(strings.Replace(podOf("web", only("command: "+program)), "PeriodSeconds: 1", "PeriodSeconds: 30", 1), "--wait")
	log := func(want string) {
		t.Helper()
		node.Eventually(t, time.Minute, func() string {
			if got := w.MustHusk("logs", "web"); got != want {
				return got + "isn't the log " + want
			}
			return ""
		})
	}
	log("up\n")
	checkLines(t, "a pod that runs", w.MustHusk("start", "web"), "pod default/web is running already")
	checkLines(t, "a signal", w.MustHusk("kill", "-s", "HUP", "web/c"), "container c of pod default/web got signal HUP")
	log("up\nreloaded\n")
	checkLines(t, "a restart", w.MustHusk("restart", "pod/web"), "pod default/web restarted")
	w.MustHusk("wait", "web", "--for=condition=Ready", "--timeout=2m")
	log("up\n")
	if got := w.MustHusk("logs", "-p", "web"); got != "up\nreloaded\nbye\n" {
		t.Errorf("the log of the run before the restart is %q", got)
	}
	w.MustHusk("stop", "web")
	w.fails("a signal to a stopped pod", w.Husk("kill", "web"), 1, `husk: container c of pod default/web isn't running: it ended with exit code 0`)
	w.d.Stop()
	w.d = w.Huskd()
	checkLines(t, "a start", w.MustHusk("start", "web"), "pod default/web started")
	w.MustHusk("wait", "web", "--for=condition=Ready", "--timeout=2m")
	before := w.pod("web").Containers[0].Restarts
	w.MustHusk("kill", "web")
	node.Eventually(t, time.Minute, func() string {
		if w.pod("web").Containers[0].Restarts == before {
			return "the killed container doesn't restart"
		}
		return ""
	})
	w.fails("no such signal", w.Husk("kill", "-s", "NOPE", "web"), 1, `husk: unknown signal "NOPE": .*`)
	w.fails("no such pod", w.Husk("restart", "absent"), 1, `husk: no pod "absent": .*`)
	w.fails("no such workload", w.Husk("restart", "deployment/absent"), 1, `husk: no deployment/absent: .*`)

	w.run(podOf("once", "restartPolicy: Never, "+only("command: "+shell("echo done"))))
	w.MustHusk("wait", "once", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=2m")
	w.MustHusk("start", "once")
	w.MustHusk("wait", "once", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=2m")
	if got := w.MustHusk("logs", "-p", "once"); got != "done\n" {
		t.Errorf("the log of the first run is %q", got)
	}
	w.remove("web", "once")
	w.end()
}
