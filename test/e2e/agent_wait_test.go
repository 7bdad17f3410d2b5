package e2e

import "testing"

// TestWaitAndLogs checks that husk wait ends when a real pod is ready, has ended and is gone, and
// that the logs of all its containers and of the newest pod are found.
func TestWaitAndLogs(t *testing.T) {
	t.Parallel()
	w := newTestEnv(t)
	w.run(podOf("two", "restartPolicy: Never, containers: ["+
		"{name: a, image: 'localhost/web:1', command: "+shell("echo one")+"}, "+
		"{name: b, image: 'localhost/web:1', command: "+shell("echo two")+"}]"))
	w.MustHusk("wait", "pod/two", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=2m")
	checkLines(t, "all containers", w.MustHusk("logs", "two", "--all-containers"), "one", "two")
	checkLines(t, "the newest pod", w.MustHusk("logs", "-l", "-c", "b", "-n", "1"), "two")
	if r := w.Husk("wait", "two", "--for=condition=Ready", "--timeout=2m"); r.Code != 1 {
		t.Errorf("a pod that has ended can't become ready: %+v", r)
	}
	w.run(podOf("up", only("command: "+shell("exec sleep 1000"))))
	w.MustHusk("wait", "up", "--for=condition=Ready", "--timeout=2m")
	w.remove("two", "up")
	w.MustHusk("wait", "two", "up", "--for=delete", "--timeout=2m")
	w.end()
}
